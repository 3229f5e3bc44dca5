"""Our own record of a run as PyTorch execution traces, which PARAM's comm_replay loads.

One file a rank, `rank-N.json`, as torch's ExecutionTraceObserver writes it for NCCL, schema
1.1.1-chakra.0.0.4: a node for the process and one for its thread, one that names all groups, and
for each call a `record_param_comms`, with another one where it was complete, as its wait. Ranks in
a node are ranks of its group, and groups have numbers that are the same on all ranks, which PARAM
makes them by.

PARAM reads one tensor of each side of a call, so several are written as one that is as large. It
knows a few dtypes: a call of another one is left out, on all ranks, and so are, by whoever chooses
the calls, those that not all ranks have on record, for which the others would wait.

Source: commsTraceParser.py and execution_trace.py in et_replay of facebookresearch/param.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..record.layout import CallState
from ..record.safe_text.sanitize import clean
from ..record.signature import POINT_TO_POINT, Tensor
from ..record.sizes import item_bytes
from ..record.snapshot import Call, GroupKey, Rank
from .torch_words import KINETOS_NAMES, TORCHS_DTYPES, elements, sides

SCHEMA = "1.1.1-chakra.0.0.4"
DEFAULT = "default_pg"
_NODES = {
    **KINETOS_NAMES,
    "all_reduce_coalesced": "allreduce",
    "all_gather_coalesced": "_allgather_base",
    "all_gather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
    "gather_into_tensor": "gather",
}
_TENSORS = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int32": "int",
    "int64": "long int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}
_PROCESS = "[pytorch|profiler|execution_trace|process]"
_THREAD = "[pytorch|profiler|execution_trace|thread]"
_GROUPS = "## process_group:init ##"
_EMPTY: Mapping[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}
_WITHOUT_TENSORS = frozenset({"barrier", "monitored_barrier"})

Node = dict[str, Any]


def write(ranks: Mapping[int, Rank], calls: Mapping[int, Sequence[Call]], folder: Path) -> int:
    """A trace for each rank, of these calls of it, into `folder`, which is made. Returns how many
    calls of a dtype that PARAM does not have were left out. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = _numbers(ranks)
    left_out = {_place(call) for its in calls.values() for call in its if not _is_known(call)}
    for number, rank in sorted(ranks.items()):
        kept = [call for call in calls[number] if _place(call) not in left_out]
        with open(folder / f"rank-{number}.json", "x", encoding="utf-8") as file:
            json.dump(_Trace(rank, kept, numbers).as_json(), file)
    return sum(_place(call) in left_out for its in calls.values() for call in its)


def _place(call: Call) -> tuple[Any, ...]:
    """The same for all ranks of a collective. Both ends of a message have one dtype, but other
    names for it: of those, all with that tag in the group."""
    signature = call.signature
    if signature.op in POINT_TO_POINT:
        return (call.group, signature.tag, signature.dtypes)
    return (call.group, call.seq)


def _is_known(call: Call) -> bool:
    return all(dtype in _TENSORS for dtype in call.signature.dtypes)


def _numbers(ranks: Mapping[int, Rank]) -> dict[GroupKey, int]:
    """Of all groups, in the order in which they were made."""
    all_groups = {key: group for rank in ranks.values() for key, group in rank.groups.items()}
    made = {one.group: None for rank in ranks.values() for one in rank.creations}
    defaults = [key for key, group in all_groups.items() if group.desc == DEFAULT]
    rest = sorted(set(all_groups) - set(made) - set(defaults))
    ordered = [*defaults, *(key for key in made if key in all_groups), *rest]
    return {key: number for number, key in enumerate(ordered)}


