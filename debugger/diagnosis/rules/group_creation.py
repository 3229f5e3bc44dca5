"""Did all ranks create the same groups in the same order?

`new_group` must be called by every rank of the world, members or not, with the same ranks.
Creations are compared position by position within one life of the default group; the first
position that differs is the finding. That a rank has created fewer groups so far, or ends so, is
no error here: who waits for a creation that never comes is found in the wait graph. Where nobody
did, and the rank went on to later calls of the world, it is warned of at the end: the next group
that all create would not be the same one to it.

Groups of one rank need nobody else, so ranks that each create their own are only warned about.

`split_group` must be called by every rank of a group, with the same lists. A rank has on record in
which of them it is, so two lists of one split that share a rank must be the same list; ranks whose
lists share none cannot be told apart from ranks that agree. The first split that differs is the
finding.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...record.dispute import vote
from ...record.notes import SplitNote
from ...record.snapshot import Creation, GroupKey, Note
from ...record.wording import at_site, numbered, printable, ranks_text, spans, verb
from ..facts.evidence import chosen, standing
from ..facts.world import DEFAULT_GROUP, World
from ..findings import CallIs, Finding, GroupEvidence, RankEvidence, group_evidence
from ..limits import SECOND_NS, Candidate

Sequences = dict[int, Sequence[Creation]]


@dataclass(frozen=True, slots=True)
class Choice:
    """A version of a creation, and the ranks that made it."""

    creation: Creation
    ranks: list[int]


def creation_mismatches(world: World) -> list[Candidate]:
    """Returns at most one finding for each life of the default group."""
    found = []
    # The creations of all ranks, one dictionary for each life of the default group.
    lives: list[Sequences] = []
    for number, rank in world.ranks.items():
        if number in world.unrecorded:
            continue
        rows: list[list[Creation]] = []
        for creation in rank.creations:
            if not rows or creation.index <= rows[-1][-1].index:
                rows.append([])
            rows[-1].append(creation)
        for life, row in enumerate(rows):
            if life == len(lives):
                lives.append({})
            lives[life][number] = row
    for sequences in lives:
        candidate = _first_difference(world, sequences)
        if candidate is None and world.snapshot.finished and len(lives) == 1:
            candidate = _left_out(world, sequences)
        if candidate:
            found.append(candidate)
    return found


def _first_difference(world: World, sequences: Sequences) -> Candidate | None:
    for place in range(max(map(len, sequences.values()))):
        choices: list[Choice] = []
        for rank, row in sequences.items():
            if place >= len(row):
                continue
            for choice in choices:
                if _same(choice.creation, row[place]):
                    choice.ranks.append(rank)
                    break
            else:
                choices.append(Choice(row[place], [rank]))
        if len(choices) > 1:
            return _judge(world, sequences, place, choices)
    return None


def _left_out(world: World, sequences: Sequences) -> Candidate | None:
    """The first creation that some ranks have left out, and all others have made alike."""
    for place in range(max(map(len, sequences.values()))):
        makers = {rank: row[place] for rank, row in sequences.items() if place < len(row)}
        before = min(creation.world_seq for creation in makers.values())
        absent = [
            rank
            for rank in world.ranks
            if rank not in makers and rank not in world.unrecorded and _went_on(world, rank, before)
        ]
        if not absent or not all(map(world.finished, world.ranks)):
            continue
        first = next(iter(makers.values()))
        waiting = tuple(sorted(makers))
        message = (
            f"{ranks_text(waiting)} {verb(waiting, 'creates', 'create')} {_creation_text(first)}"
            f"{at_site(first.site)}, but {ranks_text(absent)} {verb(absent, 'does', 'do')} not: "
            "all ranks must call new_group, members or not, or the next group that they create is "
            "not the same one to all"
        )
        finding = Finding(
            kind="group_mismatch",
            message=message,
            culprits=tuple(sorted(absent)),
            victims=waiting,
            severity="warning",
            group=GroupEvidence(printable(first.group[0], 120), "", first.ranks),
            ranks=_evidence(world, sequences, place, list(waiting)),
            observable_ns=first.time_ns,
            data={"index": place},
        )
        return Candidate(finding)
    return None


def _went_on(world: World, rank: int, world_seq: int) -> bool:
    """Returns whether the rank has called collectives of the world after the place of a creation,
    so that it had not left."""
    groups = world.ranks[rank].groups.values()
    return any(group.desc == DEFAULT_GROUP and group.issued > world_seq for group in groups)


def _same(one: Creation, other: Creation) -> bool:
    return one.group[0] == other.group[0] and (one.ranks is other.ranks or one.ranks == other.ranks)


def _judge(world: World, sequences: Sequences, place: int, choices: list[Choice]) -> Candidate:
    coming = [
        rank
        for rank in world.expected
        if len(sequences.get(rank, ())) <= place and world.may_come(rank)
    ]
    result = vote({index: choice.ranks for index, choice in enumerate(choices)}, len(coming))
    culprits = result.culprits
    if result.majority is None and len(choices) == 2:
        culprits = _who_skipped(sequences, place, choices) or culprits
    alone = all(len(choice.creation.ranks) == 1 for choice in choices)
    parts = [
        f"{ranks_text(choice.ranks)} {verb(choice.ranks, 'creates', 'create')} "
        f"{_creation_text(choice.creation)}"
        for choice in sorted(choices, key=lambda choice: (len(choice.ranks), choice.ranks))[:4]
    ]
    message = f"ranks disagree at group creation #{place}: {'; '.join(parts)}"
    victims = tuple(
        sorted(rank for choice in choices for rank in choice.ranks if rank not in culprits)
    )
    times = sorted(min(sequences[rank][place].time_ns for rank in c.ranks) for c in choices)
    creation = choices[0].creation
    finding = Finding(
        kind="group_mismatch",
        message=message,
        culprits=culprits,
        victims=victims,
        severity="warning" if alone else "error",
        group=GroupEvidence(printable(creation.group[0], 120), "", creation.ranks),
        seq=None,
        ranks=_evidence(world, sequences, place, chosen(culprits, victims)),
        details=_diff(sequences, place, result.parties[0][1][0], result.parties[1][1][0]),
        observable_ns=times[1],
        data={"index": place},
    )
    return Candidate(finding, ready_ns=finding.observable_ns + world.limits.hold_ns(result))


def _who_skipped(sequences: Sequences, place: int, choices: list[Choice]) -> tuple[int, ...] | None:
    """With as many ranks on either side: those whose next creation the others make later."""
    for choice, other in (choices, choices[::-1]):
        later = sequences[other.ranks[0]][place + 1 :]
        if any(choice.creation.ranks == creation.ranks for creation in later):
            return tuple(sorted(choice.ranks))
    return None


def _creation_text(creation: Creation) -> str:
    return f"group {printable(creation.group[0], 40)!r} of {ranks_text(creation.ranks)}"


def _evidence(
    world: World, sequences: Sequences, place: int, ranks: list[int]
) -> dict[int, RankEvidence]:
    found = {}
    for rank in ranks:
        creation = sequences[rank][place]
        text = f"new_group([{spans(creation.ranks)}])"
        site = creation.site or standing(world, rank).location
        found[rank] = RankEvidence(f"created group #{place}", text, site)
    return found


def _diff(sequences: Sequences, place: int, usual: int, odd: int) -> tuple[str, ...]:
    first = max(0, place - 3)

    def lines(rank: int) -> list[str]:
        return [f"new_group([{spans(c.ranks)}])" for c in sequences[rank][first : place + 6]]

    rows = difflib.unified_diff(lines(usual), lines(odd), lineterm="", n=3)
    body = [row for row in rows if not row.startswith(("---", "+++", "@@"))]
    return (f"--- rank {usual}, from #{first}", f"+++ rank {odd}, from #{first}", *body)


Part = tuple[int, ...]
MOST_SHOWN = 16
Made = Mapping[int, tuple[Part, Note]]
"""The part that each rank is in, and its note."""


def different_splits(world: World) -> list[Candidate]:
    """Returns at most one finding for each group."""
    splits: dict[tuple[GroupKey, int], dict[int, tuple[Part, Note]]] = {}
    for rank in world.eventful:
        for note in SplitNote.among(world.ranks[rank].notes):
            split = SplitNote.read(note.data)
            if split is not None and rank not in world.unrecorded:
                made = splits.setdefault((split.group, split.number), {})
                made[rank] = (split.ranks, note)
    found: dict[GroupKey, Candidate] = {}
    for (group, number), made in sorted(splits.items()):
        if group not in found and (candidate := _compared(world, group, number, made)):
            found[group] = candidate
    return list(found.values())


def _compared(world: World, group: GroupKey, number: int, made: Made) -> Candidate | None:
    makers: dict[Part, list[int]] = {}
    for rank, (part, _) in made.items():
        makers.setdefault(part, []).append(rank)
    against = [
        (part, rank) for part in makers for rank in part if rank in made and made[rank][0] != part
    ]
    view = world.view(next(iter(made)), group)
    if not against or view is None:
        return None
    disputed = {rank for part, rank in against} | {r for part, _ in against for r in makers[part]}
    culprits = _odd_part(made, makers, against) & disputed or disputed
    victims = tuple(sorted(disputed - culprits))
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} in {_text(part)}"
        for part, ranks in sorted(makers.items(), key=lambda item: (len(item[1]), item[1]))
        if not disputed.isdisjoint(ranks)
    ]
    times = sorted(note.time_ns for rank, (_, note) in made.items() if rank in disputed)
    coming = any(rank not in made and world.may_come(rank) for rank in view.ranks)
    undecided_ns = int(world.limits.undecided_s * SECOND_NS) if coming else 0
    finding = Finding(
        kind="group_mismatch",
        message=(
            f"ranks disagree at split {numbered(view.any, number)}: {'; '.join(parts[:4])}; "
            "all ranks must give split_group the same lists"
        ),
        culprits=tuple(sorted(culprits)),
        victims=victims,
        group=group_evidence(view.any),
        ranks={
            rank: RankEvidence(
                "called", f"split_group({_text(part)})", note.site, call_is=CallIs.OBJECT
            )
            for rank in chosen(tuple(sorted(culprits)), victims)
            for part, note in [made[rank]]
        },
        observable_ns=times[1],
        data={"index": number},
    )
    return Candidate(finding, ready_ns=finding.observable_ns + undecided_ns)


def _odd_part(
    made: Made, makers: Mapping[Part, list[int]], against: list[tuple[Part, int]]
) -> set[int]:
    """The fewest ranks that are in one part, and without whom all others agree; none where it may
    be these or those."""
    able = [
        set(makers[part])
        for part in makers
        if all(one == part or made[rank][0] == part for one, rank in against)
    ]
    able.sort(key=len)
    alone = len(able) == 1 or (len(able) > 1 and len(able[0]) < len(able[1]))
    return able[0] if alone else set()


def _text(part: Part) -> str:
    """In their order, for it may be what differs."""
    shown = [*map(str, part[:MOST_SHOWN]), *(["..."] if len(part) > MOST_SHOWN else [])]
    return f"[{', '.join(shown)}]" if part else "no list"
