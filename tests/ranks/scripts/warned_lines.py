"""Every function of torch's and of Python's that the layer has wrapped, called with a warning in
place of what it wraps: which line the warning names. Prints the names of those that were called."""

import contextlib
import multiprocessing.popen_fork
import multiprocessing.process
import os
import sys
import unittest
import warnings
from pathlib import Path
from types import CellType, FunctionType
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.distributed.rpc
import torch.utils.data
from torch.distributed.algorithms.join import Join

PLACES = (torch, dist, unittest, multiprocessing)
NEAR = (torch.Tensor, Join, multiprocessing.process.BaseProcess, multiprocessing.popen_fork.Popen)
MOST_ARGUMENTS = 8
HERE = Path(__file__).name


def wrappers() -> dict[str, FunctionType]:
    """The wrappers of ours, by the name under which a program finds them."""
    found = {}
    roots = tuple(place.__name__.partition(".")[0] for place in PLACES)
    modules = [one for name, one in sorted(sys.modules.items()) if name.startswith(roots)]
    owners = dict.fromkeys((*NEAR, *modules))
    for module in modules:
        owners |= dict.fromkeys(one for one in vars(module).values() if issubclass(type(one), type))
    for owner in owners:
        for name, one in list(vars(owner).items()):
            inner = one.__func__ if type(one) in (staticmethod, classmethod) else one
            if type(inner) is FunctionType and hasattr(inner, "__wrapped__"):
                file = inner.__code__.co_filename
                if f"{Path('debugger', 'rank')}" in file or "distcore" in file:
                    found[f"{owner.__name__}.{name}"] = inner
    return found


def wrapped_by(function: FunctionType) -> list[CellType]:
    """Where the wrapper keeps what it calls; of one around another of ours, what that one calls."""
    cells = [cell for cell in function.__closure__ or () if callable(cell.cell_contents)]
    kept = [one for one in cells if one.cell_contents is function.__wrapped__]
    for cell in cells:
        if not kept and isinstance(cell.cell_contents, FunctionType):
            kept = wrapped_by_another(cell.cell_contents, function.__wrapped__)
    return kept


def wrapped_by_another(function: FunctionType, original: object) -> list[CellType]:
    return [cell for cell in function.__closure__ or () if cell.cell_contents is original]


def warned(*_: object, **__: object) -> MagicMock:
    warnings.warn("of what was called", stacklevel=2)
    return MagicMock()


def lines(wrapper: FunctionType) -> list[tuple[str, int]]:
    """Where the warnings say that they come from."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for count in range(MOST_ARGUMENTS):
            with contextlib.suppress(Exception):  # what is given is of no use to anybody
                wrapper(*(MagicMock() for _ in range(count)))  # here
            if seen:
                break
    return [(Path(one.filename).name, one.lineno) for one in seen if "of what" in str(one.message)]


os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"  # for who asks it
here = next(
    n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in line
)
for name, wrapper in wrappers().items():
    cells = wrapped_by(wrapper)
    if not cells:
        print("replaced", name)  # torch's own is not called
        continue
    originals = [cell.cell_contents for cell in cells]
    for cell in cells:
        cell.cell_contents = warned
    found = lines(wrapper)
    for cell, original in zip(cells, originals, strict=True):
        cell.cell_contents = original
    assert found, f"{name} has not called what it wraps"
    assert set(found) == {(HERE, here)}, (name, found)
    print("warned", name)
