"""Where two runs part by more than rounding, from values that were recorded."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from distdebug.plan.compare import values_document as document
from distdebug.plan.compare.values import NoCommonStepError, ValuesComparison, compare_values
from distdebug.record import values as record
from distdebug.record.replicas import GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER
from distdebug.record.signature import hash64
from distdebug.record.values import (
    BUFFER,
    COLLECTIVE,
    INPUT,
    LOSS,
    RANDOM,
    ROW,
    SKETCH,
    RankValues,
    ValueColumn,
    ValueWriter,
    read_values,
)

GRAPH = {"precision": "float32", "depth": 16, "summands": 256}
Rows = list[tuple[ValueColumn, bytes]]
Vector = Sequence[float]


def row(
    quantity: str, name: str, elements: Vector, whole: int = 0, dtype: str = "float32"
) -> tuple[ValueColumn, bytes]:
    """What a rank records of a tensor with these elements."""
    finite = [one for one in elements if math.isfinite(one)]
    sketch = [sum(elements[part::SKETCH]) for part in range(SKETCH)]
    digest = hash64(struct.pack(f"<{len(elements)}d", *elements))
    squares = sum(one * one for one in elements)
    extremes = (min(elements), max(elements))
    packed = ROW.pack(
        *(digest, len(elements) - len(finite), sum(elements), squares), *extremes, *sketch
    )
    column = ValueColumn(
        quantity, name, dtype, len(elements), whole or len(elements), "a.py:7:main"
    )
    return column, packed


class Run:
    """A run of a model `fc.weight`, of 16 elements, whose gradient is itself: by SGD."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self._folder = folder
        self.writers = []
        for rank in range(ranks):
            about = {"rank": rank, "world_size": ranks, "started_ns": 1, "every": 1}
            folder.mkdir(exist_ok=True)
            self.writers.append(ValueWriter(folder, rank, about))

    def add(self, step: int, rows: Callable[[int], Rows]) -> None:
        for rank, writer in enumerate(self.writers):
            writer.append(step, rows(rank), GRAPH)

    @property
    def ranks(self) -> dict[int, RankValues]:
        found, faults = read_values(self._folder)
        assert not faults
        return found


def trained(
    folder: Path,
    ranks: int = 1,
    steps: int = 5,
    noise: float = 0.0,
    change: Callable[[int, Rows], Rows] = lambda _step, rows: rows,
    shards: int = 1,
    lr: float = 0.1,
    since: int = 0,
    kinks: int = 0,
) -> dict[int, RankValues]:
    """A run. `noise`: the relative error of each gradient; `change(step, rows)` changes what is
    recorded; `shards`: into how many parts the ranks cut the model; `since`: it goes on from what
    another one was after so many steps."""
    run = Run(folder, ranks)
    source = random.Random(folder.name)
    weight = [1.0 + n / 16 for n in range(16)]
    for _ in range(since):
        weight = [one - lr * one for one in weight]

    def part(elements: Vector, rank: int) -> Vector:
        size = len(elements) // shards
        return elements[rank % shards * size :][:size]

    run.add(0, lambda rank: change(0, [row(PARAMETER, "fc.weight", part(weight, rank), 16)]))
    for step in range(1, steps + 1):
        gradient = [one * (1 + source.uniform(-noise, noise)) for one in weight]
        before = weight
        weight = [one - lr * other for one, other in zip(weight, gradient, strict=True)]

        loss = sum(one * one for one in before) / 2
        for rank, writer in enumerate(run.writers):
            rows = [
                row(LOSS, "loss", [loss]),
                row(GRADIENT, "fc.weight", part(gradient, rank), 16),
                row(HYPERPARAMETER, 'param_groups[0]["lr"]', [lr], dtype="float64"),
                row(PARAMETER, "fc.weight", part(weight, rank), 16),
            ]
            writer.append(step, change(step, rows), GRAPH | {"kinks": kinks})
    return run.ranks


def told(found: ValuesComparison) -> tuple[int, str, str, tuple[int, ...]]:
    assert found.first is not None
    return found.first.step, found.first.key.quantity, found.first.key.name, found.first.ranks


def text(found: ValuesComparison, a: Mapping[int, RankValues], b: Mapping[int, RankValues]) -> str:
    sides = (document.ValuesSide.of("good", a), document.ValuesSide.of("bad", b))
    document.as_json(found, sides)
    ElementTree.fromstring(document.plot(found))
    return "\n".join(document.lines(found, sides))


