"""Parameters without gradient for which DDP waits: by its own error, or as the cause of another.

A rank notes (`DdpUnusedNote`) that a backward has ended while DDP still waits for gradients. Rules:

1. A rank whose next forward failed on it, uncaught, says so (`DdpFailedNote`): that is a finding.
   Ranks whose last backward ended like that as well have the same fault.
2. A mismatch, a deadlock, an absence or an early end has this cause where one of its ranks came
   from such a backward, at most three calls ago; but not where all of them have left out the same
   parameters, since those go on alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...record.kinds import Family
from ...record.layout import Phase
from ...record.notes import DdpCompleteNote, DdpFailedNote, DdpUnusedNote, WithoutGradientNote
from ...record.snapshot import Group, Note
from ...record.wording import at_site, printable, ranks_text
from ..facts.evidence import call_of, chosen, stand
from ..facts.world import World
from ..findings import Finding, RankEvidence, group_evidence
from ..limits import AFTERMATH_NS, Candidate
from ..story import step

KIND = "ddp_unused_parameters"
MOST_CALLS = 3
MOST_SHOWN = 8
REMEDY = (
    "let the loss use them, freeze them before the model is wrapped, or pass "
    "find_unused_parameters=True to DistributedDataParallel"
)
REPLACED = (
    "DistributedDataParallel keeps those that it was made of, and does not reduce the new ones"
)


def unused_parameters(world: World) -> list[Candidate]:
    """Returns one finding of all ranks whose forward failed on it."""
    failed = {
        rank: notes[-1] for rank in world.eventful if (notes := world.notes(rank, DdpFailedNote))
    }
    if not failed:
        return []
    teller, first = min(failed.items(), key=lambda item: item[1].time_ns)
    group = _group(world, teller, first)
    members = set(group.ranks if group else world.ranks) & set(world.ranks)
    left_out = {rank: _last(world, rank) or note for rank, note in failed.items()}
    for rank in members - set(failed):
        note = _last(world, rank)
        if note is not None and _soon(world.ranks[rank].calls, note):
            left_out[rank] = note
    told = f"{ranks_text(failed)} failed on it in the next forward{at_site(first.site)}"
    finding = _finding(world, left_out, members, group, [told], first.time_ns)
    undecided = any(  # it may still come to the end of its backward
        not (world.ended(rank) or world.ranks[rank].phase >= Phase.EXITING or world.pending(rank))
        for rank in members - set(left_out)
    )
    return [Candidate(finding, first.time_ns + (AFTERMATH_NS if undecided else 0))]


@step("unused parameters")
def explained_by_unused(world: World, candidate: Candidate) -> Candidate:
    """The candidate, or the unused parameters that led to it."""
    finding = candidate.finding
    if finding.severity != "error" or not (
        finding.about.stuck or finding.about.leaves or finding.about.family is Family.MISMATCH
    ):
        return candidate
    members = {*finding.culprits, *finding.victims, *finding.missing} & set(world.ranks)
    left_out = {}
    for rank in sorted(members):
        note = _last(world, rank)
        if note is not None and _led_to(world, finding, rank, note):
            left_out[rank] = note
    alike = len({tuple(_names(note)) for note in left_out.values()}) == 1
    if not left_out or (alike and len(left_out) == len(members)):
        return candidate
    teller, first = min(left_out.items(), key=lambda item: item[1].time_ns)
    group = _group(world, teller, first)
    told = f"what followed: {finding.message}"
    cause = _finding(world, left_out, members, group, [told], finding.observable_ns)
    ranks = {**cause.ranks, **{r: e for r, e in finding.ranks.items() if r not in left_out}}
    return replace(candidate, finding=replace(cause, ranks=ranks))


def _last(world: World, rank: int) -> Note | None:
    """Returns the note of the rank's last backward, if DDP still waits for gradients in it."""
    kinds = (DdpUnusedNote, DdpCompleteNote)
    states = [n for n in world.ranks[rank].notes if any(kind.matches(n) for kind in kinds)]
    return states[-1] if states and DdpUnusedNote.matches(states[-1]) else None


def _told(note: Note) -> WithoutGradientNote:
    return WithoutGradientNote.read(note.data) or WithoutGradientNote(("", 0), "?", (), 0, -1)


def _soon(number: int, note: Note) -> bool:
    """Whether that many calls are at most a few more than the rank had made by then."""
    first = _told(note).call
    return first >= 0 and 0 <= number - first <= MOST_CALLS


def _led_to(world: World, finding: Finding, rank: int, note: Note) -> bool:
    if finding.about.stuck or finding.about.leaves:
        return _soon(world.ranks[rank].calls, note)
    if finding.group is None or finding.seq is None:
        return False
    call = call_of(world, finding.group.name, finding.seq, rank)
    return call is not None and _soon(call.number, note)


def _group(world: World, teller: int, note: Note) -> Group | None:
    view = world.view(teller, _told(note).group)
    return view.any if view else None


def _names(note: Note) -> list[str]:
    return [printable(name) for name in _told(note).parameters]


def _shown(note: Note) -> str:
    names = _names(note)[:MOST_SHOWN]
    if not names:
        return "parameters"
    more = _told(note).count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _finding(
    world: World,
    left_out: Mapping[int, Note],
    members: Iterable[int],
    group: Group | None,
    details: list[str],
    observable_ns: int,
) -> Finding:
    culprits = tuple(sorted(left_out))
    victims = tuple(sorted(set(members) - set(culprits)))
    by_text: dict[str, list[int]] = {}
    for rank in culprits:
        by_text.setdefault(_shown(left_out[rank]), []).append(rank)
    model = printable(_told(left_out[culprits[0]]).model)
    what = next(iter(by_text)) if len(by_text) == 1 else "parameters"
    if len(by_text) > 1:
        details = [f"{ranks_text(ranks)}: {text}" for text, ranks in by_text.items()] + details
    replaced = max(_told(note).replaced for note in left_out.values())
    if replaced:
        details = [
            f"{replaced} of them have been replaced in the model since: {REPLACED}",
            *details,
        ]
    ranks = stand(world, chosen(culprits, victims))
    for rank in set(culprits) & set(ranks):
        state = "left parameters without gradient"
        ranks[rank] = RankEvidence(state, None, left_out[rank].site)
    return Finding(
        kind=KIND,
        message=f"{ranks_text(culprits)} left {what} of {model} without gradient, and "
        "DistributedDataParallel waits for all of them",
        culprits=culprits,
        victims=victims,
        group=group_evidence(group) if group else None,
        ranks=ranks,
        details=[*details, REMEDY],
        observable_ns=observable_ns,
        data={
            "model": model,
            "parameters": {str(rank): _names(left_out[rank]) for rank in culprits},
        },
    )
