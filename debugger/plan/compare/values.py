"""Finds where two runs of a program part by more than rounding, from the values that they recorded.

A bound for each quantity follows from what may make it differ, and from how far that was apart:

- losses, gradients and results of collectives of the first step: from the unit roundoff `u` of
  the least precise dtype in which either run computes. Each of `depth` operations rounds its
  result, and adds up to `summands` numbers in at least float32, pairwise: `sqrt(depth) * (u +
  u_accumulated * log2(summands))` of its largest norm so far. (In small transformers it was 1e-2 to
  1e-1 of that.) The derivative of a ReLU jumps where its input crosses zero, as a share of about
  `u` of normally distributed ones does: for each such operation a gradient is apart by about the
  square root of that. (With bfloat16, by 4e-2 to 8e-2.) A gradient that is zero but for rounding,
  as that of the bias of an attention's keys, may have as much of the norm of all gradients as
  `CANCELLATION * u`;
- optimiser state and parameters: from how far their own gradients were apart until then (`r`).
  Optimisers that normalise make a full step of a gradient near zero: of normally distributed ones,
  apart by r, the steps are apart by about 2 sqrt(r). With the sketch's own error, and rounding with
  each step: `4 sqrt(r)` of the way that the parameter has gone so far;
- all later steps: a model that is as far apart as it goes in one step may have other gradients
  altogether, so that their bound grows by twice that share.

So what is equal bit for bit so far must stay equal but for rounding, and runs that part slowly, as
training in half precision does, are not taken for different. Of shards that cannot be compared one
by one, what can be added up is: see `_combined`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...record.replicas import BUFFER, GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER
from ...record.values import (
    CAUSES,
    COLLECTIVE,
    INPUT,
    LOSS,
    RankValues,
    Value,
    ValueColumn,
    renamed,
)
from ...record.wording import ranks_text

CANCELLATION = 4.0
HYPERPARAMETER_TOLERANCE = 1e-6
READING = 8.0
"""Norms and sums are read in float32, whose roundoff they may be off by so many times."""
ROUNDOFF = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Of the dtypes that have some; all others are whole numbers, or of eight bits."""
EIGHT_BITS = 2.0**-3
_PHASES = (GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER, BUFFER)
"""The quantities in causal order, behind losses and collectives, which stand as they came."""
Ranks = Mapping[int, RankValues]


Pair = tuple[int, tuple[int, int], Value, Value]
"""What is compared: the rank that is named, the rank in each run (-1: all together), the values."""


class NoCommonStepError(ValueError):
    """Nothing of the two runs can be compared."""


