"""Our own record of a run in the forms of other tools: dumps of torch's flight recorder, and
traces.

*Dumps.* One file a rank, as gloo's recorder of torch 2.13 writes it: a pickle of plain data,
version 2.10, in which `retired` says that a call is over. torch's own analyser (`torchfrtrace`,
from 2.12 on) loads it. A call that a rank stood in when the verdict ended it is not over; one that
the backend refused was never made, and is left out. What the format cannot say is in keys of our
own: of a call `reduce_op`, `root`, `sends`, `receives`, `async`; of a rank its host, backends and
`messages`. Those are no entries, since gloo's recorder has none of them either, and the analyser
takes a message for a collective that others have missed.

*Traces* are the JSON of Chrome's tracing, which Perfetto opens. One process a rank. Blocking calls
are slices on the track of the thread that made them; calls that were made asynchronously are on
tracks of their own, from their issue to their completion, since they overlap. Flows tie the calls
of one collective, from who came first to who came last, and each send to its receive. What is under
way at the end of the record ends there, and says so.

The argument names are Kineto's, as tools for its traces read them (`Collective name`, `In msg
nelems`, `Process Group Ranks`, ...); `distributedInfo` stands before the events, for those that
look for the rank in the first lines of a file. Steps of the training are known where replicas were
compared after each (`--check replicas`); they have Kineto's name too, and a track of their own.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TextIO

from ..record.layout import CallState
from ..record.ops import POINT_TO_POINT, Operand, Pattern, kineto_name, op_of
from ..record.safe_text import clean
from ..record.signature import Signature, Tensor, scalar_of
from ..record.snapshot import Call, Group, GroupKey, Rank, tie_of
from ..record.wording import group_name

VERSION = "2.10"
PREFIX = "rank_"


def write_dumps(ranks: Mapping[int, Rank], folder: Path) -> int:
    """Writes one dump for each rank into `folder`, which is made; returns how many. Raises
    OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    # All groups of a run: a rank that has made no call in one is a member all the same.
    groups = {key: group for rank in ranks.values() for key, group in rank.groups.items()}
    for number, rank in sorted(ranks.items()):
        data = pickle.dumps(dump(rank, groups), protocol=2)
        with open(folder / f"{PREFIX}{number}", "xb") as file:
            file.write(data)
    return len(ranks)


def dump(rank: Rank, groups: Mapping[GroupKey, Group]) -> dict[str, Any]:
    """Returns what torch's recorder would have of this rank. `groups`: by key, of all ranks."""
    calls = rank.history.recent(MOST_CALLS) if rank.history is not None else []
    own = {**groups, **rank.groups}
    numbers = {key: number for number, key in enumerate(rank.groups)}
    collectives = [
        call
        for call in calls
        if call.group in own
        and call.signature.op not in POINT_TO_POINT
        and not (call.state is CallState.FAILED and call.seq >= own[call.group].issued)
    ]
    # When the rank last made a call, or came out of one by itself.
    made = (call.issued_ns for call in calls)
    done = (call.completed_ns for call in calls if call.state is CallState.COMPLETED)
    last_ns = max([*made, *done], default=0)
    completed = {
        call.group: call.seq + 1 for call in collectives if call.state is CallState.COMPLETED
    }
    # Of a record that is whole, torch's analyser expects that each rank's first entry is number 0.
    first = collectives[0].number if collectives and calls[0].number else 0
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": {
            group_word(key): {
                "name": group_word(key),
                "desc": group.desc,
                "ranks": str(list(group.ranks)),
            }
            for key, group in own.items()
            if rank.rank in group.ranks
        },
        "pg_status": {
            str(numbers[key]): {
                "last_enqueued_collective": group.issued or -1,
                "last_started_collective": -1,
                "last_completed_collective": completed.get(key, -1),
            }
            for key, group in rank.groups.items()
        },
        "entries": [
            _entry(
                call,
                own[call.group],
                first + number,
                numbers.get(call.group, len(numbers)),
                _is_over(call, last_ns),
            )
            for number, call in enumerate(collectives)
        ],
        "rank": rank.rank,
        "host": rank.host,
        "backends": {group_word(key): group.backend for key, group in rank.groups.items()},
        "messages": [
            {
                "call": str(call.signature),
                "group": group_word(call.group),
                "state": call.state.name.lower(),
                "time_created_ns": call.issued_ns,
            }
            for call in calls
            if call.signature.op in POINT_TO_POINT
        ],
    }