def scaled(at: int, quantity: str, factor: float) -> Callable[[int, Rows], Rows]:
    """Multiplies the values of a quantity from a step on."""

    def change(step: int, rows: Rows) -> Rows:
        made = []
        for column, packed in rows:
            if step >= at and column.quantity == quantity:
                digest, wrong, total, squares, *more = ROW.unpack(packed)
                more = [one * factor for one in more]
                packed = ROW.pack(digest + 1, wrong, total * factor, squares * factor**2, *more)
            made.append((column, packed))
        return made

    return change


def test_equal_bit_for_bit(tmp_path: Path) -> None:
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b")
    found = compare_values(a, b)
    assert (found.outcome, found.values, len(found.steps)) == ("equal", 21, 6)
    assert "EQUAL  bit for bit" in text(found, a, b)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rounding_on_other_numbers_of_ranks(tmp_path: Path, ranks: int) -> None:
    a, b = trained(tmp_path / "a"), trained(tmp_path / "b", ranks, noise=1e-7)
    found = compare_values(a, b)
    assert found.outcome == "rounding"
    assert compare_values(b, a).outcome == "rounding"
    assert "EQUAL  within rounding" in text(found, a, b)


def test_a_derivative_that_jumps(tmp_path: Path) -> None:
    """Other units of a ReLU are at work where their inputs cross zero by rounding."""
    sides = [trained(tmp_path / name, noise=3e-4, kinks=8) for name in "ab"]
    found = compare_values(*sides)
    assert found.outcome == "rounding"
    assert "1.4e-03 of gradients through ReLU" in text(found, *sides)
    smooth = [trained(tmp_path / name, noise=3e-4) for name in "cd"]
    assert told(compare_values(*smooth))[:2] == (1, GRADIENT)
    wrong = trained(tmp_path / "e", change=scaled(3, GRADIENT, 1.01), kinks=8)
    assert told(compare_values(sides[0], wrong))[:2] == (3, GRADIENT)


def test_shards_are_added_up(tmp_path: Path) -> None:
    a = trained(tmp_path / "a")
    assert compare_values(a, trained(tmp_path / "b", 2, shards=2)).outcome == "rounding"
    assert compare_values(a, trained(tmp_path / "c", 4, shards=2)).outcome == "rounding"
    wrong = trained(tmp_path / "d", 2, shards=2, change=scaled(3, GRADIENT, 2))
    assert told(compare_values(a, wrong)) == (3, GRADIENT, "fc.weight", ())


@pytest.mark.parametrize("quantity", [LOSS, GRADIENT, HYPERPARAMETER, PARAMETER])
def test_first_quantity_that_differs(tmp_path: Path, quantity: str) -> None:
    a = trained(tmp_path / "a")
    b = trained(tmp_path / "b", change=scaled(3, quantity, 1.001))
    found = compare_values(a, b)
    assert told(found)[:2] == (3, quantity)
    assert "a.py:7 in main" in text(found, a, b)
    assert compare_values(a, b, rtol=0.01).first is None


def test_one_rank_differs(tmp_path: Path) -> None:
    a = trained(tmp_path / "a", 3)
    run = Run(tmp_path / "b", 3)
    run.add(1, lambda rank: [row(GRADIENT, "fc.weight", [1.0 + (rank == 2)] * 16)])
    both = Run(tmp_path / "c", 3)
    both.add(1, lambda rank: [row(GRADIENT, "fc.weight", [1.0] * 16)])
    assert told(compare_values(both.ranks, run.ranks)) == (1, GRADIENT, "fc.weight", (2,))
    assert a.keys() == {0, 1, 2}


def test_bits_that_were_equal_must_stay_so(tmp_path: Path) -> None:
    """Where gradients are apart by rounding, an optimiser's step may be further apart."""
    change = scaled(1, PARAMETER, 1 + 1e-6)
    assert (
        told(compare_values(trained(tmp_path / "a"), trained(tmp_path / "b", change=change)))[1]
        == PARAMETER
    )
    noisy = trained(tmp_path / "c", noise=1e-6, change=change)
    assert compare_values(trained(tmp_path / "d"), noisy).outcome == "rounding"


