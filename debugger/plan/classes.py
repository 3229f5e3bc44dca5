"""Ranks that do the same: their programs are equal, up to whom each of them means by it.

Of a group only its place among the rank's own groups and its size count, of a peer how far away in
the group it is, of a root whether it is the rank itself. So all stages in the middle of a pipeline
are one class, and the first and the last one are others.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from ..record.kinds import KINDS
from ..record.notes import (
    CaughtExceptionNote,
    DataExhaustedNote,
    ExceptionNote,
    ExitNote,
    OwnFindingNote,
)
from ..record.signature import ANY_SOURCE, Signature
from ..record.snapshot import CallSite, Group, GroupKey
from .program import Created, CutOff, Destroyed, Ended, Event, Made, Program, Waited

_PROGRAMS_OWN = (
    CaughtExceptionNote,
    DataExhaustedNote,
    ExceptionNote,
    ExitNote,
    OwnFindingNote,
)
TELLING = frozenset({*(one.KIND for one in _PROGRAMS_OWN), *KINDS})
"""Notes about what the program does; others are about the process, as which one has a store."""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do what the first of them does. `calls`: how many each makes."""

    ranks: tuple[int, ...]
    calls: int

    @property
    def first(self) -> int:
        return self.ranks[0]


def classes(programs: Mapping[int, Program]) -> list[RankClass]:
    """All ranks, by class, that of the lowest rank first."""
    known: dict[Hashable, int] = {}
    found: dict[bytes, list[int]] = {}
    for number, program in sorted(programs.items()):
        found.setdefault(_fingerprint(program, known), []).append(number)
    return [RankClass(tuple(ranks), len(programs[ranks[0]].calls)) for ranks in found.values()]


def _fingerprint(program: Program, known: dict[Hashable, int]) -> bytes:
    """A hash of all that the rank does. `known` numbers every distinct thing that any rank does."""
    places = {key: place for place, key in enumerate(program.groups)}
    signatures: dict[tuple[int, GroupKey], Hashable] = {}
    row = array("q")
    calls: dict[int, int] = {}
    for event in _with_creations_together(program):
        key: Hashable
        if isinstance(event, Made):
            call = event.call
            calls[call.number] = len(calls)
            memo = (id(call.signature), call.group)
            what = signatures.get(memo)
            if what is None:
                group = program.groups.get(call.group)
                what = signatures[memo] = _role(program.rank, call.signature, group)
            key = (places.get(call.group), what, call.site, call.is_async, call.state)
        elif isinstance(event, Waited):
            key = ("waits", calls.get(event.number, -1), event.site)
        elif isinstance(event, Creations):
            key = ("makes", event.site, event.sizes, event.own)
        else:
            key = _rare(event, places)
        row.append(known.setdefault(key, len(known)))
    for at, note in program.notes:
        if note.kind not in TELLING:
            continue
        key = ("note", at, note.kind, note.message, note.site)
        row.append(known.setdefault(key, len(known)))
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Creations:
    """Groups that one line makes, one after the other: which of them a rank is in is its place in a
    mesh. `own`: the sizes of those."""

    site: CallSite | None
    sizes: tuple[int, ...]
    own: tuple[int, ...]


def _with_creations_together(program: Program) -> Iterator[Event | Creations]:
    for line, run in groupby(program.events, _line_of_creation):
        if line is None:
            yield from run
            continue
        row = [event.creation.ranks for event in run if isinstance(event, Created)]
        own = tuple(len(ranks) for ranks in row if program.rank in ranks)
        yield Creations(line[0], tuple(map(len, row)), own)


def _line_of_creation(event: Event) -> tuple[CallSite | None] | None:
    return (event.creation.site,) if isinstance(event, Created) else None


def _role(rank: int, signature: Signature, group: Group | None) -> Hashable:
    """The call, with whom it means as seen from this rank."""
    ranks = group.ranks if group is not None else ()
    peer: Hashable = signature.peer
    if peer not in (None, ANY_SOURCE) and peer in ranks and rank in ranks:
        peer = (ranks.index(signature.peer or 0) - ranks.index(rank)) % len(ranks)
    return (
        signature.op,
        signature.tensors,
        tuple(sorted(signature.others)),
        signature.reduce_op,
        None if signature.root is None else signature.root == rank,
        tuple(sorted(signature.sends)),
        tuple(sorted(signature.receives)),
        peer,
        signature.tag,
        len(ranks),
    )


def _rare(event: Event, places: Mapping[GroupKey, int]) -> Hashable:
    match event:
        case Destroyed(group, site):
            return ("destroys", places.get(group), site)
        case Ended(code, signal):
            return ("ends", code, signal)
        case CutOff(why=why, site=site):
            return ("cut off", why, site)
    return ()
