"""The one table of ops: the names of each elsewhere, what must agree between its ranks, which
tensors it takes and gives, and for whom it waits.

A new op is a new row at the end: the order of rows is that of the numbers in records (`OP_CODES`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Pattern(enum.Enum):
    """The pattern of communication, from which follow the arguments of a call and its cost."""

    ALL_REDUCE = enum.auto()
    BROADCAST = enum.auto()
    REDUCE = enum.auto()
    ALL_GATHER = enum.auto()
    GATHER = enum.auto()
    SCATTER = enum.auto()
    REDUCE_SCATTER = enum.auto()
    ALL_TO_ALL = enum.auto()
    BARRIER = enum.auto()
    MONITORED_BARRIER = enum.auto()
    MESSAGE = enum.auto()
    OTHER = enum.auto()
    """That of an op of another release."""


class Operand(enum.Enum):
    """The inputs of a call, or its outputs."""

    NONE = enum.auto()
    ONE = enum.auto()
    """The rank's own: one tensor, or several in a coalesced call."""
    LIST = enum.auto()
    """A list with a tensor for each rank."""
    WHOLE = enum.auto()
    """One tensor with the parts of all ranks."""
    IN_PLACE = enum.auto()
    """The inputs themselves, which are written."""


@dataclass(frozen=True, slots=True)
class Op:
    """One op of torch.distributed.

    `root` is the word torch's API uses for the root ("src" or "dst"), "" for an op without one.
    `counts`: whether dtype and number of elements of the principal tensors must agree.
    `splits`: whether what rank a sends to b must be what b expects from a (all-to-all).
    `certain`: whom a waiting rank surely waits for: "all" members, the "root" (all others wait
    for it; the root may or may not have to wait), "to_root" (the root waits for all members,
    the others may or may not have to wait).
    `inputs` and `outputs` are those of a rank that has them (of a scatter the root alone has
    inputs). `coalesced`: it takes several tensors at once.
    `methods` are those of torch's ProcessGroup that make it, and `options` the class of torch's
    options for them. `functions` are names of torch.distributed for it beside its own, and
    `group_at` the place of the group among their arguments.
    `dumped`: its names in dumps of torch's flight recorder, the one that we write first. `op_type`
    is its name in torch's OpType, and `kineto` that in Kineto's `record_param_comms`.
    `as_one`: the op that torch's hooks report under the same name where all ranks' parts are in one
    tensor; it is told by the numbers of tensors.
    """

    pattern: Pattern = Pattern.MESSAGE
    inputs: Operand = Operand.ONE
    outputs: Operand = Operand.ONE
    root: str = ""
    reduces: bool = False
    counts: bool = True
    splits: bool = False
    certain: str = "all"
    coalesced: bool = False
    methods: tuple[str, ...] = ()
    options: str = ""
    functions: tuple[str, ...] = ()
    group_at: int = 2
    dumped: tuple[str, ...] = ()
    op_type: str = ""
    kineto: str = ""
    as_one: str = ""

    @property
    def is_in_place(self) -> bool:
        """Returns whether the result is written into the input."""
        return self.outputs is Operand.IN_PLACE

    @property
    def has_list(self) -> bool:
        """Returns whether inputs or outputs are a list with a tensor for each rank."""
        return Operand.LIST in (self.inputs, self.outputs)

    @property
    def form(self) -> tuple[Pattern, bool]:
        """Returns what determines the arguments of its methods: the pattern, and whether one of them
        is a tensor with the parts of all ranks."""
        return self.pattern, Operand.WHOLE in (self.inputs, self.outputs)


_ALL_REDUCE = Op(Pattern.ALL_REDUCE, outputs=Operand.IN_PLACE, reduces=True)
_ALL_GATHER = Op(Pattern.ALL_GATHER, options="AllgatherOptions")
_GATHER = Op(Pattern.GATHER, root="dst", certain="to_root", options="GatherOptions", group_at=3)
_REDUCE_SCATTER = Op(
    Pattern.REDUCE_SCATTER, reduces=True, options="ReduceScatterOptions", group_at=3
)
_ALL_TO_ALL = Op(Pattern.ALL_TO_ALL, counts=False, splits=True, options="AllToAllOptions")
_NO_DATA = Op(inputs=Operand.NONE, outputs=Operand.NONE, counts=False, group_at=0)

