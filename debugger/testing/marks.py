"""The marks of a test: the arguments of `@pytest.mark.distributed`, how many ranks, on which
backend, for how long; and whether there are the GPUs or the MPI that it needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from ..hook.loading import dependency
from ..record.kinds import KINDS, chosen_checks
from ..record.log_file import DEBUG_LEVELS
from ..record.safe_text import whole_number
from .pytest_private import value_of

MARK = "distributed"
NPROC, BACKEND = "distdebug_nproc", "distdebug_backend"
"""The parameters that lists in the mark become."""
MOST_FORKED = 1024
_NAMES = ("nproc", "backend", "timeout", "hang_timeout", "level", "check", "ignore", "strict")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of one test. Times are in seconds; `level` None: as the session has it."""

    nproc: int
    backend: str
    timeout_s: float
    hang_timeout_s: float | None
    level: str | None
    check: str
    ignore: tuple[str, ...]
    strict: bool = False


def generate(metafunc: pytest.Metafunc) -> None:
    """Lists in the mark parametrise the test: `test_sum[4ranks-tcp]`."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    given = {**dict(zip(_NAMES, mark.args, strict=False)), **mark.kwargs}
    for name, argument, unit in (("nproc", NPROC, "ranks"), ("backend", BACKEND, "")):
        values = given.get(name)
        if isinstance(values, list | tuple):
            metafunc.fixturenames.append(argument)
            ids = [f"{value_of(one)}{unit}" for one in values]
            metafunc.parametrize(argument, list(values), ids=ids, indirect=True)


def wanted(item: pytest.Item, timeout_s: float, hang_timeout_s: float | None) -> Wanted:
    """Returns what the mark of this test asks for; the arguments are the session's defaults.

    Raises ValueError with a sentence for the user.
    """
    mark = item.get_closest_marker(MARK)
    assert mark is not None
    if len(mark.args) > len(_NAMES):
        raise ValueError(f"takes {', '.join(_NAMES)}, not {len(mark.args)} arguments")
    given = {**dict(zip(_NAMES, mark.args, strict=False)), **mark.kwargs}
    for name in given:
        if name not in _NAMES:
            raise ValueError(f"does not know {name!r}; it takes {', '.join(_NAMES)}")
    params = getattr(getattr(item, "callspec", None), "params", {})
    nproc = params.get(NPROC, given.get("nproc", 2))
    backend = params.get(BACKEND, given.get("backend", "gloo"))
    for name, value in (("nproc", nproc), ("backend", backend)):
        if isinstance(value, list | tuple):
            raise ValueError(f"cannot parametrise this test by {name}={value!r}: it is no function")
    if not isinstance(nproc, int) or not 1 <= nproc <= MOST_FORKED:
        raise ValueError(f"wants nproc from 1 to {MOST_FORKED}, not {nproc!r}")
    if not isinstance(backend, str) or not backend:
        raise ValueError(f"wants the name of a backend, not {backend!r}")
    level = given.get("level")
    if level is not None and str(level).upper() not in DEBUG_LEVELS:
        raise ValueError(f"wants a level of {', '.join(DEBUG_LEVELS)}, not {level!r}")
    check, ignored = given.get("check", ""), given.get("ignore", ())
    try:
        checks = ",".join(chosen_checks(check if isinstance(check, str) else repr(check)))
    except ValueError as error:
        raise ValueError(f"wants check as --check takes it: {error}") from None
    ignores = (ignored,) if isinstance(ignored, str) else tuple(ignored)
    for kind in ignores:
        if kind not in KINDS:
            raise ValueError(f"cannot ignore {kind!r}, which is no kind of finding")
    strict = given.get("strict", False)
    if not isinstance(strict, bool):
        raise ValueError(f"wants strict as True or False, not {strict!r}")
    return Wanted(
        nproc,
        backend,
        _seconds("timeout", given.get("timeout", timeout_s)) or timeout_s,
        _seconds("hang_timeout", given.get("hang_timeout", hang_timeout_s)),
        None if level is None else str(level).upper(),
        checks,
        ignores,
        strict,
    )


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 < value < 1e7:
        raise ValueError(f"wants {name} as seconds above 0, not {value!r}")
    return float(value)


GPUS = "requires_gpus"
MPI = "requires_mpi"


def missing(item: pytest.Item) -> str | None:
    """Why the test cannot run here; None if it can."""
    marks = list(item.iter_markers(GPUS))
    if marks:
        count = max(int(mark.kwargs.get("n", mark.args[0] if mark.args else 1)) for mark in marks)
        found = usable_gpus()
        if found < count:
            return (
                f"needs {count} GPU{'s' if count > 1 else ''}; {found or 'none'} can be used here"
            )
    if item.get_closest_marker(MPI) is not None:
        return missing_mpi()
    return None


def usable_gpus() -> int:
    """Returns how many NVIDIA GPUs a process of this environment sees; asked without CUDA, which a
    process that forks must not start."""
    try:
        pynvml = dependency("pynvml")
        pynvml.nvmlInit()
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return 0  # no driver, or no library for it
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    usable = 0
    for name in (one.strip() for one in visible.split(",")):
        number = whole_number(name)
        if not name or name == "-1" or (name.isdigit() and (number is None or number >= count)):
            break  # CUDA sees nothing from the first wrong one on
        usable += 1
    return min(usable, count)


def missing_mpi() -> str | None:
    """Why MPI cannot be used; None if it can."""
    places = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    absent = [] if importlib.util.find_spec("mpi4py") else ["mpi4py"]
    absent += [] if shutil.which("mpiexec", path=places) else ["mpiexec"]
    if absent:
        return f"needs MPI; there is no {' and no '.join(absent)}: pip install 'distdebug[mpi]'"
    return None
