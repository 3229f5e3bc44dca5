"""What is read of tensors, in which order, and in which steps anything is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from distdebug.rank.replicas import quantities, values
from distdebug.record.values import INPUT, LOSS, PARAMETER, Value, read_values


@pytest.fixture
def modules_hooks() -> Iterator[dict[int, Any]]:
    hooks: Any = nn.modules.module._global_forward_hooks
    before = set(hooks)
    yield hooks
    assert set(hooks) == before


def _row(tensor: torch.Tensor) -> Value:
    """What was recorded of a tensor, as it is read back."""
    [(column, packed)] = values._packed(values._read(values._parts(PARAMETER, "w", tensor, "")))
    digest, wrong, *numbers = values.ROW.unpack(packed)
    total, squares, least, most, *sketch = numbers
    return Value(column, digest, wrong, total, squares, least, most, tuple(sketch))


@pytest.mark.parametrize("elements", [1, 7, 64, 1 << 16, (1 << 16) + 3, 9 << 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_the_numbers_of_a_tensor(elements: int, dtype: torch.dtype) -> None:
    tensor = (torch.randn(elements, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    found = _row(tensor)
    plain = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor
    exact = plain.double()
    assert found.digest == quantities.digests([tensor])[0]
    assert found.nonfinite == 0
    assert found.sum == pytest.approx(float(exact.sum()), abs=1e-5 * elements)
    assert found.squares == pytest.approx(float(exact.square().sum()), rel=1e-5)
    assert (found.least, found.most) == (float(exact.min()), float(exact.max()))
    # The sketch of a difference is about as long as the difference.
    other = tensor.clone()
    other[elements // 2] += 64
    far = sum((a - b) ** 2 for a, b in zip(found.sketch, _row(other).sketch, strict=True)) ** 0.5
    assert far == pytest.approx(float((exact - _plain(other)).norm()), rel=0.02)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).flatten().double() if tensor.is_complex() else tensor.double()


def test_elements_that_are_not_finite_are_counted() -> None:
    assert _row(torch.tensor([1.0, float("nan"), float("-inf"), 2.0])).nonfinite == 2
    assert _row(torch.tensor([1.0, float("nan")], dtype=torch.float16)).nonfinite == 1


def test_tensors_of_one_shape_are_read_together_and_stay_in_order() -> None:
    shapes = [(3, 5), (2,), (3, 5), (70_000,), (2,), ()]
    tensors = [torch.randn(shape) for shape in shapes]
    parts = [
        part
        for number, one in enumerate(tensors)
        for part in values._parts(PARAMETER, str(number), one, "")
    ]
    first, second = values._read(parts[:4]), values._read(parts[4:], 4)
    assert len(first) == 3
    rows = values._packed([*second, *first])
    assert [column.name for column, _ in rows] == list("012345")
    assert [values.ROW.unpack(row)[0] for _, row in rows] == quantities.digests(tensors)


def test_modules_are_heard_of_in_recorded_steps_alone(
    tmp_path: Path, modules_hooks: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_back = []
    of_steps = values.training.on_optimizer_steps
    monkeypatch.setattr(
        values.training, "on_optimizer_steps", lambda *hooks: take_back.append(of_steps(*hooks))
    )
    monkeypatch.setattr(values.training, "on_saves", lambda _: None)
    backward = []
    monkeypatch.setattr(values.training, "on_backward", backward.append)
    recorder: Any = SimpleNamespace(writer=SimpleNamespace(rank=0))
    mine = values.ValueRecorder(recorder, tmp_path, 3)
    mine.observe()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    heard = []
    idle = len(modules_hooks) - 1
    for _ in range(7):
        heard.append(len(modules_hooks) - idle)
        loss = model(torch.ones(4, 2)).mean()
        backward[0](loss)
        loss.backward()
        optimizer.step()
    mine._switch_off(RuntimeError("the end"))
    take_back[0]()
    assert heard == [1, 0, 1, 0, 0, 1, 0]  # steps 1, 3 and 6
    [ranks, faults] = read_values(tmp_path)
    assert faults == []
    assert sorted(ranks[0].steps) == [0, 1, 3, 6]
    quantities_of = [[one.column.quantity for one in ranks[0].values(step)] for step in (1, 3, 6)]
    assert all(one[0] == INPUT and LOSS in one for one in quantities_of)
