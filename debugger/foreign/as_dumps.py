"""Our own record of a run as dumps of torch's flight recorder, so that tools for those can read it.

One file a rank, as gloo's recorder of torch 2.13 writes it: a pickle of plain data, version 2.10,
in which `retired` says that a call is over. torch's own analyser (`torchfrtrace`, from 2.12 on)
loads it. A call that a rank stood in when the verdict ended it is not over; one that the backend
refused was never made, and is left out. What the format cannot say is in keys of our own: of a call
`reduce_op`, `root`, `sends`, `receives`, `async`; of a rank its host, backends and `messages`.
Those are no entries, since gloo's recorder has none of them either, and the analyser takes a
message for a collective that others have missed.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..record.layout import CallState
from ..record.ops import POINT_TO_POINT, op_of
from ..record.signature import scalar_of
from ..record.snapshot import Call, Group, GroupKey, Rank
from .torch_words import MOST_CALLS, group_word, sides_as_one

VERSION = "2.10"
PREFIX = "rank_"


def write(ranks: Mapping[int, Rank], folder: Path) -> int:
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
