"""Stacks as they go from a node to the head, and the stacks of all nodes as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...record.limits import MOST_RANKS
from ...record.safe_files import whole
from ...record.safe_text import clean
from ..stacks.evidence import Evidence
from ..stacks.stacks import Frame, ThreadStack

MOST_FRAMES = 1024
MOST_TEXT = 500


def to_message(evidence: Evidence) -> dict[str, Any]:
    """Returns the evidence as JSON has it."""
    return {
        "ranks": {
            str(rank): [_thread_to_json(one) for one in threads]
            for rank, threads in evidence.stacks.items()
        }
    }


def merged(own: Evidence, others: Iterable[Mapping[str, Any]]) -> Evidence:
    """Merges our evidence with what other nodes have told. What of it makes no sense is left
    out."""
    stacks: dict[int, Sequence[ThreadStack]] = dict(own.stacks)
    for one in others:
        ranks = one.get("ranks")
        for text, threads in ranks.items() if isinstance(ranks, Mapping) else ():
            try:
                rank = int(text)
                found = [_thread_of(row) for row in threads]
            except (ValueError, TypeError, KeyError, OverflowError):
                continue
            if 0 <= rank < MOST_RANKS and found:
                stacks.setdefault(rank, found)
    return Evidence(dict(sorted(stacks.items())))


def _thread_to_json(one: ThreadStack) -> list[Any]:
    return [
        one.thread_id,
        one.native_id,
        one.name,
        one.holds_gil,
        one.active,
        [[f.function, f.file, f.line, f.native] for f in one.frames[:MOST_FRAMES]],
        one.wait,
        one.source,
    ]


def _thread_of(row: Any) -> ThreadStack:
    thread_id, native_id, name, holds_gil, active, frames, wait, source = row
    return ThreadStack(
        thread_id=whole(thread_id),
        native_id=whole(native_id),
        name=clean(str(name), 80),
        holds_gil=holds_gil is True,
        active=active is True,
        frames=tuple(
            Frame(
                clean(str(f), MOST_TEXT), clean(str(file), MOST_TEXT), whole(line), native is True
            )
            for f, file, line, native in frames[:MOST_FRAMES]
        ),
        wait=clean(str(wait), 80),
        source=clean(str(source), 20),
    )
