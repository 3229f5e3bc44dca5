"""`--values`: puts on record what the losses, collectives, gradients, hyper-parameters, optimiser
state, parameters and buffers of this process are, at one step in K, for a comparison of two runs.

A step is over when an optimiser makes one; where several optimisers take turns, when the first of
them is about to step again. What was there before the first step is of step 0. Each tensor is read
where it lies, some ten times, and all numbers of a step come from a device together.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ...record.replicas import BUFFER, GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER
from ...record.values import (
    COLLECTIVE,
    INPUT,
    LOSS,
    RANDOM,
    ROW,
    SKETCH,
    STOP,
    ValueColumn,
    ValueWriter,
)
from ..checks.non_finite import After, Inspect
from ..log.rank_log import report_own_fault
from ..record import call_site
from ..record.describe import tensors_in
from ..record.recorder import GroupRecord, Known, Recorder
from ..torch_private import training
from ..torch_private.operator_calls import tensors_of
from . import declarations, quantities
from .reduced_gradients import signature_of

MOST_CALLS = 1024
"""Calls of one step whose results are looked at."""
MOST_CALL_BYTES = 256 << 20
"""The most bytes of such results in one step."""
ROW_ELEMENTS = 1 << 16
ROWS_AT_ONCE = 4
_SEED = 0x51675
Part = tuple[ValueColumn, Tensor]
"""What is to be read, as which column."""


@dataclass(frozen=True, slots=True)
class TensorReadings:
    """The numbers of tensors of one shape, still on their device. `places`: where they stand among
    all of their step; `digests`: int64 (tensors,); `numbers`: float64 (tensors, 5 + `SKETCH`)."""

    places: Sequence[int]
    columns: Sequence[ValueColumn]
    digests: Tensor
    numbers: Tensor


@dataclass(slots=True)
class TrainedParameters:
    """The parameters of one optimiser, by name, and the module that has most of them."""

    seen: tuple[int, ...]
    trained: list[tuple[str, Tensor]]
    root: weakref.ref[nn.Module] | None
    others: list[tuple[str, weakref.ref[nn.Module]]]
    """Modules that it does not train, by the names of their classes: averages of the model, say."""


class ValueRecorder:
    """Reads the values of this process."""

    def __init__(self, recorder: Recorder, directory: Path, every: int) -> None:
        self._recorder = recorder
        self._directory = directory
        self._every = every
        stop = os.environ.get(STOP, "")
        self._stop = int(stop) if stop.isdecimal() else 1 << 62
        self._lock = threading.RLock()
        self._off = False
        self._take_back: Callable[[], None] | None = None
        self._adopt()

    def _adopt(self) -> None:
        """This process, which may have been forked, has made no steps yet."""
        self._pid = os.getpid()
        self._writer: ValueWriter | None = None
        self._known: Any = WeakIdKeyDictionary()  # by id: an optimiser need not be hashable
        self._step = 0
        self._stepped: list[int] = []
        self._taking_turns = 1
        self._graph: dict[str, Any] = {}
        self._scalers: list[Any] = []
        self._clear()

    def _clear(self) -> None:
        self._pending: list[TensorReadings] = []
        self._count = 0
        self._calls: Counter[str] = Counter()
        self._call_bytes = 0

    def observe(self) -> None:
        """Begin."""
        training.on_optimizer_steps(self._before_step, self._after_step)
        training.on_backward(self._backward)
        training.on_saves(self._saved)
        self._arm()

    def _arm(self) -> None:
        """Hears of calls of modules in steps that are put on record: a hook costs each of them some
        microseconds."""
        due = not self._off and self._is_due(self._coming())
        if due and self._take_back is None:
            self._take_back = training.on_module_calls(lambda *_: None, self._forward)
        elif not due and self._take_back is not None:
            self._take_back()
            self._take_back = None

    # -- losses and collectives ------------------------------------------------------------------

    def _coming(self) -> int:
        """The step that this process works on."""
        return self._step + (len(self._stepped) >= self._taking_turns or not self._stepped)

    def _looks(self) -> bool:
        """Whether the step that this process works on is one of those that are put on record."""
        if self._pid != os.getpid():
            self._adopt()
        return not self._off and self._is_due(self._coming()) and not training.capturing()

    def _forward(
        self, module: nn.Module, args: Any, kwargs: Any, _output: Any, outermost: bool
    ) -> None:
        try:
            if outermost and self._looks() and next(module.parameters(), None) is not None:
                for number, one in enumerate(tensors_of((args, kwargs))):
                    self._add(INPUT, f"input {number} of {_inner(module)}", one, "")
        except Exception as error:
            self._switch_off(error)

    def _saved(self) -> None:
        if self._writer is not None and not self._off and self._pid == os.getpid():
            self._writer.saved(self._step)

    def _is_due(self, step: int) -> bool:
        return step <= 1 or step % self._every == 0

    def _backward(self, tensors: Any) -> None:
        try:
            if self._looks() and not torch.compiler.is_compiling():
                site = _site(sys._getframe(1))
                self._add(RANDOM, "torch", torch.get_rng_state(), "")
                for one in tensors_in(tensors if isinstance(tensors, Tensor) else list(tensors)):
                    if not self._graph:
                        names = ("precision", "depth", "summands", "kinks")
                        self._graph = dict(zip(names, training.graph_of(one), strict=True))
                    self._add(LOSS, "loss", one, site)
        except Exception as error:
            self._switch_off(error)

    def before(self, record: GroupRecord) -> Inspect:
        """Returns what looks at the calls of this group."""

        def look(_method: str, args: tuple[Any, ...], known: Known, _seq: int) -> After | None:
            if not self._looks():
                return None
            signature = signature_of(known.text)
            root = signature.root
            if signature.op == "send" or (
                signature.op == "reduce" and root != record.ranks[record.group_rank]
            ):
                return None
            group = record.shown_name
            with self._lock:
                number, self._calls[group] = self._calls[group], self._calls[group] + 1
            name = f'{signature} #{number} of this step in group "{group}"'
            site = _site(sys._getframe(1))
            outputs = [one for one in tensors_in(args[0]) if one.is_floating_point()]

            def after() -> None:
                try:
                    for one in outputs:
                        self._call_bytes += one.nbytes
                        if number < MOST_CALLS and self._call_bytes <= MOST_CALL_BYTES:
                            self._add(COLLECTIVE, name, one, site)
                except Exception as error:
                    self._switch_off(error)

            return after

        return look

    def _add(self, quantity: str, name: str, tensor: Tensor, site: str) -> None:
        with torch.no_grad(), self._lock:
            self._keep(_parts(quantity, name, tensor, site))

    def _keep(self, parts: Iterable[Part]) -> None:
        read = _read(parts, self._count)
        self._pending += read
        self._count += sum(len(one.places) for one in read)

    # -- steps -----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._step <= 1 or self._coming() > self._stop or self._pid != os.getpid():
            self._guarded(optimizer, sys._getframe(1), made=False)

    def _after_step(self, optimizer: Optimizer) -> None:
        self._guarded(optimizer, sys._getframe(1), made=True)

    def _guarded(self, optimizer: Optimizer, frame: Any, made: bool) -> None:
        if self._pid != os.getpid():
            self._adopt()
        if self._off or training.cannot_look(frame):
            return
        if not made and self._coming() > self._stop:
            os._exit(0)  # as one who is killed does: nothing that comes at a program's end is made
        try:
            with torch.no_grad(), self._lock:
                if made:
                    self._made(optimizer, frame)
                elif self._step <= 1 and optimizer not in self._known:
                    site, rows = _site(frame), self._state(optimizer, before=True)
                    self._write(0, _read(part for row in rows for part in _parts(*row, site)))
        except Exception as error:
            self._switch_off(error)

    def _made(self, optimizer: Optimizer, frame: Any) -> None:
        number = id(optimizer)
        if number in self._stepped or not self._stepped:
            self._taking_turns = max(1, len(self._stepped))
            self._stepped = []
            self._step += 1
        self._stepped.append(number)
        if self._is_due(self._step):
            site = _site(frame)
            rows = self._state(optimizer, before=False)
            self._keep(part for row in rows for part in _parts(*row, site))
            self._write(self._step, self._pending)
        self._clear()
        self._arm()

    def _write(self, step: int, rows: Sequence[TensorReadings]) -> None:
        if self._writer is None:
            rank = max(self._recorder.writer.rank, 0)
            size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            about = {"rank": rank, "world_size": size, "every": self._every}
            about["started_ns"] = time.time_ns()
            self._writer = ValueWriter(self._directory, self._pid, about)
        self._writer.append(step, _packed(rows), self._graph)

    def _switch_off(self, error: Exception) -> None:
        self._off = True
        self._clear()
        self._arm()
        report_own_fault("recording values", error)

    def _state(self, optimizer: Optimizer, before: bool) -> Iterator[tuple[str, str, Any]]:
        """Yields what an optimiser's step was made of, and what it has made, by quantity and name;
        `before`: what is there before its first one."""
        known = self._named(optimizer)
        if not before:
            for name, one in known.trained:
                if one.grad is not None:
                    yield GRADIENT, name, one.grad
            scales = [("loss scale", float(one.get_scale())) for one in self._scalers]
            for name, number in (*quantities.hyperparameters(optimizer), *scales):
                yield HYPERPARAMETER, name, number
        for name, one in known.trained:
            kept = optimizer.state.get(one) or {}
            for key in sorted(kept, key=str) if isinstance(kept, dict) else ():
                yield OPTIMIZER_STATE, f"{name}: {key}", kept[key]
        root = known.root() if known.root is not None else None
        frozen = root.named_parameters() if before and root is not None else ()
        for name, one in (*known.trained, *(row for row in frozen if not row[1].requires_grad)):
            yield PARAMETER, name, one
        for name, one in root.named_buffers() if root is not None else ():
            yield BUFFER, name, one
        for of, reference in () if before else known.others:
            other = reference()
            kept = (*other.named_parameters(), *other.named_buffers()) if other is not None else ()
            for name, one in kept:
                yield BUFFER, f"{of}: {name}", one

    def _named(self, optimizer: Optimizer) -> TrainedParameters:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        seen = tuple(map(id, parameters))
        known: TrainedParameters | None = self._known.get(optimizer)
        if known is None or known.seen != seen:
            names, wanted = declarations.find(optimizer), set(seen)
            shares = [
                (sum(id(one) in wanted for one in root.parameters()), root)
                for root in declarations.roots(declarations.modules())
            ]
            most, root = max(shares, key=lambda one: one[0], default=(0, None))
            trained = [(names[id(one)], one) for one in parameters]
            mine = root if most else None
            counts = Counter(_inner(one) for _, one in shares if one is not mine)
            others = [
                (_inner(one), weakref.ref(one))
                for share, one in shares
                if not share and one is not mine and counts[_inner(one)] == 1
            ]
            known = TrainedParameters(
                seen, trained, weakref.ref(mine) if mine is not None else None, others
            )
            self._known[optimizer] = known
            scalers = [one for one in training.living(torch.amp.GradScaler) if one.is_enabled()]
            self._scalers = scalers if len(scalers) == 1 else []
        return known


def _inner(module: nn.Module) -> str:
    """The name of a module's class, below DDP."""
    inner: Any = module.module if isinstance(module, training.DDP) else module
    return type(inner).__name__


