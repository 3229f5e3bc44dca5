"""The report of what was taken for a replica of what, how that is known, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..diagnosis.facts.world import World
from ..diagnosis.limits import Limits
from ..diagnosis.rules.divergence import by_group_and_key, candidates
from ..record.replicas import EVALUATED
from ..record.snapshot import Rank, Replicas, Snapshot
from ..record.wording import OF_MESH, group_name, printable, ranks_text

_KNOWN = {
    "-1": "the program reduces their gradients",
    "-2": "they are DTensors, replicated along this axis",
    "-3": "the program reduces the gradients of others like them: a difference is a warning",
    "-5": "the program says so",
}
_USES = {
    "passing": "passes activations",
    "exchanging": "exchanges tokens",
    "summing": "reduces gradients",
    "unused": "carries no more than small numbers",
}
_MOST_NAMES = 8


def lines(ranks: Mapping[int, Rank]) -> Iterator[str]:
    """Yields the lines of the report."""
    snapshot = Snapshot(taken_ns=0, world_size=len(ranks), ranks=dict(ranks), finished=True)
    world = World(snapshot, None, Limits())
    members = by_group_and_key(ranks)
    if not members:
        yield (
            "no replicas are on record: run with `--check replicas`. Nothing is compared of a "
            "program that has no DDP model, and whose groups pass no activations and no gradients"
        )
    for (_, key), of_ranks in members.items():
        one_of = next(iter(of_ranks.values()))
        view = next((v for r, one in of_ranks.items() if (v := world.view(r, one.group))), None)
        group = group_name(view.any.key[0], view.any.desc) if view is not None else ""
        axis = one_of.axis or group.removeprefix(OF_MESH)
        names = list(dict.fromkeys(column.name for column in one_of.columns))
        moments = {row.moment for one in of_ranks.values() for row in one.digests()}
        yield (
            f'axis {printable(axis, 80)} (group "{group}"): {ranks_text(list(of_ranks))}; '
            f"{len(moments)} moments on record"
        )
        if one_of.use and one_of.use != EVALUATED:
            yield from _of_table(world, of_ranks)
        else:
            parameters = dict.fromkeys(
                column.name for column in one_of.columns if column.quantity != "hyperparameter"
            )
            how = _KNOWN.get(key.partition(".")[0], "DDP")
            how += ", when the model is evaluated" if one_of.use else ""
            yield f"  replicas: {_some(list(parameters or names))}"
            yield f"  known by: {how}"
        if any(row.alone for one in of_ranks.values() for row in one.digests()):
            yield "  left alone from a step on: ranks stepped without each other"


def _of_table(world: World, table: dict[int, Replicas]) -> Iterator[str]:
    one_of = next(iter(table.values()))
    yield f"  known by: equal at the start on a group that {_USES.get(one_of.use, one_of.use)}"
    rows = {rank: list(one.digests()) for rank, one in table.items()}
    shared = set.intersection(*({row.moment for row in of_rank} for of_rank in rows.values()))
    if not shared:
        yield "  left alone: all, for ranks have no moment in common"
        return
    first, last = min(shared), max(shared)
    start = {rank: one.values(first) or () for rank, one in table.items()}
    if len({len(values) for values in start.values()}) > 1 or not any(start.values()):
        yield "  left alone: all, for the start is not on record any more"
        return
    now = {
        rank: next(row for row in of_rank if row.moment == last) for rank, of_rank in rows.items()
    }
    watched = candidates(world, table, start, now)
    names = [column.name for column in one_of.columns]
    equal = [len(set(values)) == 1 for values in zip(*start.values(), strict=True)]
    rest = [place for place in range(len(names)) if place not in watched]
    apart = [names[place] for place in rest if not equal[place]]
    others = [names[place] for place in rest if equal[place]]
    yield f"  watched: {_some([names[place] for place in watched])}"
    yield f"  left alone, for they began apart (shards, experts): {_some(apart)}"
    yield f"  left alone, for equal seeds or zeros may have made them equal: {_some(others)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return printable(", ".join(names[:_MOST_NAMES]) + more, 400) or "none"