class ValueKey(NamedTuple):
    """A value of a step: the `turn`-th of its name, counted from 0."""

    quantity: str
    name: str
    turn: int


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A value by which two runs part. `difference` and `bound`: relative to the norm. `one` and
    `other`: the value in both, None where a run has none; with no `ranks`, of all ranks together.
    """

    step: int
    key: ValueKey
    ranks: tuple[int, ...]
    difference: float
    bound: float
    one: Value | None
    other: Value | None


@dataclass(slots=True)
class Furthest:
    """The value of one quantity, in one step, that is furthest apart, measured by its bound."""

    name: str
    difference: float
    bound: float

    @property
    def share(self) -> float:
        """The difference in shares of its bound."""
        return self.difference / self.bound if self.bound else math.inf if self.difference else 0.0


@dataclass(slots=True)
class ValuesComparison:
    """`beyond`: by quantity, the names of the values that are further apart than rounding explains
    in the step in which the runs part. `without_effect`: collectives that returned something else
    where nothing else differs. `causes`: inputs and random states that differ in that step."""

    dtypes: tuple[str, str]
    roundoff: float
    depth: int
    summands: int
    kinks: int
    shift: int = 0
    first: ValueDifference | None = None
    is_exact: bool = True
    values: int = 0
    steps: dict[int, dict[str, Furthest]] = field(default_factory=dict)
    beyond: dict[str, list[str]] = field(default_factory=dict)
    without_effect: set[str] = field(default_factory=set)
    causes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """`equal` (bit for bit), `rounding` (equal but for that) or `different`."""
        return "different" if self.first else "equal" if self.is_exact else "rounding"


def compare_values(a: Ranks, b: Ranks, shift: int = 0, rtol: float = 0.0) -> ValuesComparison:
    """Compares two runs. `shift`: step s of `b` is compared with step s + shift of `a`. `rtol`: a
    relative difference that is none, where the bound is less. Raises NoCommonStepError."""
    return _Comparing(a, b, shift, rtol).run()


def _of_step(ranks: Ranks, step: int) -> dict[ValueKey, dict[int, Value]]:
    """The values of a step by rank, in the order in which they came about."""
    found: dict[ValueKey, dict[int, Value]] = defaultdict(dict)
    for rank, values in ranks.items():
        turns: Counter[tuple[str, str]] = Counter()
        for one in values.values(step):
            name = one.column.quantity, one.column.name
            found[ValueKey(*name, turns[name])][rank] = one
            turns[name] += 1
    return found


def _precision(ranks: Ranks, first: Mapping[ValueKey, Mapping[int, Value]]) -> str:
    """Returns the least precise dtype that a run declares: that of most of its matrix products, of
    most of its parameters, or of the tensors that it communicates."""
    found = {dtype for one in ranks.values() for dtype in one.precisions}
    parameters: Counter[str] = Counter()
    for key, values in first.items():
        column = next(iter(values.values())).column
        if key.quantity == PARAMETER:
            parameters[column.dtype] += column.numel
        elif key.quantity == COLLECTIVE and column.numel > 1:
            found.add(column.dtype)
    found.update(dtype for dtype, _ in parameters.most_common(1))
    return max(found & ROUNDOFF.keys(), key=ROUNDOFF.__getitem__, default="float32")


class _Comparing:
    def __init__(self, a: Ranks, b: Ranks, shift: int, rtol: float) -> None:
        self._a, self._b, self._shift, self._rtol = a, b, shift, rtol
        steps = [{step for one in side.values() for step in one.steps} for side in (a, b)]
        self._common = sorted({step - shift for step in steps[0]} & steps[1])
        if not self._common:
            raise NoCommonStepError(_no_common(steps, shift))
        first = self._common[min(1, len(self._common) - 1)]
        dtypes = _precision(a, _of_step(a, first + shift)), _precision(b, _of_step(b, first))
        every = [*a.values(), *b.values()]
        self._roundoff = max(map(ROUNDOFF.__getitem__, dtypes))
        self.found = ValuesComparison(
            *(dtypes, self._roundoff),
            *(max(one.depth for one in every), max(one.summands for one in every)),
            *(max(one.kinks for one in every), shift),
        )
        self._is_cut_alike = True
        """Whether each rank has the same parts of all parameters in both runs."""
        self._names: dict[str, str] = {}
        """The names of parameters in `b`, by which they are called in `a`."""
        self._largest: dict[tuple[str, str], float] = {}
        self._before: dict[tuple[int, str, int], tuple[float, ...]] = {}
        self._way: dict[tuple[int, str, int], float] = {}
        """By run, name and rank."""
        self._apart: dict[str, float] = {}
        """How far the gradients of a parameter were apart at most."""
        self._parameters: dict[str, float] = {}
        """How far parameters are apart in this step."""
        self._model_apart = self._step_length = 0.0
        self._previous = self._common[0]
        self._gradients = 0.0

    def run(self) -> ValuesComparison:
        found = self.found
        for step in self._common:
            left = _of_step(self._a, step + self._shift)
            if self._begins(step):
                # Frozen parameters are on record where a run begins.
                frozen = _of_step(self._a, 0).items()
                left.update(
                    (key, of) for key, of in frozen if key.quantity == PARAMETER and key not in left
                )
            right = self._called_alike(_of_step(self._b, step), left, step)
            self._gradients = _norm_of_all((left, right))
            self._move(step, left, right)
            # A tensor-parallel rank has the loss of the whole batch, a data-parallel one of a part.
            self._is_cut_alike = self._is_cut_alike and all(
                left[key][rank].column.numel == one.column.numel
                for key, values in right.items()
                for rank, one in values.items()
                if key.quantity == PARAMETER and rank in left.get(key, ())
            )
            self._parameters.clear()
            beyond: list[ValueDifference] = []
            collectives: list[ValueDifference] = []
            for key in self._in_order(left, right, self._begins(step)):
                difference = self._judge(step, key, left.get(key, {}), right.get(key, {}))
                if difference is None or found.first is not None:
                    continue
                (collectives if key.quantity == COLLECTIVE else beyond).append(difference)
            if beyond:
                keys = list(left)
                early = [one for one in collectives if self._counts(one, keys)]
                found.first = (early or beyond)[0]
                found.causes = list(self._causes(left, right))
                for one in (*beyond, *collectives):
                    found.beyond.setdefault(one.key.quantity, []).append(one.key.name)
            else:
                found.without_effect.update(one.key.name for one in collectives)
            self._model_apart = math.hypot(*self._parameters.values())
        return found

    def _begins(self, step: int) -> bool:
        """Whether this is the beginning of `b`, where that has gone on from a state of `a`: there
        is no more than the state then."""
        return bool(self._shift) and step == 0

    def _causes(
        self, left: Mapping[ValueKey, dict[int, Value]], right: Mapping[ValueKey, dict[int, Value]]
    ) -> Iterator[str]:
        for key in left:
            if key.quantity not in CAUSES or key not in right or len(self._a) != len(self._b):
                continue
            pairs = ((rank, one, right[key].get(rank)) for rank, one in left[key].items())
            ranks = [rank for rank, one, other in pairs if other and one.digest != other.digest]
            if ranks:
                what = key.name if key.quantity == INPUT else f"the random state of {key.name}"
                yield f"{what} is another one on {ranks_text(ranks)}"

    def _counts(self, one: ValueDifference, keys: Sequence[ValueKey]) -> bool:
        """Whether a collective may be where the runs part: it came before the loss, and is no
        number that is of each run alone, as a time that was measured. What comes after the loss is
        gradients, which have names of their own."""
        losses = [place for place, key in enumerate(keys) if key.quantity == LOSS]
        is_tensor = one.one is not None and one.one.column.numel > 1
        early = keys.index(one.key) < min(losses, default=len(keys))
        return is_tensor and early and one.key.name not in self.found.without_effect

    def _called_alike(
        self,
        right: dict[ValueKey, dict[int, Value]],
        left: dict[ValueKey, dict[int, Value]],
        step: int,
    ) -> dict[ValueKey, dict[int, Value]]:
        """Returns the values of `b` under the names that `a` has for them. In the first step it is
        found out what was renamed: parameters of other names that are equal bit for bit."""
        if step == self._common[0]:
            mine = [one for one in left if one.quantity == PARAMETER]
            theirs = [one for one in right if one.quantity == PARAMETER]
            by_bits: dict[object, list[str]] = defaultdict(list)
            for key in theirs:
                if key not in left:
                    by_bits[_bits(right[key])].append(key.name)
            for key in mine:
                names = by_bits.get(_bits(left[key]), []) if key not in right else []
                if names:
                    self._names[names.pop(0)] = key.name
            if mine and theirs and not self._names and not {*mine} & {*theirs}:
                raise NoCommonStepError(
                    f"no step in common: A trains {mine[0].name} and others, B {theirs[0].name} "
                    "and others, and no parameter has the same name, or the same values"
                )
            for name, mine_name in self._names.items():
                self.found.notes.append(f"{mine_name} of A is called {name} in B")
        if not self._names:
            return right
        made = {}
        for key, values in right.items():
            head, colon, rest = key.name.partition(": ")
            name = self._names.get(head, head) + colon + rest
            if key.quantity in (COLLECTIVE, LOSS, HYPERPARAMETER) or name == key.name:
                made[key] = values
            else:
                made[key._replace(name=name)] = {r: renamed(v, name) for r, v in values.items()}
        return made

    def _in_order(
        self,
        left: Mapping[ValueKey, dict[int, Value]],
        right: Mapping[ValueKey, dict[int, Value]],
        begins: bool,
    ) -> list[ValueKey]:
        """The values that can be compared, in causal order: gradients from the loss back."""
        calls = [[key for key in side if key.quantity == COLLECTIVE] for side in (left, right)]
        same_world = len(self._a) == len(self._b)
        keys = [*left, *(key for key in right if key not in left)]
        place = {key: -n if key.quantity == GRADIENT else n for n, key in enumerate(keys)}
        phase = {quantity: n for n, quantity in enumerate(_PHASES, 1)}
        found = []
        for key in keys:
            both = key in left and key in right
            if key.quantity in CAUSES:
                fits = False
            elif begins:
                lost = key.quantity == OPTIMIZER_STATE and key in left
                fits = lost or (both and key.quantity == PARAMETER)
            elif key.quantity == COLLECTIVE:
                fits = both and same_world and calls[0] == calls[1]
            elif key.quantity == LOSS:
                fits = key.turn == 0
            else:
                fits = both or key.quantity in (GRADIENT, PARAMETER)
            if fits:
                found.append(key)
        return sorted(found, key=lambda key: (phase.get(key.quantity, 0), place[key]))

    # -- one value -------------------------------------------------------------------------------

    def _judge(
        self, step: int, key: ValueKey, mine: dict[int, Value], theirs: dict[int, Value]
    ) -> ValueDifference | None:
        found = self.found
        if not (mine and theirs):
            return self._only_in_one(step, key, mine or theirs, bool(mine))
        ranks: list[int] = []
        worst: tuple[float, float, Value, Value] | None = None
        for rank, places, one, other in self._pairs(step, key, mine, theirs):
            found.values += 1
            if key.quantity != COLLECTIVE:
                same = one.digest == other.digest and bool(one.sketch)
                found.is_exact = found.is_exact and same
            scale = self._scale(key, one, other)
            apart = _apart(one, other)
            allowed = max(self._allowed(step, key, places, one, other, scale), self._rtol * scale)
            relative = apart / scale if scale else apart
            bound = allowed / scale if scale else allowed
            if key.quantity == GRADIENT:
                own = max(one.norm, other.norm)
                share = min(1.0, apart / own) if own else 0.0
                self._apart[key.name] = max(self._apart.get(key.name, 0.0), share)
            made = Furthest(key.name, relative, bound)
            of_step = found.steps.setdefault(step, {})
            known = of_step.get(key.quantity, made)
            if key.quantity != COLLECTIVE and known.share <= made.share:
                of_step[key.quantity] = made
            if key.quantity == PARAMETER and math.isfinite(apart):
                self._parameters[key.name] = max(self._parameters.get(key.name, 0.0), apart)
            if apart > allowed:
                ranks += [rank] if rank >= 0 else []
                if worst is None:
                    worst = relative, bound, one, other
        return worst and ValueDifference(step, key, tuple(ranks), *worst)

    def _only_in_one(
        self, step: int, key: ValueKey, values: dict[int, Value], is_mine: bool
    ) -> ValueDifference | None:
        """A parameter that one run alone has, or a gradient other than zero."""
        one = next(iter(values.values()))
        early = step == self._common[0] and key.quantity in (PARAMETER, OPTIMIZER_STATE)
        if not (one.squares if key.quantity == GRADIENT else early):
            return None
        sides = (one, None) if is_mine else (None, one)
        return ValueDifference(step, key, tuple(values), math.inf, 0.0, *sides)

    def _pairs(
        self, step: int, key: ValueKey, mine: dict[int, Value], theirs: dict[int, Value]
    ) -> Iterator[Pair]:
        """Yields what is compared."""
        same_world = len(self._a) == len(self._b)
        if key.quantity == LOSS:
            yield from self._losses(step, same_world and self._is_cut_alike)
            return
        sizes = [{rank: one.column.numel for rank, one in side.items()} for side in (mine, theirs)]
        if same_world and sizes[0] == sizes[1]:
            yield from ((rank, (rank, rank), mine[rank], theirs[rank]) for rank in mine)
        elif len({*sizes[0].values(), *sizes[1].values()}) == 1:
            lists = sorted(mine), sorted(theirs)
            for number in range(max(map(len, lists))):
                rank, other = (ranks[number % len(ranks)] for ranks in lists)
                named = other if len(lists[0]) < len(lists[1]) else rank
                yield named, (rank, other), mine[rank], theirs[other]
        elif (both := _combined(list(mine.values()), list(theirs.values()))) is not None:
            yield -1, (-1, -1), *both

    def _losses(self, step: int, same_world: bool) -> Iterator[Pair]:
        """The losses of each rank, or where there are others or more of them, their mean; or the
        mean of their sums, where gradients of parts of a batch are added up."""
        sides: list[dict[int, list[Value]]] = []
        for ranks, at in ((self._a, step + self._shift), (self._b, step)):
            of_ranks = {rank: list(one.values(at)) for rank, one in ranks.items()}
            losses = {
                rank: [one for one in values if one.column.quantity == LOSS]
                for rank, values in of_ranks.items()
            }
            sides.append({rank: values for rank, values in losses.items() if values})
        mine, theirs = sides
        counts = [{rank: len(values) for rank, values in side.items()} for side in sides]
        if same_world and counts[0] == counts[1]:
            for rank, values in mine.items():
                yield from (
                    (rank, (rank, rank), *both) for both in zip(values, theirs[rank], strict=True)
                )
            return
        sums = [[sum(one.sum for one in values) for values in side.values()] for side in sides]
        of_sums = [sum(one) / len(one) for one in sums]
        means = [sum(one) / sum(count.values()) for one, count in zip(sums, counts, strict=True)]
        least = min((means, of_sums), key=lambda one: abs(one[0] - one[1]))
        columns = [next(iter(side.values()))[0].column for side in sides]
        yield -1, (-1, -1), _number(least[0], columns[0]), _number(least[1], columns[1])

    def _scale(self, key: ValueKey, one: Value, other: Value) -> float:
        """The largest norm that the value has had, in either run."""
        known = self._largest.get(key[:2], 0.0)
        norms = [value.norm for value in (one, other) if math.isfinite(value.norm)]
        scale = self._largest[key[:2]] = max([known, *norms])
        return scale

    def _allowed(
        self,
        step: int,
        key: ValueKey,
        places: tuple[int, int],
        one: Value,
        other: Value,
        scale: float,
    ) -> float:
        """The largest difference that rounding explains."""
        quantity = key.quantity
        dtypes = one.column.dtype, other.column.dtype
        if quantity == HYPERPARAMETER:
            return HYPERPARAMETER_TOLERANCE * scale
        if quantity == OPTIMIZER_STATE and key.name.endswith(": step"):
            return 0.0
        if not all("float" in dtype or "complex" in dtype for dtype in dtypes):
            return 0.0
        own = max(ROUNDOFF.get(dtype, EIGHT_BITS) for dtype in dtypes)
        steps = 1 + max(0, step - self._common[0])
        if quantity in (OPTIMIZER_STATE, PARAMETER):
            stored = (2 * own * steps + READING * min(own, ROUNDOFF["float32"])) * scale
            parameter = key.name.partition(": ")[0]
            if self._begins(step) or (step == self._common[0] and not self._shift):
                return stored  # nothing was computed yet
            known = self._apart.get(parameter)
            apart = self._first_step(own) + self._drift() if known is None else known
            share = 4 * math.sqrt(min(1.0, apart)) + 16 * own
            return stored + share * (
                scale if quantity == OPTIMIZER_STATE else self._way_of(key.name, places)
            )
        jumps = bound_of_jumps(max(own, self._roundoff), self.found.kinks)
        jumps *= quantity == GRADIENT
        allowed = (self._first_step(own) + jumps + self._drift()) * scale
        return allowed + CANCELLATION * self._roundoff * self._gradients * (quantity == GRADIENT)

    def _first_step(self, own: float) -> float:
        """The bound of the first step for a value whose dtype has this roundoff."""
        return bound_of_first_step(max(own, self._roundoff), self.found.depth, self.found.summands)

    def _drift(self) -> float:
        """Twice the share of one step by which the models are apart."""
        return 2 * self._model_apart / self._step_length if self._step_length else 0.0

    # -- how far the model has gone, and how far both are apart ----------------------------------

    def _move(self, step: int, *sides: Mapping[ValueKey, dict[int, Value]]) -> None:
        """Adds to the ways that parameters have gone, and finds out how far the whole model goes in
        a step at most."""
        squares = [0.0, 0.0]
        for side, rows in enumerate(sides):
            for key, values in rows.items():
                for rank, one in values.items() if key.quantity == PARAMETER else ():
                    place = side, key.name, rank
                    far = math.dist(self._before.get(place, one.sketch), one.sketch)
                    self._before[place] = one.sketch
                    if math.isfinite(far):
                        self._way[place] = self._way.get(place, 0.0) + far
                        squares[side] += far * far / len(values)
        length = math.sqrt(min(squares)) / max(1, step - self._previous)
        self._step_length, self._previous = max(self._step_length, length), step

    def _way_of(self, name: str, places: tuple[int, int]) -> float:
        """The way of a parameter, of the run in which it is longer; that of all shards together
        where its place is -1."""
        if places[0] >= 0:
            both = enumerate(places)
            return max(self._way.get((side, name, rank), 0.0) for side, rank in both)
        ways = ([way for (side, one, _), way in self._way.items() if (side, one) == (this, name)]
                for this in (0, 1))  # fmt: skip
        return max(math.hypot(*one) for one in ways)


def bound_of_first_step(roundoff: float, depth: int, summands: int) -> float:
    """Returns by how much of its norm a value may be off in the first step: after `depth`
    operations in a dtype of this unit roundoff, which add up to so many numbers."""
    accumulated = min(roundoff, ROUNDOFF["float32"])
    return math.sqrt(depth) * (roundoff + accumulated * math.log2(max(2, summands)))


def bound_of_jumps(roundoff: float, kinks: int) -> float:
    """Returns by how much of its norm a gradient may be off as well, after so many operations whose
    derivative jumps."""
    return 2 * math.sqrt(kinks * roundoff)


def _apart(one: Value, other: Value) -> float:
    """About the norm of the difference, or less: of what cannot be compared element by element, as
    much as norms, sums and extremes are apart. Infinite where other elements are not finite."""
    if one.nonfinite != other.nonfinite:
        return math.inf
    if one.nonfinite or (one.digest == other.digest and one.sketch and other.sketch):
        return 0.0
    apart = [abs(one.norm - other.norm), abs(one.least - other.least), abs(one.most - other.most)]
    apart.append(abs(one.sum - other.sum) / math.sqrt(max(1, one.column.numel)))
    # A flat tensor of gradients may have them in another order.
    if one.sketch and other.sketch and one.column.quantity != COLLECTIVE:
        apart.append(math.dist(one.sketch, other.sketch))
    return max(apart) if all(map(math.isfinite, apart)) else math.inf


def _combined(mine: Sequence[Value], theirs: Sequence[Value]) -> tuple[Value, Value] | None:
    """Returns what the shards of both sides come to: sums and squares are added up, and divided by
    how often all ranks together have the tensor. None where that is no whole number."""
    totals = [sum(one.column.numel for one in side) for side in (mine, theirs)]
    known = {one.column.whole for one in (*mine, *theirs) if one.column.whole > one.column.numel}
    of_all = max(known, default=min(totals))
    if not of_all or any(total % of_all for total in totals):
        return None
    made = []
    for side, total in zip((mine, theirs), totals, strict=True):
        times = total // of_all
        made.append(
            Value(
                column=side[0].column._replace(numel=of_all, whole=of_all),
                digest=0,
                nonfinite=sum(one.nonfinite for one in side) // times,
                sum=sum(one.sum for one in side) / times,
                squares=sum(one.squares for one in side) / times,
                least=min(one.least for one in side),
                most=max(one.most for one in side),
                sketch=(),
            )
        )
    return made[0], made[1]


def _number(value: float, column: ValueColumn) -> Value:
    wrong = int(not math.isfinite(value))
    return Value(column, 0, wrong, value, value * value, value, value, ())


def _bits(values: Mapping[int, Value]) -> object:
    one = next(iter(values.values()))
    return one.column.numel, one.digest


def _norm_of_all(sides: Sequence[Mapping[ValueKey, dict[int, Value]]]) -> float:
    """The norm of all gradients together, of the side where it is larger."""
    squares = [
        sum(max(one.squares for one in values.values())
            for key, values in side.items() if key.quantity == GRADIENT)
        for side in sides
    ]  # fmt: skip
    return math.sqrt(max((one for one in squares if math.isfinite(one)), default=0.0))


def _no_common(steps: Sequence[set[int]], shift: int) -> str:
    spans = (f"{min(one)} to {max(one)}" if one else "none" for one in steps)
    shifted = f"; --shift {shift} is what is added to those of B" if shift else ""
    return "no step in common: A has steps {}, B {}{}".format(*spans, shifted)
