"""Replicas that have drifted apart, from the digests that ranks put on record around their steps.

Digests are compared where two ranks took them at the same moment (see `snapshot.Digest`). The first
moment at which they differ is the finding; it waits for ranks that have not come so far, since they
decide who is in the minority, but not for those that are very late.

Of all that differs at that moment, the finding is about what comes first in a step: it is made of
hyper-parameters, gradients and the optimiser's state, and makes the parameters.

What only seems to be replicas, by what the program does with others like them, is a warning, where
it was equal on all ranks of the group before their first step (`_were_equal`). So is what a
table has (`_parted`): all parameters beside an optimiser's, on a group that the program uses. The
first digests tell what may be a replica there (`candidates`): what shards and experts are, which
are apart by design, shows in that they began so, or in that all of them began alike.

Ranks that all make steps on their own have no replicas (local SGD). Where others show that there
are some, a rank that has made one on its own is compared with them (`_compared`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, prod
from struct import pack

from ...record.dispute import vote
from ...record.replicas import (
    ACTIVATION,
    BUFFER,
    CONSTANT,
    ELSEWHERE,
    EVALUATED,
    EXCHANGING,
    FROZEN,
    GRADIENT,
    HYPERPARAMETER,
    MATRIX,
    OPTIMIZER_CLASS,
    OPTIMIZER_STATE,
    PARAMETER,
    PASSING,
    PLACED,
    RANDOM_STATE,
    SUMMING,
    UNUSED,
    is_context,
    number_of,
)
from ...record.signature import hash64
from ...record.snapshot import Column, Digest, GroupKey, Rank, Replicas
from ...record.wording import OF_MESH, at_site, group_name, printable, ranks_text, verb
from ..facts.world import World
from ..findings import Finding, GroupEvidence, RankEvidence, group_evidence
from ..limits import ROUNDING, SECOND_NS, Candidate

Moment = tuple[int, int]
MOST_PARTIES = 4
_MOST_CALLS = 256
_ADAMW = hash64("torch.optim.adamw.AdamW")
_SMALL = 8
"""Elements of a loss, or of a count."""
_COARSER = {"bfloat16": 1 << 16, "float16": 1 << 13}
"""The units in the last place of these dtypes, in those of float32."""
_LARGEST = 3.4028234663852886e38
"""The largest float32."""
PATIENCE = 8
"""After so many more moments at which they are apart, what may be replicas is no longer thought to
be averaged now and then."""
_IN_A_STEP = (HYPERPARAMETER, GRADIENT, OPTIMIZER_STATE, PARAMETER)
_WORDS = {
    PARAMETER: "parameter",
    GRADIENT: "the gradient of",
    OPTIMIZER_STATE: "the optimizer's state of",
    HYPERPARAMETER: "hyper-parameter",
    BUFFER: "the running statistic",
    ACTIVATION: "the input of",
}


@dataclass(frozen=True)
class ReplicaDifference:
    """The quantity that is the first to differ at a moment.

    `column` is None where it is not on record any more. `values`: by rank, what is in the column,
    or, where that is unknown, a total of all columns. `differing` are the columns of the quantity
    that differ, of `all_of`. `largest` is the largest difference of elements on record.
    """

    column: Column | None
    values: Mapping[int, int]
    differing: Sequence[Column] = ()
    all_of: int = 0
    largest: float | None = None


def differing_replicas(world: World) -> list[Candidate]:
    """Returns one finding for each set of replicas of which some differ."""
    members = by_group_and_key(world.ranks)
    _join_models(members)
    several = [replicas for replicas in members.values() if len(replicas) > 1]
    tables = [one for one in several if next(iter(one.values())).use]
    found = [_first_difference(world, one) for one in several if one not in tables]
    told = {
        (finding.group.name if finding.group else "", name)
        for finding in found
        if finding is not None
        for name in finding.data.get("parameters", ())
    }
    for table in tables:
        evaluated = next(iter(table.values())).use == EVALUATED
        parted = _evaluated(world, table) if evaluated else _parted(world, table)
        if parted is not None and told.isdisjoint(
            (parted.group.name if parted.group else "", name) for name in parted.data["parameters"]
        ):
            found.append(parted)
    return [Candidate(finding) for finding in found if finding is not None]


def by_group_and_key(ranks: Mapping[int, Rank]) -> dict[tuple[GroupKey, str], dict[int, Replicas]]:
    """Returns what ranks have on record of replicas: by rank, for each group and key."""
    members: dict[tuple[GroupKey, str], dict[int, Replicas]] = {}
    for number, rank in sorted(ranks.items()):
        for replicas in rank.replicas:
            if replicas.use != RANDOM_STATE:
                members.setdefault((replicas.group, replicas.key), {})[number] = replicas
    return members


def _join_models(members: dict[tuple[GroupKey, str], dict[int, Replicas]]) -> None:
    """Joins those of one DDP model of which ranks have other parameters: one that was tied, say."""
    models: dict[tuple[GroupKey, str], list[tuple[GroupKey, str]]] = {}
    for group, key in members:
        model, _, _ = key.rpartition(".")
        if model[:1].isdigit():
            models.setdefault((group, model), []).append((group, key))
    for keys in models.values():
        ranks = [rank for key in keys for rank in members[key]]
        if len(keys) > 1 and len(ranks) == len(set(ranks)):
            first, *others = keys
            for other in others:
                members[first] |= members.pop(other)


def _first_difference(world: World, replicas: dict[int, Replicas]) -> Finding | None:
    moments = _moments(replicas)
    seem = any(one.like for one in replicas.values())
    if seem and not _were_equal(world, replicas, moments):
        return None
    for moment, rows in moments.items():
        rows_of = _compared(rows)
        if len({row.total for row in rows_of.values()}) > 1:
            if _may_still_come(world, replicas, moments, moment, rows_of):
                return None
            if seem and (len(rows_of) < len(replicas) or any(r.apart for r in rows_of.values())):
                return None
            difference = _difference(replicas, moment, rows_of)
            is_input = difference is not None and _is_input(difference)
            # Each rank has computed an input by itself, in any precision, through many layers.
            coarser = max(_COARSER.values()) if is_input else 1
            if (seem or is_input) and _is_rounding(replicas, moment, difference, coarser):
                continue
            if difference is not None:
                return _finding(world, replicas, rows_of, difference)
    return _apart_by_mistake(world, replicas, moments)


def _moments(replicas: Mapping[int, Replicas]) -> dict[Moment, dict[int, Digest]]:
    """Returns the digests of each moment by rank, the first moment first."""
    moments: dict[Moment, dict[int, Digest]] = {}
    for rank, one in replicas.items():
        for row in one.digests():
            moments.setdefault(row.moment, {})[rank] = row
    return dict(sorted(moments.items()))


def _apart_by_mistake(
    world: World, replicas: dict[int, Replicas], moments: Mapping[Moment, Mapping[int, Digest]]
) -> Finding | None:
    """Returns a finding where all ranks have made a step of a DDP model alone, and no choice shows
    in that: they go on together as if they were equal, or they never do anything together.

    Ranks that average their parameters from time to time do so (`Digest.busy`), or at the end.
    """
    group = _group(world, replicas)
    is_ddp = next(iter(replicas.values())).key[:1].isdigit()
    every = [row for rows in moments.values() for row in rows.values()]
    if group is None or replicas.keys() != set(group.ranks) or any(row.busy for row in every):
        return None
    whole = [one for one, rows in moments.items() if len(rows) == len(replicas)]
    alone = [one for one in whole if all(row.alone for row in moments[one].values())]
    if not (is_ddp and alone):
        return None
    rows = dict(moments[alone[0]])
    differing = [one for one in whole if len({row.total for row in moments[one].values()}) > 1]
    difference = _difference(replicas, alone[0], rows) if alone[0] in differing else None
    if difference is None:
        return None
    together = [
        one
        for one in differing
        if one > alone[0] and not any(row.alone for row in moments[one].values())
    ]
    if together and (world.snapshot.finished or whole[-1] > together[0]):
        cause = "DDP's forward was not called before this step: the module that it wraps was"
        if all(row.no_sync for row in rows.values()):
            cause = "this step was below no_sync(), and later ones reduce gradients again"
    elif (
        world.snapshot.finished
        and len(alone) > 1
        and whole[-1] in differing
        and all(row.alone for row in every if row.step)
        and not _exchanged_since(world, replicas, moments[whole[-1]])
    ):
        cause = "DDP never reduced a gradient: always below no_sync()"
    else:
        return None
    finding = _finding(world, replicas, rows, difference)
    details = tuple(_details(difference, cause))
    return replace(finding, details=details, data={**finding.data, "likely_cause": cause})


def _exchanged_since(world: World, ranks: Collection[int], rows: Mapping[int, Digest]) -> bool:
    """Whether one of these ranks has made a call with more than small numbers after its digest, or
    may have: it is not on record any more."""
    for rank in ranks:
        history = world.ranks[rank].history
        calls = list(history.recent(_MOST_CALLS)) if history is not None else []
        since = [call for call in calls if call.issued_ns > rows[rank].time_ns]
        if history is None or (since and len(since) == len(calls) == _MOST_CALLS):
            return True
        shapes = [shape for call in since for _, shape in call.signature.tensors]
        if any(prod(shape) >= _SMALL for shape in shapes):
            return True
    return False


def _were_equal(
    world: World, replicas: dict[int, Replicas], moments: Mapping[Moment, Mapping[int, Digest]]
) -> bool:
    """Whether all ranks of the group had the same before their first step."""
    rows = next(iter(moments.values()), {})
    group = _group(world, replicas)
    if group is None or rows.keys() != set(group.ranks):
        return False
    return {row.step for row in rows.values()} == {0} and len({r.total for r in rows.values()}) == 1


def _evaluated(world: World, table: dict[int, Replicas]) -> Finding | None:
    """Returns a warning where all ranks of a group evaluate a model, by other statistics each."""
    group = _group(world, table)
    for moment, rows in _moments(table).items():
        if group is None or rows.keys() != set(group.ranks):
            continue
        difference = _difference(table, moment, rows)
        if difference is None or difference.column is None:
            continue
        finding = _finding(world, table, rows, difference)
        cause = (
            "each rank has its own: DDP makes them equal in its own forward alone, and not with "
            "broadcast_buffers=False"
        )
        return _in_doubt(finding, difference, rows, cause, evaluated=True)
    return None


def _parted(world: World, table: dict[int, Replicas]) -> Finding | None:
    """Returns a warning of what may be replicas by a table and has parted, and still is apart."""
    moments = _moments(table)
    group = _group(world, table)
    together = [one for one, rows in moments.items() if len(rows) == len(table)]
    if group is None or table.keys() != set(group.ranks) or not together:
        return None
    first, last = together[0], together[-1]
    start = _values(table, first)
    if {row.step for row in moments[first].values()} != {0} or len(start) < len(table):
        return None
    one_of = next(iter(table.values()))
    places = candidates(world, table, start, moments[last])
    now = _values(table, last)
    apart = [place for place in places if len({row[place] for row in now.values()}) > 1]
    for moment in [one for one in moments if one > first and apart]:
        values = _values(table, moment)
        differing = [place for place in apart if len({row[place] for row in values.values()}) > 1]
        if all(_is_small(table, moment, place) for place in differing):
            continue
        since = sum(moment < one <= last for one in together)
        if world.snapshot.finished or since >= PATIENCE:
            columns = [one_of.columns[place] for place in differing]
            values_of = {rank: row[differing[0]] for rank, row in values.items()}
            largest = _largest_difference(
                [table[rank] for rank in values], moment, columns[0], values_of
            )
            difference = ReplicaDifference(columns[0], values_of, columns, len(places), largest)
            finding = _finding(world, table, moments[moment], difference)
            causes = {places[place] for place in differing}
            steps = {row.step for row in moments[moment].values()}
            cause = "; ".join(sorted(causes))
            if random := _random_states(world, table, steps):
                cause += f"; or dropout: {random}"
            if len(steps) > 1 or finding.data["likely_cause"].startswith("one bit"):
                cause = finding.data["likely_cause"]
            return _in_doubt(finding, difference, moments[moment], cause.format(**finding.data))
    return None


def _random_states(world: World, replicas: dict[int, Replicas], steps: Collection[int]) -> str:
    """Returns which random states of these ranks differed in the last of these steps, since when;
    "" where none did, or nothing was drawn by them."""
    of_ranks = [
        one
        for rank, replica in replicas.items()
        for one in world.ranks[rank].replicas
        if (one.use, one.group) == (RANDOM_STATE, replica.group)
    ]
    moments = sorted({row.moment for one in of_ranks for row in one.digests()})
    since: dict[str, int] = {}
    drawn: dict[str, set[int]] = {}
    for moment in moments:
        rows = [values for one in of_ranks if (values := one.values(moment)) is not None]
        if len(rows) < len(replicas):
            continue
        for column, values in zip(of_ranks[0].columns, zip(*rows, strict=True), strict=True):
            drawn.setdefault(column.name, set()).add(values[0])
            if len(set(values)) > 1 and moment[0] <= max(steps):
                since.setdefault(column.name, moment[0])
            elif moment[0] <= max(steps):
                since.pop(column.name, None)
    return " and ".join(
        f"the random state of {device} differs since step {step}"
        for device, step in since.items()
        if len(drawn[device]) > 1 or len(moments) == 1
    )


def _values(table: dict[int, Replicas], moment: Moment) -> dict[int, Sequence[int]]:
    return {
        rank: values for rank, one in table.items() if (values := one.values(moment)) is not None
    }


def candidates(
    world: World,
    table: dict[int, Replicas],
    start: Mapping[int, Sequence[int]],
    last: Mapping[int, Digest],
) -> dict[int, str]:
    """Returns the places of the columns that may be replicas, and why they may have parted.

    Each was equal on all ranks at the start. Equal seeds make shards and experts so, too, and so do
    zeros. A group that passes activations has shards. They are told from replicas where matrices
    among them did begin apart: then what began alike was made so, unless it is a matrix of zeros,
    or stands in one module with what began apart. An axis of context parallelism has replicas of
    all parameters, whatever it passes, but for experts. A group that does not pass activations has
    replicas of what is reduced on another group that crosses it, such as the other dimension of a
    mesh; if the program never uses it, only where all that is trained is so, or where the gradients
    of other ranks are summed up along the same dimension.
    """
    one_of = next(iter(table.values()))
    of_ranks = [one.traits for one in table.values()]
    traits = [frozenset().union(*each) for each in zip(*of_ranks, strict=True)]
    equal = [len(set(values)) == 1 for values in zip(*start.values(), strict=True)]
    owners = [column.name.rpartition(".")[0] for column in one_of.columns]
    mixed = {owner for owner, same in zip(owners, equal, strict=True) if not same}
    places = [place for place, same in enumerate(equal) if same]
    found = {
        place: "it was frozen at the start, and no rank brings it together"
        for place in places
        if FROZEN in traits[place]
    }
    trained = [place for place, of_it in enumerate(traits) if FROZEN not in of_it]
    alike = [one for one in places if one in trained and PLACED not in traits[one]]
    random = [one for one in places if traits[one] & {MATRIX, CONSTANT} == {MATRIX}]
    if one_of.use in (PASSING, EXCHANGING):
        cause = "no collective reduced its gradient between backward and step on axis {axis}"
        if is_context(one_of.axis) and not _has_experts(world, table):
            return found | dict.fromkeys([place for place in places if place in trained], cause)
        if any(MATRIX in traits[place] and not equal[place] for place in trained):
            for place in alike:
                # An expert's norm begins as all norms do.
                kind = {CONSTANT} if one_of.use == EXCHANGING else {CONSTANT, MATRIX}
                zeros = traits[place] >= kind
                if owners[place] not in mixed and not zeros:
                    found[place] = cause
        return found
    crossed = [place for place in places if ELSEWHERE in traits[place]]
    idle = one_of.use == UNUSED and not any(row.busy for row in last.values())
    beside = "its gradient was reduced on another axis, and not on axis {axis}"
    if idle and {*crossed} >= {*trained} and not {*crossed}.isdisjoint(random):
        found |= dict.fromkeys(crossed, beside)
    elif one_of.use == SUMMING:
        found |= dict.fromkeys([place for place in crossed if place in random], beside)
    group = _group(world, table)
    if idle and group is not None and not {*alike}.isdisjoint(random):
        siblings = [
            view.any.desc
            for rank, of_rank in world.ranks.items()
            for one in of_rank.replicas
            if not one.use and (view := world.view(rank, one.group)) is not None
        ]
        if group.desc.startswith(OF_MESH) and group.desc in siblings:
            cause = "other ranks reduce gradients along axis {axis}, and these do not"
            found |= dict.fromkeys(alike, cause)
    return found


def _has_experts(world: World, table: dict[int, Replicas]) -> bool:
    """Whether another group of two of these ranks exchanges tokens: it may have experts on each."""
    others = [
        {*view.ranks}
        for rank, one_of in table.items()
        for one in world.ranks[rank].replicas
        if one.use == EXCHANGING
        and one.group != one_of.group
        and (view := world.view(rank, one.group)) is not None
    ]
    return any(len(one & table.keys()) > 1 for one in others)


def _is_small(table: dict[int, Replicas], moment: Moment, place: int) -> bool:
    """Whether the elements on record differ, and no more than by rounding in their dtype."""
    one_of = next(iter(table.values()))
    column = one_of.columns[place]
    if FROZEN in one_of.traits[place]:
        return False  # nothing computes it
    coarser = max(_COARSER.get(trait, 1) for trait in one_of.traits[place] | {""})
    largest = _largest_difference(list(table.values()), moment, column, {})
    difference = ReplicaDifference(column, {}, [column], 1, largest)
    return largest is not None and _is_rounding(table, moment, difference, coarser)


def _is_rounding(
    replicas: dict[int, Replicas],
    moment: Moment,
    difference: ReplicaDifference | None,
    coarser: int = 1,
) -> bool:
    """Whether it may come of the order of additions: what no call has made equal is computed by
    each rank, from the same where all have the whole activations."""
    if difference is None:
        return False
    column = difference.column
    samples = [one.samples(moment, column) for one in replicas.values()] if column else []
    most = max((abs(one) for row in samples for one in row if not isnan(one)), default=0.0)
    return (difference.largest or 0.0) <= ROUNDING * coarser * most


def _compared(rows: dict[int, Digest]) -> dict[int, Digest]:
    """Returns the rows of the ranks that must be equal at this moment.

    Ranks that have made a step on their own must be equal to the others only if the others are
    equal to each other. Two or more of the others that are equal are replicas, whatever the one
    beside them does. A single one proves that only together with a rank that has made just this
    step with it.
    """
    together = {rank: row for rank, row in rows.items() if not row.apart}
    if not together or len({row.total for row in together.values()}) > 1:
        return together
    if len(together) > 1:
        return rows
    return {rank: row for rank, row in rows.items() if not row.alone}


def _may_still_come(
    world: World,
    replicas: dict[int, Replicas],
    moments: Mapping[Moment, Mapping[int, Digest]],
    moment: Moment,
    rows: dict[int, Digest],
) -> bool:
    """Whether a rank of the group has not been there yet, and is not very late either."""
    late_ns = int(world.limits.notice_after_s * SECOND_NS)
    if world.snapshot.finished or world.now_ns - _observable_ns(rows) > late_ns:
        return False
    group = _group(world, replicas)
    come = {rank for one, rows in moments.items() if one >= moment for rank in rows}
    ranks = group.ranks if group else tuple(replicas)
    return any(rank in world.ranks and not world.ended(rank) and rank not in come for rank in ranks)


def _difference(
    replicas: dict[int, Replicas], moment: Moment, rows: dict[int, Digest]
) -> ReplicaDifference | None:
    """None where ranks have put other things on record, of which none differs."""
    known: dict[int, dict[Column, int]] = {}
    for rank in rows:
        values = replicas[rank].values(moment)
        if values is not None:
            known[rank] = dict(zip(replicas[rank].columns, values, strict=False))
    if len(known) < 2:
        return ReplicaDifference(None, {rank: row.total for rank, row in rows.items()})
    first, *others = known.values()
    common = [column for column in first if all(column in other for other in others)]
    differing = [
        column for column in common if any(other[column] != first[column] for other in others)
    ]
    for quantity in (ACTIVATION, *_order(rows, first), BUFFER):
        of_it = [column for column in differing if column.quantity == quantity]
        if of_it:
            values_of = {rank: values[of_it[0]] for rank, values in known.items()}
            count = sum(column.quantity == quantity for column in common)
            largest = _largest_difference(
                [replicas[rank] for rank in known], moment, of_it[0], values_of
            )
            return ReplicaDifference(of_it[0], values_of, of_it, count, largest)
    return None


def _steps_apart(rows: Mapping[int, Digest]) -> int:
    steps = [row.step for row in rows.values()]
    return max(steps) - min(steps)


def _order(rows: dict[int, Digest], values: Mapping[Column, int]) -> Sequence[str]:
    """In which order what differs at the same moment is taken for the cause of the rest.

    Parameters make state in turn where a weight decay is part of it, as it is not of AdamW's, and
    where a rank has left out a step both are what they were before: the parameters are what the
    program is about, then. Optimisers that are more steps apart have not begun together: one was
    made anew, and its state is the cause.
    """
    is_decoupled = values.get(Column(HYPERPARAMETER, OPTIMIZER_CLASS)) == _ADAMW
    decays = not is_decoupled and any(
        column.name.endswith('["weight_decay"]') and value
        for column, value in values.items()
        if column.quantity == HYPERPARAMETER
    )
    if decays or _steps_apart(rows) == 1:
        return (HYPERPARAMETER, GRADIENT, PARAMETER, OPTIMIZER_STATE)
    return _IN_A_STEP


def _finding(
    world: World,
    replicas: dict[int, Replicas],
    rows: dict[int, Digest],
    difference: ReplicaDifference,
) -> Finding:
    answers: dict[int, list[int]] = {}
    for rank, value in difference.values.items():
        answers.setdefault(value, []).append(rank)
    result = vote(answers, 0)
    first = rows[result.parties[0][1][0]]
    group = _group(world, replicas)
    name = group_name(group.name, group.desc) if group else None
    one_of = next(iter(replicas.values()))
    axis = one_of.axis or (name or "").removeprefix(OF_MESH)
    where = f' in group "{name}"' if name else ""
    # Those outside the majority come first. Where steps differ, these are the reason.
    most, *rest = result.parties
    parties = result.parties if result.majority is None else (*rest, most)
    steps = {row.step for row in rows.values()}
    is_number = difference.column is not None and _is_number(difference.column)
    is_input = _is_input(difference)
    texts = []
    for digest, ranks in parties[:MOST_PARTIES]:
        made = {rows[rank].step for rank in ranks}
        count = f" after {made.pop()} steps" if len(steps) > 1 and len(made) == 1 else ""
        shown = f"{number_of(digest):g}" if is_number else f"{digest:016x}"
        texts.append(f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {shown}{count}")
    when = _after(first.step, one_of.late, is_input)
    message = (
        f"replicas differ {when}{where}: {_which(difference)}; "
        f"{', '.join(texts)}{', ...' if len(parties) > MOST_PARTIES else ''}"
    )
    column = difference.column
    left_out = [] if column is None else _who_leaves_out(world, replicas, rows, column)
    cause = _likely_cause(rows, difference, left_out, one_of.late)
    if bit := _one_bit(replicas, first.moment, column):
        cause = f"{bit}: memory that has changed by itself, if nothing in the program writes there"
    if is_input and (random := _random_states(world, replicas, steps)):
        cause += f"; {random}"
    if column in [Column(GRADIENT, name) for one in replicas.values() for name in one.unreduced]:
        cause = "DDP does not have it: it was frozen (or did not exist) when DDP was made"
    finding = Finding(
        kind="divergence",
        message=message,
        culprits=result.culprits,
        victims=result.others,
        group=group,
        ranks={
            rank: RankEvidence(
                _after(rows[rank].step, one_of.late, is_input), None, rows[rank].site
            )
            for rank in (*result.culprits, *result.others)
        },
        details=tuple(_details(difference, cause)),
        observable_ns=_observable_ns(rows),
        data={
            "step": first.step,
            "quantity": column.quantity if column else PARAMETER,
            "name": _name(column) if column else None,
            "axis": printable(axis, 120) or None,
            "max_difference": difference.largest,
            "likely_cause": cause,
        },
    )
    if not one_of.like:
        return finding
    cause = "no rank's gradient of it was reduced on that group between backward and step"
    return _in_doubt(finding, difference, rows, cause, one_of.like)


def _in_doubt(
    finding: Finding,
    difference: ReplicaDifference,
    rows: Mapping[int, Digest],
    cause: str,
    like: Sequence[str] = (),
    evaluated: bool = False,
) -> Finding:
    """The same as a warning, of what seems to be a replica, by others like it or by its start."""
    first = min(rows.values(), key=lambda row: row.step)
    group = finding.group
    where = f' in group "{group_name(group.name, group.desc)}"' if group else ""
    own = [column.name for column in difference.differing]
    others = f", while those of {printable(', '.join(like), 300)} were" if like else ""
    what = f"parameters that were equal on all ranks{where} at the start differ"
    if evaluated:
        what = f"all ranks{where} evaluate a model, and its running statistics differ"
    message = (
        f"{what} {_after(first.step)}"
        f"{at_site(first.site)}: {printable(', '.join(own), 300)}; {cause}{others}: "
        "if each rank is meant to have its own, nothing is wrong"
    )
    data = {**finding.data, "likely_cause": cause, "parameters": own}
    return replace(
        finding, severity="warning", proven=False, message=message, details=(), data=data
    )


def _details(difference: ReplicaDifference, cause: str) -> Iterator[str]:
    column = difference.column
    if difference.largest is not None and column is not None and not _is_number(column):
        yield f"its elements differ by {difference.largest:g} or more"
    yield f"likely cause: {cause}"


def _is_input(difference: ReplicaDifference) -> bool:
    return difference.column is not None and difference.column.quantity == ACTIVATION


def _after(step: int, late: bool = False, during: bool = False) -> str:
    moment = f"after optimizer step {step}" if step else "before the first optimizer step"
    if during:
        moment = f"in the forward of optimizer step {step}"
    return f"{moment} of a precheck" if late else moment


def _name(column: Column) -> str:
    return printable(column.name, 120)


def _which(difference: ReplicaDifference) -> str:
    if difference.column is None:
        return "it is not on record any more what was the first to do so"
    what = _WORDS[difference.column.quantity]
    if difference.column.quantity == HYPERPARAMETER:
        return f"{what} {_name(difference.column)}"
    return (
        f'{what} "{_name(difference.column)}" is the first that does '
        f"({len(difference.differing)} of {difference.all_of})"
    )


def _is_number(column: Column) -> bool:
    return column.quantity == HYPERPARAMETER and column.name != OPTIMIZER_CLASS


def _largest_difference(
    replicas: Sequence[Replicas], moment: Moment, column: Column, values: Mapping[int, int]
) -> float | None:
    """None where none of the elements on record differs: it is another one, then."""
    if _is_number(column):
        numbers = [number_of(value) for value in values.values()]
        return max(numbers) - min(numbers)
    samples = [one.samples(moment, column) for one in replicas]
    if len({len(one) for one in samples}) > 1:
        return None
    apart = (max(row) - min(row) for row in zip(*samples, strict=True) if not any(map(isnan, row)))
    return max(apart, default=0.0) or None


def _one_bit(replicas: dict[int, Replicas], moment: Moment, column: Column | None) -> str:
    """Returns which bit of which element of a float32 parameter differs, where no other does of the
    elements on record; "" elsewhere."""
    one_of = next(iter(replicas.values()))
    if column is None or column not in one_of.columns:
        return ""
    place = one_of.columns.index(column)
    if place >= len(one_of.elements) or one_of.elements[place][0] != "float32":
        return ""
    rows = [samples for one in replicas.values() if (samples := one.samples(moment, column))]
    apart = [
        (index, set(values))
        for index, values in enumerate(zip(*rows, strict=False))
        if len(set(values)) > 1
    ]
    if len(apart) != 1 or len(apart[0][1]) != 2:
        return ""
    index, values = apart[0]
    if max(map(abs, values)) > _LARGEST:
        return ""
    one, other = (int.from_bytes(pack("<f", value), "little") for value in values)
    changed = one ^ other
    if changed.bit_count() != 1:
        return ""
    stride = max(1, one_of.elements[place][1] // len(rows[0]))
    return f"one bit ({changed.bit_length() - 1}) of element {index * stride}"


def _who_leaves_out(
    world: World, replicas: dict[int, Replicas], rows: dict[int, Digest], column: Column
) -> list[int]:
    """The ranks of which no optimiser has a parameter that one of other ranks has: what a step is
    made of is on record of those alone."""
    step = Column(GRADIENT, column.name)
    trained_by = {
        rank
        for rank in rows
        for one in world.ranks[rank].replicas
        if one.group == replicas[rank].group and step in one.columns
    }
    return [rank for rank in rows if rank not in trained_by] if trained_by else []


def _likely_cause(
    rows: dict[int, Digest], difference: ReplicaDifference, left_out: Sequence[int], late: bool
) -> str:
    """In words: what such a difference mostly comes of. `left_out`: by these ranks; `late`: in a
    precheck."""
    before_the_first = not any(row.step for row in rows.values())
    quantity = difference.column.quantity if difference.column else PARAMETER
    if quantity == ACTIVATION:
        return (
            "it is declared to be replicated (`DTensor.from_local()`, or the input layout of a "
            "parallel layer), and each rank has its own: other batches, or dropout with other seeds"
        )
    if quantity == HYPERPARAMETER:
        return "ranks set it by something that is not the same on all of them"
    if alone := [rank for rank, row in rows.items() if row.alone]:
        return (
            f"{ranks_text(alone)} made this step without the others: the last backward was within "
            "no_sync(), or gradients were not reduced before it"
        )
    if apart := [rank for rank, row in rows.items() if row.apart]:
        return f"{ranks_text(apart)} made a step before that the others did not make"
    if left_out:
        return f"no optimizer of {ranks_text(left_out)} has it"
    if _steps_apart(rows) > 1:
        fewest = min(row.step for row in rows.values())
        few = [rank for rank, row in rows.items() if row.step == fewest]
        return (
            f"the optimizer of {ranks_text(few)} has made {_steps_apart(rows)} steps fewer: it has "
            "left them out, or was made anew, without the state of the one before"
        )
    if _steps_apart(rows):
        return "a rank has left out a step, or made one more"
    if quantity == GRADIENT:
        return (
            "gradients were changed after they had been reduced, or not reduced at all: no_sync(), "
            "or a call of the module that DDP wraps"
        )
    if loaded := [rank for rank, row in rows.items() if row.loaded]:
        if len(loaded) == len(rows):
            return "what ranks have loaded before this step (`load_state_dict()`) is not the same"
        return f"{ranks_text(loaded)} alone loaded a state before this step"
    if before_the_first and late:
        return "they parted before the precheck: `--check replicas` finds at which step"
    if before_the_first:
        return "another seed, or a checkpoint that only some ranks have loaded"
    if quantity == OPTIMIZER_STATE:
        return "a checkpoint that only some ranks have loaded, or a write to the state"
    return (
        "a write past the optimizer (to `.data`, or within no_grad()), or memory that has changed "
        "by itself: gradients and hyper-parameters are equal"
    )


def _observable_ns(rows: dict[int, Digest]) -> int:
    return max(row.time_ns for row in rows.values())


def _group(world: World, replicas: dict[int, Replicas]) -> GroupEvidence | None:
    views: Iterator[GroupEvidence] = (
        group_evidence(view.any)
        for rank, one in replicas.items()
        if (view := world.view(rank, one.group)) is not None
    )
    return next(views, None)