def _is_over(call: Call, last_ns: int) -> bool:
    """Whether the rank had left the call behind. One that broke off after all else the rank did is
    where it stood when its end came."""
    if call.state is CallState.FAILED:
        return call.completed_ns < last_ns
    return call.state is CallState.COMPLETED


def _entry(call: Call, group: Group, record_id: int, pg_id: int, is_over: bool) -> dict[str, Any]:
    signature = call.signature
    inputs, outputs = sides_as_one(signature, len(group.ranks))
    return {
        "record_id": record_id,
        "pg_id": pg_id,
        "process_group": (group_word(call.group), group.desc),
        "thread_name": "",
        "thread_id": str(call.thread),
        "collective_seq_id": call.seq + 1,
        "p2p_seq_id": 0,
        "op_id": call.seq + 1,
        "profiling_name": f"gloo:{op_of(signature.op).dumped or signature.op}",
        "time_created_ns": call.issued_ns,
        "input_sizes": [list(shape) for _, shape in inputs],
        "input_dtypes": [scalar_of(dtype) for dtype, _ in inputs],
        "output_sizes": [list(shape) for _, shape in outputs],
        "output_dtypes": [scalar_of(dtype) for dtype, _ in outputs],
        "state": "scheduled",
        "time_discovered_started_ns": call.started_ns or None,
        "time_discovered_completed_ns": (
            call.completed_ns or None if call.state is CallState.COMPLETED else None
        ),
        "retired": is_over,
        "timeout_ms": round(1000 * (group.timeout_s or 0)),
        "is_p2p": False,
        "frames": [{"name": call.site.function, "filename": call.site.file, "line": call.site.line}]
        if call.site
        else [],
        "reduce_op": signature.reduce_op,
        "root": signature.root,
        "sends": list(signature.sends),
        "receives": list(signature.receives),
        "async": call.is_async,
    }


Event = dict[str, Any]
_SCHEMA_VERSION = 1
_IN_FLIGHT = "in flight"
_STEPS_TRACK = 0
_ISSUING_US = 1
"""So long an asynchronous call takes here: the record does not say when it came back. Readers that
round to whole microseconds (HolisticTraceAnalysis does, inwards) have -1 of a call without any."""


def write_merged(ranks: Mapping[int, Rank], path: Path) -> int:
    """All ranks in one file; returns how many calls. Raises OSError."""
    made = [_traced(rank) for _, rank in sorted(ranks.items())]
    base_ns = min((one.began_ns for one in made if one.calls), default=0)
    with open(path, "x", encoding="utf-8") as file:
        _write(file, {}, base_ns, [*_of_ranks(made, base_ns), *_flows(made, base_ns)])
    return sum(len(one.calls) for one in made)


def write_each(ranks: Mapping[int, Rank], folder: Path) -> int:
    """A file for each rank, as Kineto writes them, into `folder`, which is made; returns how many.
    Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rank in sorted(ranks.items()):
        one = _traced(rank)
        with open(folder / f"rank_{number}.json", "x", encoding="utf-8") as file:
            _write(file, _distributed(rank), one.began_ns, _of_ranks([one], one.began_ns))
    return len(ranks)


@dataclass(frozen=True, slots=True)
class _Traced:
    """A rank and its calls. `ended_ns`: when the last thing on its record happened."""

    rank: Rank
    calls: Sequence[Call]
    ended_ns: int
    tracks: Mapping[int, int]
    """By thread, from 1 on."""

    @property
    def began_ns(self) -> int:
        return min((call.issued_ns for call in self.calls), default=0)

    def end(self, call: Call) -> int:
        return max(call.completed_ns or self.ended_ns, call.issued_ns)


def _traced(rank: Rank) -> _Traced:
    calls = [] if rank.history is None else list(rank.history.recent(MOST_CALLS))
    times = [max(call.issued_ns, call.completed_ns) for call in calls]
    threads = sorted({call.thread for call in calls})
    tracks = {thread: number for number, thread in enumerate(threads, 1)}
    return _Traced(rank, calls, max([*times, rank.heartbeat_ns], default=0), tracks)


def _write(file: TextIO, head: Mapping[str, Any], base_ns: int, events: Iterable[Event]) -> None:
    """Writes one event a line: a trace of many calls is never one string. A blank follows each
    colon, without which readers of Kineto's files do not find the rank."""
    shown = {
        "schemaVersion": _SCHEMA_VERSION,
        **head,
        "baseTimeNanoseconds": base_ns,
        "displayTimeUnit": "ms",
        "traceName": Path(file.name).name,
    }
    file.write(json.dumps(shown, indent=1)[: -len("\n}")] + ',\n "traceEvents": [\n')
    for number, event in enumerate(events):
        file.write(f"{',' if number else ' '}{json.dumps(event)}\n")
    file.write("]}\n")


