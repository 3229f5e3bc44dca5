"""The parts of `make gpu`, what has never been seen on a GPU first."""

from __future__ import annotations

from pathlib import Path

from .runner import ROOT, Part

TOTAL_S = 470.0
"""Of all parts; with the start and the end of the command it stays below eight minutes."""
ENVIRONMENT = ROOT / ".venv-gpu"
WHEELS = ROOT / ".gpu-wheels"
PYTHON = str(ENVIRONMENT / "bin" / "python")

MENDS = {
    "calls of two groups in different orders on one stream": (
        "deadlock_group_world-nccl",
        "deadlock_two_groups-distcore_nccl",
    ),
    "what was not through when its time was up": (
        "exit_last_stage-nccl",
        "exit_before_barrier-nccl",
    ),
}
"""Fixtures for each mend that has been run on no GPU."""

FIXTURES = "tests/e2e/test_fixtures_on_a_gpu.py"
PROGRAMS = "tests/gpu/test_programs.py"
MARKED = ("tests/unit/distcore/nccl/test_on_a_gpu.py", "tests/ranks/distcore/test_devices.py")
BESIDE = "test_every_op_beside_torchs_own_nccl"


PLUGINS = ("xdist", "timeout", "distdebug", "tests.gpu.keep", "no:cacheprovider")
"""All of them: those that the machine has besides are not loaded (`__main__`)."""


def tests(workers: int, *chosen: str) -> tuple[str, ...]:
    """The command that runs these tests marked `gpu`."""
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    return (PYTHON, "-m", "pytest", *plugins, "-q", "-m", "gpu", "-n", str(workers), *chosen)


def program(name: str, what: str, limit_s: float) -> Part:
    """The tests of `tests/gpu/test_programs.py` on one of its subjects."""
    return Part(name, what, tests(2, "-k", f"test_{name}", PROGRAMS), limit_s)


def parts(python: str) -> list[Part]:
    """All of them, in their order. `python` has torch."""
    fixtures = [f"{FIXTURES}::test_verdict[{name}]" for names in MENDS.values() for name in names]
    making = (python, "-m", "tests.gpu.environment", str(ENVIRONMENT), str(WHEELS))
    return [
        Part("environment", "packages, torch, NCCL", making, 120, needed=True),
        program("item", "`.item()` behind a call that another rank leaves out", 50),
        program("spinning", "a GPU that spins in front of a call", 70),
        program("abort", "groups that are aborted, by all and by one", 50),
        Part("mends", "fixtures whose mends had run on no GPU", tests(5, *fixtures), 110),
        program("dumps", "flight recorder dumps of torch's own watchdog", 65),
        program("graph", "calls in CUDA graphs", 60),
        program("training", "DDP at work on both NCCLs, and NVML's rows", 45),
        Part("marked", "other tests marked `gpu`", tests(5, "-k", f"not {BESIDE}", *MARKED), 120),
        Part("beside", "`bench comm`, both NCCLs", tests(0, f"{MARKED[0]}::{BESIDE}"), 90),
    ]


def named_files() -> set[Path]:
    """The files whose tests the parts run."""
    return {ROOT / name for name in (FIXTURES, PROGRAMS, *MARKED)}
