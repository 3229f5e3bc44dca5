"""Values of a training, which a rank puts next to its flight record: of its losses, of what its
collectives returned, and around optimiser steps of gradients, hyper-parameters, optimiser state,
parameters and buffers.

One file for each process, `pid-<pid>.values`, of lines of JSON: first what is recorded

    {"rank", "world_size", "started_ns", "every"}

then columns, as they are met, {"columns": [[quantity, name, dtype, numel, whole, site], ...]}, and
steps {"step", "precision", "depth", "summands", "kinks", "columns": [numbers], "values": base64 of
a ROW for each}. `numel` is of the part of the tensor that this rank has, `whole` of all of it. The
rows of a step stand in the order in which they came about; {"saved": step} is a save behind that
one. A file that is full becomes `pid-<pid>.values.1`, in the place of the one before it: then the
oldest steps are lost. The files of other nodes have `node<number>-` before their names.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from .replicas import BUFFER, GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER
from .safe_files import open_regular, open_to_append, parsed, whole

LOSS, COLLECTIVE = "loss", "collective"
QUANTITIES = (COLLECTIVE, LOSS, GRADIENT, HYPERPARAMETER, OPTIMIZER_STATE, PARAMETER, BUFFER)
INPUT, RANDOM = CAUSES = ("input", "random_state")
"""What may explain a difference, and is none by itself: what outermost modules were given, and the
random state when the loss was made."""
STOP = "DISTDEBUG_VALUES_STOP"
"""The variable with the step behind which a process ends, when the next one is about to be made."""
SKETCH = 8
ROW = Struct(f"<Qq4d{SKETCH}d")
"""digest, count of non-finite elements, sum, sum of squares, minimum, maximum, sketch"""
MOST_BYTES = 64 << 20
"""Of both files of a process together."""
MOST_LINE_BYTES = 32 << 20
_NAME = re.compile(r"(node\d{1,6}-)?pid-\d+\.values")
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What torch's wrappers call the module within them."""


class ValueColumn(NamedTuple):
    """The tensor that a value belongs to. `site`: where the program made the call, or ""."""

    quantity: str
    name: str
    dtype: str
    numel: int
    whole: int
    site: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """The numbers that are kept of a tensor. The sketch has the sums of its parts, each element
    times a sign of its own: the difference of two sketches is about as long as that of the
    tensors."""

    column: ValueColumn
    digest: int
    nonfinite: int
    sum: float
    squares: float
    least: float
    most: float
    sketch: tuple[float, ...]

    @property
    def norm(self) -> float:
        """The Euclidean norm: at least the largest element, whose square a float32 may not hold."""
        largest = max(abs(self.least), abs(self.most))
        if math.isinf(self.squares) and not self.nonfinite:
            return largest
        return max(math.sqrt(self.squares), largest)