class _Trace:
    """The trace of one rank."""

    def __init__(self, rank: Rank, calls: Sequence[Call], numbers: Mapping[GroupKey, int]) -> None:
        self._rank = rank
        self._calls = calls
        self._numbers = numbers
        self._next_id = itertools.count(1).__next__
        self._messages: dict[GroupKey, int] = {}

    def as_json(self) -> dict[str, Any]:
        times = [one for call in self._calls for one in (call.issued_ns, call.completed_ns) if one]
        root = self._node(_PROCESS, 1)
        thread = self._node(_THREAD, 1)
        groups = self._node(
            _GROUPS, thread["id"], inputs=_side([(json.dumps(self._groups()), "String")])
        )
        return {
            "schema": SCHEMA,
            "pid": self._rank.pid,
            "time": "",
            "start_ts": min(times, default=0) // 1_000_000,
            "nodes": [root, thread, groups, *self._of_calls(thread["id"])],
            "finish_ts": max(times, default=0) // 1_000_000,
        }

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {
                "pg_name": str(self._numbers[key]),
                "pg_desc": clean(group.desc, 120),
                "backend_config": clean(group.backend, 120),
                "ranks": list(group.ranks),
                "group_size": len(group.ranks),
                "group_count": len(self._numbers),
            }
            for key, group in self._rank.groups.items()
        ]

    def _of_calls(self, thread: int) -> Iterator[Node]:
        """In the order of what happened: a call where it began, a wait where it was complete."""
        happened: list[tuple[int, int, bool, Call]] = []
        for call in self._calls:
            happened.append((call.issued_ns, call.number, False, call))
            if call.state is CallState.COMPLETED:
                # A plan's clock counts steps: a call may be complete in the one before its own.
                over_ns = max(call.completed_ns, call.issued_ns)
                happened.append((over_ns, call.number, True, call))
        sequences: dict[int, list[Any]] = {}
        for _, number, is_wait, call in sorted(happened, key=lambda one: one[:3]):
            if not is_wait:
                sequences[number] = self._sequence(call)
                yield self._of_call(call, sequences[number], thread)
            elif call.signature.op not in _WITHOUT_TENSORS or call.is_async:
                yield self._comms(call, sequences[number], "wait", thread)

    def _sequence(self, call: Call) -> list[Any]:
        """What a wait knows its call by."""
        if call.signature.op not in POINT_TO_POINT:
            return [call.seq + 1, False]
        count = self._messages[call.group] = self._messages.get(call.group, 0) + 1
        return [count, True]

    def _of_call(self, call: Call, sequence: Sequence[Any], thread: int) -> Node:
        signature = call.signature
        name = _NODES.get(signature.op, signature.op)
        if signature.op in _WITHOUT_TENSORS:
            return self._comms(call, sequence, "barrier", thread)
        ranks = len(self._rank.groups[call.group].ranks)
        given, taken = sides(signature, ranks)
        if signature.op in POINT_TO_POINT:
            given = taken = signature.tensors  # a message is one tensor, on both sides of a node
        dtype = signature.dtypes[0]
        return self._comms(call, sequence, name, thread, (given or taken, taken or given, dtype))

    def _comms(
        self,
        call: Call,
        sequence: Sequence[Any],
        name: str,
        thread: int,
        data: tuple[Sequence[Tensor], Sequence[Tensor], str] | None = None,
    ) -> Node:
        group, signature = self._rank.groups[call.group], call.signature
        ranks, number = list(group.ranks), self._numbers[call.group]
        of_other = signature.peer if signature.peer is not None else signature.root
        other = of_other if of_other in ranks else self._rank.rank
        steps = {after - before for before, after in itertools.pairwise(ranks)}
        start, stride = (ranks[0], max(steps, default=0)) if len(steps) < 2 else (-1, -1)
        sends = list(signature.sends) if data else []
        receives = list(signature.receives) if data else []
        arguments: list[tuple[Any, str]] = [
            (list(sequence), "Tuple[Int,Bool]"),
            ([str(number), clean(group.desc, 120)], "Tuple[String,String]"),
            (ranks.index(other), "Int"),
            (name, "String"),
            (sends, f"GenericList[{','.join(['Int'] * len(sends))}]"),
            (receives, f"GenericList[{','.join(['Int'] * len(receives))}]"),
            (start, "Int"),
            (stride, "Int"),
            (len(ranks), "Int"),
        ]
        outputs, counts, dtype = _EMPTY, (0, 0), ""
        if data is not None:
            dtype = data[2]
            counts = (elements(data[0]), elements(data[1]))
            if sends or receives:
                counts = (sum(sends), sum(receives))
            arguments.insert(0, _tensor(self._next_id(), counts[0], dtype))
            outputs = _side([_tensor(self._next_id(), counts[1], dtype)])
        attributes = {
            "collective_name": name,
            "dtype": TORCHS_DTYPES.get(dtype, dtype),
            "in_msg_nelems": counts[0],
            "out_msg_nelems": counts[1],
            "in_split_size": json.dumps(sends),
            "out_split_size": json.dumps(receives),
            "global_rank_start": start,
            "global_rank_stride": stride,
            "pg_name": str(number),
            "pg_desc": clean(group.desc, 120),
            "pg_size": len(ranks),
        }
        return self._node("record_param_comms", thread, _side(arguments), outputs, attributes)

    def _node(
        self,
        name: str,
        parent: int,
        inputs: Mapping[str, Any] = _EMPTY,
        outputs: Mapping[str, Any] = _EMPTY,
        attributes: Mapping[str, Any] | None = None,
    ) -> Node:
        number = self._next_id()
        general = {
            "rf_id": number,
            "fw_parent": 0,
            "seq_id": -1,
            "scope": 0 if attributes else 7,
            "tid": 0 if name == _PROCESS else 1,
            "fw_tid": 0,
            "op_schema": "",
            "kernel_backend": "",
            "kernel_file": "",
            "tensor_range": "",
        }
        return {
            "id": number,
            "name": name,
            "ctrl_deps": parent,
            "inputs": inputs,
            "outputs": outputs,
            "attrs": [
                {"name": what, "type": _type_of(value), "value": value}
                for what, value in {**general, **(attributes or {})}.items()
            ],
        }


def _type_of(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    return "uint64" if value >= 0 else "int64"


def _side(arguments: Sequence[tuple[Any, str]]) -> dict[str, list[Any]]:
    """Inputs or outputs of a node. Only tensors have shapes."""
    shapes: list[Any] = []
    strides: list[Any] = []
    for value, kind in arguments:
        is_tensor = kind.startswith("GenericList[Tensor")
        shapes.append([[value[0][3]]] if is_tensor else [])
        strides.append([[1]] if is_tensor else [])
    return {
        "values": [value for value, _ in arguments],
        "shapes": shapes,
        "types": [kind for _, kind in arguments],
        "strides": strides,
    }


def _tensor(number: int, count: int, dtype: str) -> tuple[Any, str]:
    """A list of one: tensor, storage, offset, elements, bytes of each, device."""
    described = [[number, number, 0, count, item_bytes(dtype), "cpu"]]
    return described, f"GenericList[Tensor({_TENSORS[dtype]})]"