def _distributed(rank: Rank) -> Mapping[str, Any]:
    backends = sorted({group.backend for group in rank.groups.values()})
    groups = [
        {
            "pg_name": clean(group_word(key)),
            "pg_desc": group_name(key[0], group.desc),
            "backend_config": clean(group.backend),
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for key, group in rank.groups.items()
    ]
    return {
        "distributedInfo": {
            "backend": clean(backends[0]) if backends else "",
            "rank": rank.rank,
            "world_size": rank.world_size,
            "pg_count": len(groups),
            "pg_config": groups,
        }
    }


# -- slices -------------------------------------------------------------------------------------


def _of_ranks(made: Sequence[_Traced], base_ns: int) -> Iterator[Event]:
    for one in made:
        rank = one.rank
        host = f" ({clean(rank.host)})" if rank.host else ""
        yield _about(rank.rank, 0, "process_name", name=f"rank {rank.rank}{host}")
        yield _about(rank.rank, 0, "process_sort_index", sort_index=rank.rank)
        for thread, number in one.tracks.items():
            yield _about(rank.rank, number, "thread_name", name=f"calls of thread {thread}")
        yield from _steps(one, base_ns)
        for call in one.calls:
            yield from _slices(one, call, base_ns)


def _steps(one: _Traced, base_ns: int) -> Iterator[Event]:
    """From the end of one step to that of the next, as the optimiser made them that has made most:
    not where one in between was not looked at."""
    made = max((each.digests() for each in one.rank.replicas), key=len, default=())
    pairs = [(a, b) for a, b in itertools.pairwise(made) if b.step == a.step + 1]
    if pairs:
        yield _about(one.rank.rank, _STEPS_TRACK, "thread_name", name="steps")
    for before, after in pairs:
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{after.step}",
            "pid": one.rank.rank,
            "tid": _STEPS_TRACK,
            "ts": _us(before.time_ns, base_ns),
            "dur": _us(after.time_ns, before.time_ns),
            "args": {"step": after.step},
        }


def _about(rank: int, track: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "pid": rank, "tid": track, "name": what, "args": args}


def _slices(one: _Traced, call: Call, base_ns: int) -> Iterator[Event]:
    rank = one.rank.rank
    common = {
        "cat": "cpu_op",
        "name": call.signature.op,
        "pid": rank,
        "tid": one.tracks[call.thread],
        "ts": _us(call.issued_ns, base_ns),
    }
    args = _args(one, call)
    if not call.is_async:
        yield {**common, "ph": "X", "dur": _us(one.end(call), call.issued_ns), "args": args}
        return
    yield {**common, "ph": "X", "dur": _ISSUING_US, "args": args}
    name = f"{_IN_FLIGHT}: {call.signature.op}"
    flight = {**common, "cat": _IN_FLIGHT, "name": name, "id": f"{rank}.{call.number}"}
    yield {**flight, "ph": "b", "args": args}
    yield {**flight, "ph": "e", "ts": _us(one.end(call), base_ns)}


