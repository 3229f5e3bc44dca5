"""Our own record of a run as a trace: the JSON of Chrome's tracing, which Perfetto opens.

One process a rank. Blocking calls are slices on the track of the thread that made them; calls that
were made asynchronously are on tracks of their own, from their issue to their completion, since
they overlap. Flows tie the calls of one collective, from who came first to who came last, and each
send to its receive. What is under way at the end of the record ends there, and says so.

The argument names are Kineto's, as tools for its traces read them (`Collective name`, `In msg
nelems`, `Process Group Ranks`, ...); `distributedInfo` stands before the events, for those that
look for the rank in the first lines of a file. Steps of the training are known where replicas were
compared after each (`--check replicas`); they have Kineto's name too, and a track of their own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..record.ops import kineto_name
from ..record.safe_text import clean
from ..record.signature import scalar_of
from ..record.snapshot import Call, Rank, tie_of
from ..record.wording import group_name
from .torch_words import MOST_CALLS, elements, group_word, sides

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
