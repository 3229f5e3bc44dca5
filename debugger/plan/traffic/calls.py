"""The calls of a rank in program order, from whatever recorded them: a run's flight record, or the
program of a rank that was planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...record.snapshot import Call, CallSite, Creation, Group, GroupKey, Rank
from ...record.wording import UNDEFINED, group_name, site_text
from ..program import CutOff, Ended, Made, Program

UNKNOWN = "a group that is no longer on record"


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls of one rank. The first `lost` calls are no longer on record; `calls` are all
    others.

    `sites` are the lines where groups were made, as far as known. `end` says how it ended: ""
    where nobody knows, or it went on.
    """

    rank: int
    world_size: int
    calls: Sequence[Call]
    groups: Mapping[GroupKey, Group] = field(default_factory=dict)
    sites: Mapping[GroupKey, CallSite] = field(default_factory=dict)
    lost: int = 0
    end: str = ""

    def group_names(self) -> dict[GroupKey, str]:
        """Returns the name of each group of this rank: alike on all ranks, and in every run of the
        program, whatever number of ranks it has."""
        found = {}
        for key, group in self.groups.items():
            site = self.sites.get(key)
            found[key] = f"made at {site_text(site)}" if site is not None else "without a name"
            if group.desc not in ("", UNDEFINED):
                found[key] = group_name(key[0], group.desc)
        return found


def of_program(program: Program) -> RankCalls:
    """Returns those of a rank that was planned; in a plan the whole of it is on record."""
    calls, sites, end = [], {}, ""
    for event in program.events:
        match event:
            case Made(call):
                calls.append(call)
            case Ended(exit_code, signal):
                end = f"signal {signal}" if signal else f"exit code {exit_code}"
            case CutOff(why):
                end = f"cut off: {why}"
            case _:
                creation = getattr(event, "creation", None)
                if isinstance(creation, Creation) and creation.site is not None:
                    sites[creation.group] = creation.site
    return RankCalls(
        rank=program.rank,
        world_size=program.world_size,
        calls=calls,
        groups=dict(program.groups),
        sites=sites,
        end=end,
    )


def of_rank(rank: Rank) -> RankCalls:
    """Returns those of a rank whose flight record is there: its ring holds the last calls."""
    calls = rank.history.recent(rank.calls) if rank.history is not None else ()
    return RankCalls(
        rank=rank.rank,
        world_size=rank.world_size,
        calls=calls,
        groups=dict(rank.groups),
        sites={one.group: one.site for one in rank.creations if one.site is not None},
        lost=calls[0].number if calls else rank.calls,
        end="" if rank.exit_code is None else f"exit code {rank.exit_code}",
    )


def of_programs(programs: Mapping[int, Program]) -> list[RankCalls]:
    """Returns those of all ranks of a plan, in their order."""
    return [of_program(programs[rank]) for rank in sorted(programs)]


def of_ranks(ranks: Iterable[Rank]) -> list[RankCalls]:
    """Returns those of all ranks of a run, in their order."""
    return [of_rank(rank) for rank in sorted(ranks, key=lambda one: one.rank)]
