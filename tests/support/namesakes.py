"""A project with modules of its own that are called as our packages, and as what those need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.runs import Run

OURS = ("debugger", "tui", "distcore", "distdebug")
OF_RANKS = ("wrapt", "psutil")
OTHERS = ("zmq", "pynvml", "textual", "rich")
ALL = (*OURS, *OF_RANKS, *OTHERS)
FORBIDDEN = ("ModuleNotFoundError", "No module named", "not observed", "switched off", "_distdebug")
"""What no output may hold, whatever is found."""

_PROGRAM = """
import sys, time
{imports}
import torch
import torch.distributed as dist

def main(bug):
    dist.init_process_group("gloo")
    rank, tensor = dist.get_rank(), torch.ones(3)
    dist.all_reduce(tensor)
    if rank == 1 and bug == "mismatch":
        dist.broadcast(tensor, 0)  # mismatch
    if rank == 1 and bug == "hang":
        time.sleep(10_000)  # hang
    if rank == 1 and bug == "raise":
        raise ValueError("of the program")  # raise
    dist.all_reduce(tensor)

main(*sys.argv[1:] or ["none"])
"""
PROGRAM = "program.py"
_TESTS = """
{imports}

def test_each_is_the_projects():
    assert {names} == {expected}
"""
_RANK_TESTS = """
import pytest
{imports}

@pytest.mark.distributed(nproc=2)
def test_right(dist_rank):
    import torch
    tensor = torch.ones(1)
    torch.distributed.all_reduce(tensor)
    assert {names} == {expected}

@pytest.mark.distributed(nproc=2)
def test_wrong(dist_rank):
    import torch
    if dist_rank.rank:
        torch.distributed.broadcast(torch.ones(1), 0)
    torch.distributed.all_reduce(torch.ones(1))
"""
EXPECTED: Mapping[str, tuple[int, str]] = {
    "mismatch": (91, "op_mismatch"),
    "hang": (93, "missing_rank"),
    "raise": (1, "rank_exception"),
}
LIMITS = ("--hang-timeout", "5")


def write(folder: Path, modules: Path | None = None, names: tuple[str, ...] = ALL) -> None:
    """The program and the tests, in one folder, and the modules, there or in another one. Every
    other of these is a package."""
    place = modules or folder
    place.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        if number % 2:
            (place / name).mkdir()
            (place / name / "__init__.py").write_text("from .part import MINE as MINE\n")
            (place / name / "part.py").write_text(f"MINE = {name!r}\n")
        else:
            (place / f"{name}.py").write_text(f"MINE = {name!r}\n")
    packages = names[1::2]
    filled = {
        "imports": "\n".join(f"import {name}" for name in names)
        + "".join(f"\nfrom {name}.part import MINE; assert MINE == {name!r}" for name in packages),
        "names": "[" + ", ".join(f"{name}.MINE" for name in names) + "]",
        "expected": repr(list(names)),
    }
    (folder / PROGRAM).write_text(_PROGRAM.format(**filled))
    (folder / "test_plain.py").write_text(_TESTS.format(**filled))
    (folder / "test_ranks.py").write_text(_RANK_TESTS.format(**filled))


def check(done: Run, bug: str) -> None:
    """The verdict, its line, and no word of ours beside it."""
    code, kind = EXPECTED[bug]
    assert done.exit_code == code, done.explain()
    (error,) = done.errors
    assert (error["kind"], 1 in error["culprits"]) == (kind, True), done.explain()
    location = error["ranks"]["1"]["location"]
    line = Path(location["file"]).read_text().splitlines()[location["line"] - 1]
    assert line.endswith(f"# {bug}"), (location, done.explain())
    assert done.report["off"] == [], done.report["off"]
    check_output(done.stdout + done.stderr)
    shown = (done.directory / "stacks" / "stacks.txt").read_text()
    ours = [line for line in shown.splitlines() if "distdebug/" in line or "debugger/" in line]
    assert not ours, shown
    assert not [one for one in _frames(error) if _is_ours(one)], error


def check_output(text: str) -> None:
    """For any output of ours or of the program."""
    found = [line for line in text.splitlines() if any(word in line for word in FORBIDDEN)]
    assert not found, text[-6000:]


def _frames(error: dict[str, Any]) -> list[str]:
    return [str(one) for rank in error["ranks"].values() for one in rank.get("stack") or ()]


def _is_ours(frame: str) -> bool:
    return any(f"/{part}/" in frame for part in ("rank", "hook", "supervisor", "testing"))