def test_gradient_that_is_zero_but_for_rounding(tmp_path: Path) -> None:
    """As that of the bias of an attention's keys."""
    sides = []
    for name, noise in (("a", 3e-8), ("b", -5e-8)):
        run = Run(tmp_path / name)
        run.add(1, lambda _, noise=noise: [  # type: ignore[misc]
            row(GRADIENT, "key.bias", [noise] * 4), row(GRADIENT, "key.weight", [1.0] * 16),
        ])  # fmt: skip
        sides.append(run.ranks)
    assert compare_values(*sides).outcome == "rounding"


def test_not_finite(tmp_path: Path) -> None:
    sides = []
    for name, value in (("a", 1.0), ("b", math.inf)):
        run = Run(tmp_path / name)
        run.add(1, lambda _, value=value: [row(LOSS, "loss", [value])])  # type: ignore[misc]
        sides.append(run.ranks)
    found = compare_values(*sides)
    assert told(found)[:2] == (1, LOSS)
    assert "1 elements not finite" in text(found, *sides)
    assert compare_values(sides[1], sides[1]).first is None


def test_collectives_count_with_what_they_lead_to(tmp_path: Path) -> None:
    def rows(time: float, reduced: float, gradient: float) -> Callable[[int], Rows]:
        return lambda _: [
            row(COLLECTIVE, "all_reduce(max, float32[1]) #0", [time]),
            row(COLLECTIVE, "all_reduce(sum, float32[8]) #1", [reduced] * 8),
            row(GRADIENT, "fc.weight", [gradient] * 8),
        ]

    sides = []
    for name, last in (("a", (3.0, 1.0, 1.0)), ("b", (4.0, 2.0, 2.0))):
        run = Run(tmp_path / name)
        run.add(1, rows(1.0 if name == "a" else 2.0, 1.0, 1.0))
        run.add(2, rows(*last))
        sides.append(run.ranks)
    found = compare_values(*sides)
    assert told(found)[:3] == (2, COLLECTIVE, "all_reduce(sum, float32[8]) #1")
    assert found.without_effect == {"all_reduce(max, float32[1]) #0"}


def test_renamed_and_missing_parameters(tmp_path: Path) -> None:
    def rows(*names: str) -> Callable[[int], Rows]:
        return lambda _: [
            row(quantity, name, [float(n + 1)] * 8)
            for quantity in (GRADIENT, PARAMETER)
            for n, name in enumerate(names)
        ]

    sides = {}
    for name, names in {"a": ("fc", "head"), "b": ("module.fc", "out"), "c": ("fc",)}.items():
        run = Run(tmp_path / name)
        run.add(0, rows(*names))
        sides[name] = run.ranks
    found = compare_values(sides["a"], sides["b"])
    assert (found.outcome, found.notes) == ("equal", ["head of A is called out in B"])
    assert told(compare_values(sides["a"], sides["c"]))[2] == "head"


def test_micro_batches_are_averaged_or_added_up(tmp_path: Path) -> None:
    def losses(*values: float) -> dict[int, RankValues]:
        run = Run(tmp_path / f"{len(values)}-{values[0]}")
        run.add(1, lambda _: [row(LOSS, "loss", [one]) for one in values])
        return run.ranks

    assert compare_values(losses(3.0), losses(2.0, 4.0)).first is None
    assert compare_values(losses(3.0), losses(1.0, 2.0)).first is None
    assert told(compare_values(losses(3.0), losses(3.0, 4.0)))[1] == LOSS


def test_shift(tmp_path: Path) -> None:
    a = trained(tmp_path / "a", steps=6)
    resumed = Run(tmp_path / "b")
    for step in range(4):
        values = list(a[0].values(step + 3))
        resumed.add(step, lambda _, values=values: [  # type: ignore[misc]
            (one.column, ROW.pack(one.digest, one.nonfinite, one.sum, one.squares, one.least,
                                  one.most, *one.sketch))
            for one in values
        ])  # fmt: skip
    assert compare_values(a, resumed.ranks, shift=3).outcome == "equal"
    assert compare_values(a, resumed.ranks).first is not None
    with pytest.raises(NoCommonStepError, match="no step in common: A has steps 0 to 6"):
        compare_values(a, resumed.ranks, shift=30)


