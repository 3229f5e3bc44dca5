"""Tells of which rank a dump is: what the dump itself tells, and the numbers in its file's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..record.limits import MOST_RANKS
from .flight_recorder import Dump

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class DumpFile:
    path: Path
    written_ns: int
    dump: Dump
    numbers: tuple[int, ...]
    after_rank: tuple[bool, ...]
    """Of each number of the name, whether the word "rank" stands before it."""

    @property
    def name(self) -> str:
        """The file's, or, where that has no number, with its folder's: `rank_3/trace`."""
        return name_of(self.path)


def name_of(path: Path) -> str:
    return path.name if NUMBER.search(path.name) else f"{path.parent.name}/{path.name}"


def ranks_of(files: Sequence[DumpFile]) -> list[int | None]:
    """Each file's rank: what the dump tells, or else the number of its name, counted from the end,
    that tells all files apart and fits the groups that the dumps are in. Numbers that contradict
    one of the dumps are ranks of none."""
    most = max((len(file.numbers) for file in files), default=0)
    lists: dict[int, frozenset[int]] = {}
    told = [_told(file.dump, lists) for file in files]
    best: tuple[tuple[int, int, int, int, int], list[int | None]] | None = None
    for place in range(1, most + 1):
        ranks = [file.numbers[-place] if len(file.numbers) >= place else None for file in files]
        ranks = [rank if rank is not None and rank < MOST_RANKS else None for rank in ranks]
        known = [rank for rank in ranks if rank is not None]
        wrong = sum(
            rank is not None
            and (its != rank if its is not None else not fits(file.dump, rank, lists))
            for file, rank, its in zip(files, ranks, told, strict=True)
        )
        doubled = len(known) - len(set(known))
        unnamed = sum(len(file.numbers) < place or not file.after_rank[-place] for file in files)
        score = (wrong, ranks.count(None), doubled, unnamed, place)
        if best is None or score < best[0]:
            best = (score, ranks)
    if best is None or best[0][0]:
        return list(told)
    return [rank if its is None else its for its, rank in zip(told, best[1], strict=True)]


def _told(dump: Dump, known: dict[int, frozenset[int]]) -> int | None:
    """The rank that a dump itself tells: a message has its own end as a rank of its group, and a
    rank makes no group that it is not in, so that it may be the only one that is in all of them."""
    for entry in () if dump.plain else dump.entries:
        ranks = dump.groups.get(entry.group, ()) if entry.group[0] else ()
        if entry.own is not None and entry.own < len(ranks):
            return ranks[entry.own]
    if not dump.listed or len(dump.groups) < 2:
        return None
    smallest = min(dump.groups.values(), key=len)
    inside = (rank for rank in smallest if fits(dump, rank, known))
    rank = next(inside, None)
    return rank if next(inside, None) is None else None


def fits(dump: Dump, rank: int, known: dict[int, frozenset[int]]) -> bool:
    """Whether a rank can have made this dump: it is in all of its groups, whether or not it has
    called in them. gloo's "" is not to be trusted: it may have ranks of a group."""
    if rank >= MOST_RANKS:
        return False
    for (name, _), ranks in dump.groups.items():
        if name and id(ranks) not in known:
            known[id(ranks)] = frozenset(ranks)
        if name and rank not in known[id(ranks)]:
            return False
    return True
