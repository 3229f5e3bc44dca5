"""Handles of asynchronous calls that ranks dropped without wait(): one warning for each line."""

from __future__ import annotations

from ...record.notes import UnwaitedWorkNote
from ...record.ops import POINT_TO_POINT
from ...record.snapshot import CallSite, Note
from ...record.wording import at_site, printable, ranks_text, verb
from ..facts.evidence import chosen, stand
from ..facts.world import World
from ..findings import Finding, RankEvidence


def unwaited(world: World) -> list[Finding]:
    """Returns one finding for each line: which ranks did not wait there, and how often."""
    lines: dict[tuple[str, CallSite | None, bool], dict[int, tuple[Note, int]]] = {}
    for number in world.eventful:
        for note in UnwaitedWorkNote.among(world.ranks[number].notes):
            told = UnwaitedWorkNote.read(note.data)
            if told is not None:
                lines.setdefault((told.op, note.site, told.kept), {})[number] = (note, told.count)
    return [_finding(world, *line, notes) for line, notes in lines.items()]


def _finding(
    world: World, op: str, site: CallSite | None, kept: bool, notes: dict[int, tuple[Note, int]]
) -> Finding:
    ranks = tuple(notes)
    count = sum(count for _, count in notes.values())
    handles = "the handle" if count == 1 else f"{count} handles"
    call = f"{handles} of {printable(op, 80)}{at_site(site)}"
    is_one = verb([0] * count, "call was", "calls were")
    if kept:
        what = f"never waited for {call}: the {is_one} under way when the program ended"
    elif op in POINT_TO_POINT:  # whether these are complete only wait() can tell
        what = f"dropped {call} without wait()"
    else:
        what = f"dropped {call} without wait() while the {is_one} under way"
    message = (
        f"{ranks_text(ranks)} {what}: nobody can tell when the data may be used again, or "
        "whether it arrived"
    )
    evidence = stand(world, chosen(ranks, ()))
    if site:
        evidence |= {rank: RankEvidence("did not wait", op, site) for rank in evidence}
    return Finding(
        kind="unwaited_work",
        message=message,
        culprits=ranks,
        severity="warning",
        ranks=evidence,
        observable_ns=min(note.time_ns for note, _ in notes.values()),
        data={"op": op, "count": count},
    )
