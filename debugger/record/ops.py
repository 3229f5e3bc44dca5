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
    """A row of the table: an op of torch.distributed.

    `inputs` and `outputs` are those of a rank that has them (in a scatter the root alone has
    inputs). `coalesced`: the op takes several tensors at once.
    `root` is the word torch's API uses for the root ("src" or "dst"), "" for an op without one.
    `counts`: whether dtype and number of elements of the principal tensors must agree.
    `splits`: whether what rank a sends to b must be what b expects from a (all-to-all).
    `certain`: whom a waiting rank surely waits for: "all" members, the "root" (all others wait
    for it; the root may or may not have to wait), "to_root" (the root waits for all members,
    the others may or may not have to wait).
    `methods` are those of torch's ProcessGroup that make it, and `options` the class of torch's
    options for them. The first has the name by which torch's OpType knows the op, and Kineto's
    `record_param_comms`, unless that has another one (`kineto`). `functions` are names of
    torch.distributed for the op beside its own, and `group_at` the place of the group among their
    arguments.
    `dumped` is the name that dumps of torch's flight recorder have for it, "" for the op's own, and
    `libraries` are names that other libraries and releases dump.
    `as_one`: the op that torch's hooks report under the same name where all ranks' parts are in one
    tensor; it is told by the numbers of tensors.
    """

    pattern: Pattern
    inputs: Operand = Operand.ONE
    outputs: Operand = Operand.ONE
    coalesced: bool = False
    root: str = ""
    reduces: bool = False
    counts: bool = True
    splits: bool = False
    certain: str = "all"
    methods: tuple[str, ...] = ()
    options: str = ""
    kineto: str = ""
    functions: tuple[str, ...] = ()
    group_at: int = 2
    dumped: str = ""
    libraries: tuple[str, ...] = ()
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
        """Returns what the arguments of its methods follow from: the pattern, and whether one of
        them is a tensor with the parts of all ranks."""
        return self.pattern, Operand.WHOLE in (self.inputs, self.outputs)


_ALL_REDUCE = Op(Pattern.ALL_REDUCE, outputs=Operand.IN_PLACE, reduces=True)
_ALL_GATHER = Op(Pattern.ALL_GATHER, options="AllgatherOptions")
_GATHER = Op(Pattern.GATHER, root="dst", certain="to_root", options="GatherOptions", group_at=3)
_REDUCE_SCATTER = Op(
    Pattern.REDUCE_SCATTER, reduces=True, options="ReduceScatterOptions", group_at=3
)
_ALL_TO_ALL = Op(
    Pattern.ALL_TO_ALL, counts=False, splits=True, options="AllToAllOptions", kineto="all_to_allv"
)
_BARRIER = Op(Pattern.BARRIER, Operand.NONE, Operand.NONE, counts=False, group_at=0)
_IN_PLACE, _NONE, _ONE = Operand.IN_PLACE, Operand.NONE, Operand.ONE
_LIST, _WHOLE = Operand.LIST, Operand.WHOLE

OPS: dict[str, Op] = {
    "all_reduce": replace(
        _ALL_REDUCE, methods=("allreduce",), options="AllreduceOptions", libraries=("_all_reduce",)
    ),
    "all_reduce_coalesced": replace(
        _ALL_REDUCE,
        coalesced=True,
        methods=("allreduce_coalesced",),
        options="AllreduceCoalescedOptions",
        dumped="allreduce_coalesced",
    ),
    "broadcast": Op(
        Pattern.BROADCAST,
        outputs=_IN_PLACE,
        root="src",
        certain="root",
        methods=("broadcast",),
        options="BroadcastOptions",
        libraries=("_broadcast_oop",),
    ),
    "reduce": Op(
        Pattern.REDUCE,
        outputs=_IN_PLACE,
        root="dst",
        reduces=True,
        certain="to_root",
        methods=("reduce",),
        options="ReduceOptions",
        group_at=3,
        libraries=("_reduce_oop",),
    ),
    "all_gather": replace(
        _ALL_GATHER, outputs=_LIST, methods=("allgather",), as_one="all_gather_into_tensor"
    ),
    "all_gather_coalesced": replace(
        _ALL_GATHER,
        outputs=_LIST,
        coalesced=True,
        methods=("allgather_coalesced",),
        dumped="ALLGATHER_coalesced",
    ),
    "all_gather_into_tensor": replace(
        _ALL_GATHER,
        outputs=_WHOLE,
        methods=("_allgather_base", "all_gather_single"),
        functions=("all_gather_single",),
        dumped="_all_gather_base",
    ),
    "all_gather_into_tensor_coalesced": replace(
        _ALL_GATHER,
        outputs=_WHOLE,
        coalesced=True,
        methods=("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    ),
    "gather": replace(_GATHER, outputs=_LIST, methods=("gather",)),
    "scatter": Op(
        Pattern.SCATTER,
        inputs=_LIST,
        root="src",
        certain="root",
        methods=("scatter",),
        options="ScatterOptions",
        group_at=3,
    ),
    "reduce_scatter": replace(
        _REDUCE_SCATTER, inputs=_LIST, methods=("reduce_scatter",), as_one="reduce_scatter_tensor"
    ),
    "reduce_scatter_tensor": replace(
        _REDUCE_SCATTER,
        inputs=_WHOLE,
        methods=("_reduce_scatter_base", "reduce_scatter_single"),
        functions=("reduce_scatter_single",),
        dumped="_reduce_scatter_base",
    ),
    "reduce_scatter_tensor_coalesced": replace(
        _REDUCE_SCATTER,
        inputs=_WHOLE,
        coalesced=True,
        methods=("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ),
    "all_to_all": replace(
        _ALL_TO_ALL, inputs=_LIST, outputs=_LIST, methods=("alltoall",), as_one="all_to_all_single"
    ),
    "all_to_all_single": replace(
        _ALL_TO_ALL,
        inputs=_WHOLE,
        outputs=_WHOLE,
        methods=("alltoall_base", "all_to_all_single"),
        group_at=4,
        libraries=("all_to_all_v", "all_to_all_v_single"),
    ),
    "barrier": replace(
        _BARRIER, methods=("barrier",), options="BarrierOptions", libraries=("all_reduce_barrier",)
    ),
    "monitored_barrier": replace(
        _BARRIER,
        pattern=Pattern.MONITORED_BARRIER,
        methods=("monitored_barrier",),
        kineto="barrier",
        dumped="barrier",
    ),
    "send": Op(Pattern.MESSAGE, _ONE, _NONE, counts=False, methods=("send",), functions=("isend",)),
    "recv": Op(
        Pattern.MESSAGE,
        _NONE,
        _ONE,
        counts=False,
        methods=("recv", "recv_anysource"),
        functions=("irecv",),
    ),
    # New ones come last: the numbers of the others are in records that exist.
    "gather_into_tensor": replace(
        _GATHER,
        outputs=_WHOLE,
        methods=("gather_into_tensor", "gather_single"),
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


def kineto_name(op: str) -> str:
    """Returns the name of the op in Kineto's `record_param_comms`."""
    return op_of(op).kineto or next(iter(op_of(op).methods), op)


def op_type(op: str) -> str:
    """Returns the name of the op in torch's OpType."""
    return next(iter(op_of(op).methods), op).upper()


OF_METHOD: dict[str, Op] = {method: row for row in OPS.values() for method in row.methods}
"""By method of torch's ProcessGroup."""


def methods_of(*patterns: Pattern) -> frozenset[str]:
    """Returns the methods of torch's ProcessGroup that make ops of these patterns."""
    return frozenset(method for method, row in OF_METHOD.items() if row.pattern in patterns)