def _args(one: _Traced, call: Call) -> Event:
    signature, group = call.signature, one.rank.groups.get(call.group)
    ranks = group.ranks if group is not None else ()
    inputs, outputs = map(elements, sides(signature, len(ranks)))
    shown: Event = {
        "External id": call.number,
        "Collective name": kineto_name(signature.op),
        "dtype": next((scalar_of(dtype) for dtype in signature.dtypes), ""),
        "In msg nelems": inputs,
        "Out msg nelems": outputs,
        "In split size": str(list(signature.sends)),
        "Out split size": str(list(signature.receives)),
        "Group size": len(ranks),
        "Process Group Name": clean(group_word(call.group)),
        "Process Group Description": group_name(call.group[0], group.desc if group else ""),
        "Process Group Ranks": str(list(ranks)),
        "Rank": one.rank.rank,
        "Seq": call.seq,
        "call": clean(str(signature)),
        "state": call.state.name.lower(),
    }
    if _evenly(ranks):
        shown["Global rank start"] = ranks[0]
        shown["Global rank stride"] = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    if signature.op == "send":
        shown["Dst Rank"] = signature.peer
    elif signature.op == "recv":
        shown["Src Rank"] = signature.peer
    elif signature.root is not None:
        shown["root"] = signature.root
    if call.site is not None:
        shown["line"] = clean(str(call.site))
    return shown


# -- flows --------------------------------------------------------------------------------------


def _flows(made: Sequence[_Traced], base_ns: int) -> Iterator[Event]:
    """From call to call: the ranks of a collective as they came, a send and its receive."""
    tied: dict[tuple[Hashable, ...], list[tuple[_Traced, Call]]] = {}
    for one in made:
        for call in one.calls:
            tied.setdefault(tie_of(one.rank.rank, call, call.group), []).append((one, call))
    for number, (tie, calls) in enumerate(tied.items(), 1):
        if len(calls) < 2 or tie[0] == "alone":
            continue
        ordered = sorted(calls, key=_order)
        for at, (one, call) in enumerate(ordered):
            yield {
                "ph": "s" if at == 0 else "f" if at == len(ordered) - 1 else "t",
                "bp": "e",
                "cat": "collective" if tie[0] == "collective" else "message",
                "name": tie[0],
                "id": number,
                "pid": one.rank.rank,
                "tid": one.tracks[call.thread],
                "ts": _us(call.issued_ns, base_ns),
            }


def _order(of: tuple[_Traced, Call]) -> tuple[bool, int]:
    """Returns the key that keeps events as they came, a receive behind its send."""
    call = of[1]
    return call.signature.op == "recv", call.issued_ns


# -- what they share ----------------------------------------------------------------------------


def _us(time_ns: int, base_ns: int) -> float:
    return (time_ns - base_ns) / 1000


def _evenly(ranks: Sequence[int]) -> bool:
    steps = {second - first for first, second in itertools.pairwise(ranks)}
    return bool(ranks) and len(steps) < 2


MOST_CALLS = 1 << 16
"""Of a rank: more than any ring holds."""


def group_word(key: GroupKey) -> str:
    """torch's name; a group that was made again under it has a number of its own, since tools know
    a group by its name."""
    name, again = key
    return f"{name}~{again}" if again else name


def sides(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs; what the record leaves out, since it follows from the other side, is
    filled in."""
    op, principal, others = op_of(signature.op), signature.tensors, signature.others
    if op.inputs is Operand.NONE:
        return (), principal
    if op.pattern is Pattern.SCATTER:
        return others, principal
    if others or op.outputs is Operand.NONE or op.pattern is Pattern.GATHER:
        return principal, others
    if op.pattern is Pattern.ALL_GATHER:
        return principal, [(dtype, (ranks, *shape)) for dtype, shape in principal]
    if op.pattern is Pattern.REDUCE_SCATTER:
        return principal, [
            (dtype, (prod(shape) // max(ranks, 1),)) for dtype, shape in _as_one(principal)
        ]
    return principal, principal


def elements(tensors: Sequence[Tensor]) -> int:
    """Counts the elements of all of them."""
    return sum(prod(shape) for _, shape in tensors)


def sides_as_one(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The same, with a list of equal tensors, one for each rank, as the one that torch records."""
    inputs, outputs = sides(signature, ranks)
    op = op_of(signature.op)
    if not op.has_list or op.coalesced or op.pattern is Pattern.ALL_TO_ALL:
        return inputs, outputs
    return _as_one(inputs), _as_one(outputs)


def _as_one(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(tensors) < 2 or len(set(tensors)) > 1:
        return tensors
    dtype, shape = tensors[0]
    return [(dtype, (len(tensors), *shape))]