def test_other_programs(tmp_path: Path) -> None:
    run = Run(tmp_path / "b")
    run.add(0, lambda _: [row(PARAMETER, "conv.weight", [5.0] * 9)])
    with pytest.raises(NoCommonStepError, match=r"no step in common: A trains fc\.weight"):
        compare_values(trained(tmp_path / "a"), run.ranks)


def test_whole_numbers_are_equal_or_not(tmp_path: Path) -> None:
    sides = []
    for name, count in (("a", 7.0), ("b", 8.0)):
        run = Run(tmp_path / name)
        run.add(1, lambda _, count=count: [  # type: ignore[misc]
            row(BUFFER, "norm.num_batches_tracked", [count], dtype="int64")
        ])  # fmt: skip
        sides.append(run.ranks)
    assert told(compare_values(*sides))[:2] == (1, BUFFER)


def test_a_full_file_loses_its_oldest_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MOST_BYTES", 4096)
    ranks = trained(tmp_path / "a", steps=40)
    assert ranks[0].is_cut
    assert max(ranks[0].steps) == 40
    assert min(ranks[0].steps) > 10
    assert sum(one.stat().st_size for one in (tmp_path / "a").iterdir()) < 2 * 4096
    whole = trained(tmp_path / "b", steps=40)
    assert compare_values(ranks, whole).outcome == "equal"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"{}\n" + data,
        lambda data: b"[1]\n",
        lambda data: data.replace(b'"fc.weight"', b"7"),
        lambda data: data.replace(b'"parameter"', b'"nothing"'),
        lambda data: data[: len(data) // 2],
    ],
)
def test_damaged_files_are_refused_or_read_as_far_as_they_go(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    trained(tmp_path / "a")
    file = tmp_path / "a" / "pid-0.values"
    file.write_bytes(damage(file.read_bytes()))
    found, faults = read_values(tmp_path / "a")
    for one in found.values():
        assert all(list(one.values(step)) for step in one.steps)
    assert found or faults or not file.read_bytes()


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    def moments(step: int, rows: Rows) -> Rows:
        return [*rows, row(OPTIMIZER_STATE, "fc.weight: exp_avg", [1.0, 2.0 + step])]

    def goes_on(step: int, rows: Rows) -> Rows:
        frozen = [row(PARAMETER, "base.weight", [3.0])] if step == 0 else []
        return moments(step + 2, rows) + frozen

    def frozen_too(step: int, rows: Rows) -> Rows:
        return moments(step, rows) + ([row(PARAMETER, "base.weight", [3.0])] if not step else [])

    def lost(step: int, rows: Rows) -> Rows:
        return rows if step == 0 else goes_on(step, rows)

    a = trained(tmp_path / "a", change=frozen_too)
    right = trained(tmp_path / "right", steps=3, since=2, change=goes_on)
    assert compare_values(a, right, shift=2).outcome == "equal"
    wrong = compare_values(a, trained(tmp_path / "wrong", steps=3, since=2, change=lost), shift=2)
    assert wrong.first is not None
    assert (wrong.first.step, wrong.first.key.quantity) == (0, OPTIMIZER_STATE)
    assert wrong.first.other is None
    stale = compare_values(a, trained(tmp_path / "stale", steps=3, since=1, change=goes_on), 2)
    assert stale.first is not None
    assert (stale.first.step, stale.first.key.name) == (0, "fc.weight")
    sides = (document.ValuesSide.of("a", a), document.ValuesSide.of("b", a))
    text = "\n".join(document.lines(stale, sides))
    assert "part at step 2 of A, step 0 of B, with which it began: parameter fc.weight" in text


def test_what_explains_a_difference_is_none_by_itself(tmp_path: Path) -> None:
    def other(loss: float) -> Callable[[int, Rows], Rows]:
        def change(step: int, rows: Rows) -> Rows:
            causes = [row(INPUT, "input 0 of Net", [loss]), row(RANDOM, "torch", [4.0])]
            return [*causes, row(LOSS, "loss", [loss]), *rows[1:]] if step == 3 else rows

        return change

    a = trained(tmp_path / "a", change=other(1.0))
    same = trained(tmp_path / "same", change=lambda step, rows: other(1.0)(step, rows)[step == 3 :])
    assert compare_values(a, same).outcome == "equal"
    found = compare_values(a, trained(tmp_path / "b", change=other(2.0)))
    assert found.first is not None
    assert found.first.key.quantity == LOSS
    assert found.causes == ["input 0 of Net is another one on rank 0"]