def _site(frame: Any) -> str:
    found = call_site.find(frame)
    if found is None:
        return ""
    return f"{found.f_code.co_filename}:{found.f_lineno}:{found.f_code.co_name}"


def _parts(quantity: str, name: str, value: Any, site: str) -> list[Part]:
    """Returns what is read of a tensor, of a DTensor its local part, or of a number; nothing where
    that cannot be read, or is a summand of what all ranks together have."""
    if isinstance(value, (int, float)):
        value = torch.tensor(value, dtype=torch.float64)
    part = quantities.local(value)
    if part is None or (part is not value and any(one.is_partial() for one in value.placements)):
        return []
    dtype = str(part.dtype).removeprefix("torch.")
    return [(ValueColumn(quantity, name[:300], dtype, part.numel(), value.numel(), site), part)]


def _read(parts: Iterable[Part], first: int = 0) -> list[TensorReadings]:
    """Reads them, small ones of one shape together. `first`: the place of the first of them in its
    step."""
    rows = list(parts)
    return [
        TensorReadings(
            [first + place for place in places],
            [rows[place][0] for place in places],
            quantities.raw_digests(table),
            _numbers(table),
        )
        for places, table in quantities.tables([one for _, one in rows])
    ]


def _numbers(table: Tensor) -> Tensor:
    """The numbers of a `ROW` behind the digest, as float64 on the tensors' device, for each row of
    a contiguous tensor of shape (tensors, elements).

    Long rows are cut: the float32 norm of 16 million elements is off by 1e-3, which would not be
    that of their shards."""
    if table.is_complex():
        table = torch.view_as_real(table).flatten(1)
    count, elements = table.shape
    rows, rest = divmod(elements, ROW_ELEMENTS)
    if not rows or elements == ROW_ELEMENTS:
        return _numbers_of_rows(table)
    whole = table[:, : rows * ROW_ELEMENTS].reshape(-1, ROW_ELEMENTS)
    firsts = range(0, count * rows, ROWS_AT_ONCE)
    cut = torch.cat([_numbers_of_rows(whole[first : first + ROWS_AT_ONCE]) for first in firsts])
    cut = cut.view(count, rows, -1)
    if rest:
        last = _numbers_of_rows(table[:, rows * ROW_ELEMENTS :])
        cut = torch.cat([cut, last[:, None]], 1)
    places = torch.arange(cut.shape[1], device=table.device) % ROW_ELEMENTS
    sketches = cut[..., 5:] * _signs_on(table.device, cut.dtype)[places, None]
    extremes = cut[..., 3:4].amin(1), cut[..., 4:5].amax(1)
    return torch.cat([cut[..., :3].sum(1), *extremes, sketches.sum(1)], 1)