OPS: dict[str, Op] = {
    "all_reduce": replace(
        _ALL_REDUCE,
        methods=("allreduce",),
        options="AllreduceOptions",
        dumped=("all_reduce", "allreduce", "_all_reduce"),
        op_type="ALLREDUCE",
        kineto="allreduce",
    ),
    "all_reduce_coalesced": replace(
        _ALL_REDUCE,
        coalesced=True,
        methods=("allreduce_coalesced",),
        options="AllreduceCoalescedOptions",
        dumped=("allreduce_coalesced",),
        op_type="ALLREDUCE_COALESCED",
        kineto="allreduce_coalesced",
    ),
    "broadcast": Op(
        Pattern.BROADCAST,
        outputs=Operand.IN_PLACE,
        root="src",
        certain="root",
        methods=("broadcast",),
        options="BroadcastOptions",
        dumped=("broadcast", "_broadcast_oop"),
    ),
    "reduce": Op(
        Pattern.REDUCE,
        outputs=Operand.IN_PLACE,
        root="dst",
        reduces=True,
        certain="to_root",
        methods=("reduce",),
        options="ReduceOptions",
        group_at=3,
        dumped=("reduce", "_reduce_oop"),
    ),
    "all_gather": replace(
        _ALL_GATHER,
        outputs=Operand.LIST,
        methods=("allgather",),
        dumped=("all_gather", "allgather"),
        op_type="ALLGATHER",
        kineto="allgather",
        as_one="all_gather_into_tensor",
    ),
    "all_gather_coalesced": replace(
        _ALL_GATHER,
        outputs=Operand.LIST,
        coalesced=True,
        methods=("allgather_coalesced",),
        dumped=("ALLGATHER_coalesced",),
        op_type="ALLGATHER_COALESCED",
    ),
    "all_gather_into_tensor": replace(
        _ALL_GATHER,
        outputs=Operand.WHOLE,
        methods=("_allgather_base", "all_gather_single"),
        functions=("all_gather_single",),
        dumped=("_all_gather_base", "_allgather_base", "all_gather_single"),
        op_type="_ALLGATHER_BASE",
        kineto="_allgather_base",
    ),
    "all_gather_into_tensor_coalesced": replace(
        _ALL_GATHER,
        outputs=Operand.WHOLE,
        coalesced=True,
        methods=("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        op_type="ALLGATHER_INTO_TENSOR_COALESCED",
    ),
    "gather": replace(_GATHER, outputs=Operand.LIST, methods=("gather",)),
    "scatter": Op(
        Pattern.SCATTER,
        inputs=Operand.LIST,
        root="src",
        certain="root",
        methods=("scatter",),
        options="ScatterOptions",
        group_at=3,
    ),
    "reduce_scatter": replace(
        _REDUCE_SCATTER,
        inputs=Operand.LIST,
        methods=("reduce_scatter",),
        as_one="reduce_scatter_tensor",
    ),
    "reduce_scatter_tensor": replace(
        _REDUCE_SCATTER,
        inputs=Operand.WHOLE,
        methods=("_reduce_scatter_base", "reduce_scatter_single"),
        functions=("reduce_scatter_single",),
        dumped=("_reduce_scatter_base", "reduce_scatter_single"),
        op_type="_REDUCE_SCATTER_BASE",
        kineto="_reduce_scatter_base",
    ),
    "reduce_scatter_tensor_coalesced": replace(
        _REDUCE_SCATTER,
        inputs=Operand.WHOLE,
        coalesced=True,
        methods=("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ),
    "all_to_all": replace(
        _ALL_TO_ALL,
        inputs=Operand.LIST,
        outputs=Operand.LIST,
        methods=("alltoall",),
        dumped=("all_to_all", "alltoall"),
        op_type="ALLTOALL",
        kineto="all_to_allv",
        as_one="all_to_all_single",
    ),
    "all_to_all_single": replace(
        _ALL_TO_ALL,
        inputs=Operand.WHOLE,
        outputs=Operand.WHOLE,
        methods=("alltoall_base", "all_to_all_single"),
        group_at=4,
        dumped=("all_to_all_single", "all_to_all_v", "all_to_all_v_single", "alltoall_base"),
        op_type="ALLTOALL_BASE",
        kineto="all_to_allv",
    ),
    "barrier": replace(
        _NO_DATA,
        pattern=Pattern.BARRIER,
        methods=("barrier",),
        options="BarrierOptions",
        dumped=("barrier", "all_reduce_barrier"),
    ),
    "monitored_barrier": replace(
        _NO_DATA,
        pattern=Pattern.MONITORED_BARRIER,
        methods=("monitored_barrier",),
        dumped=("barrier",),
        kineto="barrier",
    ),
    "send": Op(outputs=Operand.NONE, counts=False, methods=("send",), functions=("isend",)),
    "recv": Op(
        inputs=Operand.NONE, counts=False, methods=("recv", "recv_anysource"), functions=("irecv",)
    ),
    # New ones come last: the numbers of the others are in records that exist.
    "gather_into_tensor": replace(
        _GATHER,
        outputs=Operand.WHOLE,
        methods=("gather_single", "gather_into_tensor"),
        functions=("gather_single",),
    ),
}
OP_NAMES: tuple[str, ...] = tuple(OPS)
OP_CODES: dict[str, int] = {op: code for code, op in enumerate(OP_NAMES)}
POINT_TO_POINT = frozenset(op for op, row in OPS.items() if row.pattern is Pattern.MESSAGE)
UNKNOWN = Op(Pattern.OTHER)
"""An op that the table does not have is taken to need all ranks, which agree on dtype and number of
elements."""


def op_of(name: str) -> Op:
    """Returns the op of that name; `UNKNOWN` for a name that the table does not have."""
    return OPS.get(name, UNKNOWN)


def dumped_name(op: str) -> str:
    """Returns the name of the op in dumps of torch's flight recorder."""
    return next(iter(op_of(op).dumped), op)


OF_METHOD: dict[str, Op] = {method: row for row in OPS.values() for method in row.methods}
"""By method of torch's ProcessGroup."""


def methods_of(*patterns: Pattern) -> frozenset[str]:
    """Returns the methods of torch's ProcessGroup that make ops of these patterns."""
    return frozenset(method for method, row in OF_METHOD.items() if row.pattern in patterns)
