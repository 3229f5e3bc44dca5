"""Tests that need GPUs or MPI: skipped, with the reason, where there are none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import pytest

from ..hook.loading import dependency
from ..record.safe_text import whole_number

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