def _numbers_of_rows(table: Tensor) -> Tensor:
    """The same, of rows of up to `ROW_ELEMENTS`."""
    if not table.is_floating_point():
        table = table.to(torch.float64)
    elif table.element_size() < 4:
        table = table.to(torch.float32)
    count, elements = table.shape
    norm = torch.linalg.vector_norm(table, dim=1)
    if table.is_cpu and bool(norm.isfinite().all()):
        wrong = torch.zeros_like(norm)
    else:
        wrong = elements - table.isfinite().sum(1)
    # `aminmax` of a dimension takes 20 times as long.
    few = torch.stack([wrong, table.sum(1), norm, table.amin(1), table.amax(1)], 1)
    # The sums of parts of the row, each element times a sign that its place has. A product of
    # matrices is faster, and has the precision that autocast or the program chooses.
    signed = table * _signs_on(table.device, table.dtype)[:elements]
    if elements % SKETCH:
        signed = nn.functional.pad(signed, (0, -elements % SKETCH))
    sketch = signed.view(count, SKETCH, -1).sum(2)
    numbers = torch.cat([few, sketch], 1).to(torch.float64)
    numbers[:, 2].square_()
    return numbers


@functools.cache
def _signs_on(device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(_SEED)  # not the program's own
    made = torch.randint(0, 2, (ROW_ELEMENTS,), generator=generator, device="cpu")
    return (2 * made - 1).to(device, dtype)


def _packed(readings: Sequence[TensorReadings]) -> list[tuple[ValueColumn, bytes]]:
    """Rows as they are written, in the order of their places, with one wait for each device."""
    found: list[tuple[int, ValueColumn, bytes]] = []
    for device in {one.digests.device for one in readings}:
        mine = [one for one in readings if one.digests.device == device]
        digests = torch.cat([one.digests for one in mine]).tolist()
        numbers = torch.cat([one.numbers for one in mine]).tolist()
        of_each = [both for one in mine for both in zip(one.places, one.columns, strict=True)]
        for (place, column), digest, (wrong, *further) in zip(
            of_each, digests, numbers, strict=True
        ):
            row = ROW.pack(digest & quantities.MASK, int(wrong), *further)
            found.append((place, column, row))
    return [(column, row) for _, column, row in sorted(found, key=lambda one: one[0])]