class ValueWriter:
    """Writes the values of one process. Raises OSError."""

    def __init__(self, directory: Path, pid: int, about: dict[str, int]) -> None:
        self._path = directory / f"pid-{pid}.values"
        self._about = about
        self._path.unlink(missing_ok=True)  # of a process of that number before
        self._begin()

    def _begin(self) -> None:
        self._file = open_to_append(self._path)
        self._columns: dict[ValueColumn, int] = {}
        self._size = 0
        self._write(self._about)

    def append(
        self, step: int, rows: Sequence[tuple[ValueColumn, bytes]], about: dict[str, Any]
    ) -> None:
        """Adds rows of a step, each with its column and a packed `ROW`."""
        if self._size > MOST_BYTES // 2:
            os.close(self._file)
            os.replace(self._path, f"{self._path}.1")
            self._begin()
        new = list(dict.fromkeys(one for one, _ in rows if one not in self._columns))
        if new:
            self._columns.update(zip(new, range(len(self._columns), 1 << 62), strict=False))
            self._write({"columns": new})
        numbers = [self._columns[one] for one, _ in rows]
        values = base64.b64encode(b"".join(row for _, row in rows)).decode()
        self._write({"step": step, **about, "columns": numbers, "values": values})

    def saved(self, step: int) -> None:
        """Adds that the program has saved something behind this step."""
        self._write({"saved": step})

    def _write(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(data) <= MOST_LINE_BYTES:
            os.write(self._file, data)
            self._size += len(data)


class RankValues:
    """The values of one rank. Raises OSError, and ValueError where the file is none."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[int, list[tuple[Path, int, int, list[ValueColumn]]]] = {}
        """By step the places of its lines: file, offset, bytes, and the columns known there."""
        self.precisions: set[str] = set()
        self.saves: set[int] = set()
        """The steps behind which the program has saved something."""
        self.depth = self.summands = 1
        self.kinks = 0
        self.rank, self.world_size, self.started_ns = 0, 1, 0
        older = path.with_name(path.name + ".1")
        for one in (older, path) if older.exists() else (path,):
            self._read(one)
        self.is_cut = older.exists()

    def _read(self, path: Path) -> None:
        columns: list[ValueColumn] = []
        with open(open_regular(path), "rb") as file:
            at = 0
            while text := file.readline(MOST_LINE_BYTES):
                if not text.endswith(b"\n"):
                    break  # the process was killed while it wrote this
                head, values, _ = text.partition(b',"values":"')
                line = parsed(head + b"}" if values else head)
                if values:
                    self.steps.setdefault(whole(line["step"]), []).append(
                        (path, at, len(text), columns)
                    )
                    self.precisions.add(str(line.get("precision", "")))
                    self.depth = max(self.depth, whole(line.get("depth", 1)))
                    self.summands = max(self.summands, whole(line.get("summands", 1)))
                    self.kinks = max(self.kinks, whole(line.get("kinks", 0)))
                elif "saved" in line:
                    self.saves.add(whole(line["saved"]))
                elif "columns" in line:
                    columns += [_column(one) for one in line["columns"]]
                else:
                    self.rank, self.world_size = whole(line["rank"]), whole(line["world_size"])
                    self.started_ns = whole(line["started_ns"])
                at += len(text)

    def values(self, step: int) -> Iterator[Value]:
        """Yields the values of a step, in the order in which they came about."""
        for path, at, size, columns in self.steps.get(step, ()):
            descriptor = open_regular(path)
            try:
                line = parsed(os.pread(descriptor, size, at))
            finally:
                os.close(descriptor)
            rows = ROW.iter_unpack(base64.b64decode(line["values"]))
            for number, (digest, nonfinite, *numbers) in zip(line["columns"], rows, strict=True):
                total, squares, least, most, *sketch = numbers
                column = columns[whole(number)]
                few = digest, nonfinite, total, squares
                yield Value(column, *few, least, most, tuple(sketch))


def _column(row: Any) -> ValueColumn:
    quantity, name, dtype, numel, of_all, site = row
    if quantity not in (*QUANTITIES, *CAUSES):
        raise ValueError(f"{quantity!r} is no quantity of values")
    if quantity not in (LOSS, COLLECTIVE, HYPERPARAMETER, *CAUSES):
        name = ".".join(one for one in str(name).split(".") if one not in _WRAPPERS)
    return ValueColumn(quantity, str(name), str(dtype), whole(numel), whole(of_all), str(site))


def read_values(directory: Path) -> tuple[dict[int, RankValues], list[str]]:
    """Returns the values of each rank, by its number, from the folder of the ranks' records, and
    sentences about what cannot be read. Of a rank that was started again, the newest process
    counts."""
    found: dict[int, RankValues] = {}
    faults: list[str] = []
    for path in sorted(directory.glob("*pid-*.values")):
        try:
            if not _NAME.fullmatch(path.name):
                continue
            values = RankValues(path)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            faults.append(f"{path.name} cannot be read: {error}")
            continue
        known = found.get(values.rank)
        if values.steps and (known is None or known.started_ns < values.started_ns):
            found[values.rank] = values
    return dict(sorted(found.items())), faults


def renamed(value: Value, name: str) -> Value:
    """Returns the value under another name."""
    return replace(value, column=value.column._replace(name=name))
