"""What a look at a job is, and how what it lets one suspect is put: the rules share this. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..diagnosis.findings import Finding, GroupEvidence
from ..record.majority import Vote, vote
from ..record.wording import printable, ranks_text, seconds, site_text, verb
from .in_store import in_store
from .stance import Stance
from .words import evidence

NOT_IN_RECORD = ("seq", "shape", "dtype", "reduce_op", "splits")


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks of a job on this host. `missing` should be here and have no process; `twice` are
    claimed by two processes; `never_came` have not come into the default group, by the job's store.
    `world_size` is 0 where nobody tells. `unserved`: where the job's store should be, and nobody
    listens. `age_s`: since the youngest of them was started."""

    ranks: Mapping[int, Stance]
    missing: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    never_came: tuple[int, ...] = ()
    world_size: int = 0
    unserved: str = ""
    age_s: float = 0.0


def finding(
    kind: str,
    message: str,
    culprits: Sequence[int],
    look: Look,
    cause: str | None = None,
    missing: tuple[int, ...] = (),
    details: Sequence[str] = (),
) -> Finding:
    blamed = set(culprits)
    waiting = tuple(
        rank
        for rank, one in sorted(look.ranks.items())
        if rank not in blamed and (one.waits or in_store(one))
    )
    world = tuple(range(look.world_size or max([*look.ranks, *blamed], default=0) + 1))
    groups = {look.ranks[rank].group for rank in look.ranks if look.ranks[rank].waits}
    return Finding(
        kind=kind,
        message=printable(message, 1000),
        culprits=tuple(culprits),
        victims=waiting,
        missing=missing,
        proven=False,
        cause=cause,
        group=GroupEvidence("0", "default_pg", world) if groups == {""} else None,
        ranks={rank: evidence(one) for rank, one in sorted(look.ranks.items())},
        details=details,
        side="host",
        not_in_record=NOT_IN_RECORD,
    )


def who(waiting: Mapping[int, Stance]) -> str:
    """`ranks 0,1,3 wait in all_reduce() at train.py:88 in step, for 312 s`."""
    longest = max(waiting, key=lambda rank: waiting[rank].still_s)
    one = waiting[longest]
    ranks = tuple(sorted(waiting))
    where = f" at {site_text(one.site)}" if one.site is not None else ""
    return (
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {one.call}{where}, for "
        f"{seconds(int(one.still_s * 1e9))}"
    )


def at(rank: int, waiting: Mapping[int, Stance], ranks: Sequence[int] = ()) -> str:
    one = waiting[rank]
    who = ranks_text(ranks or [rank])
    where = f" at {site_text(one.site)}" if one.site is not None else ""
    return f"{who} {verb(ranks or [rank], 'waits', 'wait')} in {one.call}{where}"


def vote_of(of: Mapping[int, Hashable]) -> Vote[Hashable]:
    """Which ranks are the same: the largest party first."""
    parties: dict[Hashable, list[int]] = {}
    for rank, what in of.items():
        parties.setdefault(what, []).append(rank)
    return vote(parties, still_to_come=0)


def calls_of(voted: Vote[Hashable], waiting: Mapping[int, Stance]) -> str:
    """In which call each party waits."""
    return "; ".join(at(ranks[0], waiting, ranks) for _, ranks in voted.parties)
