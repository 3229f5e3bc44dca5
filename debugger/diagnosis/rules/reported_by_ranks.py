"""Findings that ranks have made themselves, with all they know, and put on record.

The ranks of one group that agree before each call (debug level DETAIL) have seen everybody's call,
also those of other hosts, whose records are not here.
"""

from __future__ import annotations

from dataclasses import replace

from ...record.layout import RING
from ...record.notes import OwnFindingNote, UnwaitedWorkNote
from ...record.ops import POINT_TO_POINT
from ...record.snapshot import CallSite, GroupKey, Note
from ...record.wording import at_site, printable, ranks_text, verb
from ..facts.evidence import at_call, cause_of, chosen, of_call, stand
from ..facts.world import World
from ..findings import CallIs, Finding, GroupEvidence, RankEvidence, group_evidence
from ..limits import Candidate

MOST_REPORTED = 100
"""Different ones. Ranks stop at the first; what has more was not written by them."""


def reported(world: World) -> list[Candidate]:
    """Returns one finding for each that ranks have reported, however many of them did."""
    notes: dict[OwnFindingNote, tuple[int, Note]] = {}
    for number in world.eventful:
        for note in OwnFindingNote.among(world.ranks[number].notes):
            known = OwnFindingNote.read(note.data)
            if known is not None and len(notes) < MOST_REPORTED:
                key = OwnFindingNote(
                    **{**vars(known), "victims": (), "headline": ""}
                )  # who reports it may see others
                first = notes.get(key)
                if first is None or note.time_ns < first[1].time_ns:
                    notes[key] = (number, note)
    found = [
        _finding(world, number, note, known)
        for number, note in notes.values()
        if (known := OwnFindingNote.read(note.data)) is not None
    ]
    return [Candidate(one, refused=one.about.by_agreement) for one in found]


def unreported(candidates: list[Candidate], own: list[Candidate]) -> list[Candidate]:
    """Without what is only suspicious of a call that the ranks themselves (`own`: what they have
    `reported`) have found wrong."""
    wrong = {_call(one) for one in own}
    return [
        one
        for one in candidates
        if one.finding.severity == "error" or one.finding.group is None or _call(one) not in wrong
    ]


def _call(candidate: Candidate) -> tuple[str, int | None]:
    group = candidate.finding.group
    return (group.name if group else "", candidate.finding.seq)


def _message_at(world: World, rank: int, site: CallSite | None) -> RankEvidence | None:
    """The rank's last send or receive on this line: a message's finding has no other number."""
    history = world.ranks[rank].history
    for call in reversed(history.recent(RING) if history else ()):
        if call.signature.peer is not None and call.site is not None and call.site == site:
            return of_call("posted", call, site, CallIs.ALL)
    return None


def _finding(world: World, teller: int, note: Note, known: OwnFindingNote) -> Finding:
    culprits, victims = known.culprits, known.victims
    key: GroupKey = known.group
    view = world.view(teller, key)
    members = tuple(sorted({*culprits, *victims}))
    kind, seq = known.finding, known.seq
    ranks = chosen(culprits, victims)
    if seq is not None:
        evidence = at_call(world, ranks, key, seq)
    else:
        evidence = stand(world, ranks)
    if (seq is None or known.elsewhere) and note.site is not None and teller in evidence:
        evidence[teller] = replace(evidence[teller], location=note.site)
    if seq is None and not known.elsewhere and teller in evidence:
        evidence[teller] = _message_at(world, teller, note.site) or evidence[teller]
    return Finding(
        kind=kind,
        message=note.message,
        culprits=culprits,
        victims=victims,
        group=group_evidence(view.any) if view else GroupEvidence(key[0], "", members),
        seq=seq,
        ranks=evidence,
        headline=known.headline,
        cause=cause_of(world, culprits[0]) if kind == "missing_rank" else None,
        observable_ns=note.time_ns,
        details=(f"origin: {known.origin}",) if known.origin else (),
        data={"origin": known.origin} if known.origin else {},
    )


def unwaited(world: World) -> list[Finding]:
    """Returns one finding for each line: which ranks did not wait there, and how often."""
    lines: dict[tuple[str, CallSite | None, bool], dict[int, tuple[Note, int]]] = {}
    for number in world.eventful:
        for note in UnwaitedWorkNote.among(world.ranks[number].notes):
            told = UnwaitedWorkNote.read(note.data)
            if told is not None:
                lines.setdefault((told.op, note.site, told.kept), {})[number] = (note, told.count)
    return [_unwaited(world, *line, notes) for line, notes in lines.items()]


def _unwaited(
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
