"""Ends of ranks that are not what they look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import sys
import torch, torch.distributed as dist

class Odd(Exception):
    def __str__(self):
        raise ValueError("it cannot say what it is")

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if sys.argv[1] == "odd" and dist.get_rank() == 1:
    raise Odd("x")
dist.barrier()
dist.destroy_process_group()
if sys.argv[1].isdigit():
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return str(script)


def test_an_exit_whose_status_is_zero_is_a_success(
    program: str, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(2, [program, "256"], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert done.report["findings"] == []


def test_an_exit_whose_status_is_not_is_none(program: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(2, [program, "257"], tmp_path)
    assert done.exit_code == 94, done.explain()
    (error,) = done.errors
    assert error["kind"] == "rank_died"
    assert error["data"]["exit_code"] == 1


def test_an_exception_that_cannot_be_printed(program: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(2, [program, "odd"], tmp_path)
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [1])
    assert error["ranks"]["1"]["location"]["line"] == 12
    assert "Odd: <its __str__ raised ValueError>" in error["message"]


OF_MANY_THREADS = """
import sys, threading
import torch, torch.distributed as dist

def fail(what):
    raise ValueError(what)

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    for number in range(50):
        thread = threading.Thread(target=fail, args=(f"in thread {number}",))
        thread.start()
        thread.join()
    if sys.argv[1] == "main":
        fail("in main")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("where", ["main", "threads"])
def test_an_exception_that_lies_where_another_has_lain(
    where: str, tmp_path: Path, zygote: Zygote
) -> None:
    """Threads have died of errors before, whose memory is free again."""
    script = tmp_path / "threads.py"
    script.write_text(OF_MANY_THREADS)
    done = zygote.run(2, [str(script), where], tmp_path)
    if where == "threads":
        assert done.exit_code == 0, done.explain()
        assert done.errors == []
        return
    assert done.exit_code == 1, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("rank_exception", [1])
    assert "ValueError: in main" in error["message"]


IN_A_HANDLER = """
import atexit, sys
import torch, torch.distributed as dist

def finish():
    dist.barrier()  # line 6

def finish_anyhow():
    try:
        dist.barrier()
    except RuntimeError:
        pass

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
handlers = {"one": [None, finish], "both": [finish, finish], "anyhow": [None, finish_anyhow]}
handler = handlers[sys.argv[1]][dist.get_rank()]
if handler is not None:
    atexit.register(handler)
"""


WAITS_FOR_THE_ERROR = """
from distdebug.diagnosis.limits import SECOND_NS, Limits
Limits.settle_ns = property(lambda _limits: 60 * SECOND_NS)
"""
"""As it does for half a second, in which the rank may be given no core to see its peer leave."""


@pytest.mark.parametrize("who", ["one", "both", "anyhow"])
def test_a_call_in_an_exit_handler_whose_peer_has_left(
    who: str, tmp_path: Path, zygote: Zygote
) -> None:
    """What the handler lets out the interpreter ignores, and ends with 0; what it catches is its
    own business."""
    script = tmp_path / "train.py"
    script.write_text(IN_A_HANDLER)
    breaks = WAITS_FOR_THE_ERROR if who == "anyhow" else ""
    done = zygote.start(2, [str(script), who], tmp_path, breaks=breaks).finish()
    if who != "one":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.exit_code == 93, done.explain()
    (error,) = done.errors
    assert (error["kind"], error["culprits"]) == ("early_exit", [0])
    assert error["ranks"]["1"]["location"]["line"] == 6


ALL_BUT_GONE = """
import builtins, io, os, sys, threading, time
import torch, torch.distributed as dist

def refused(*_, **__):
    raise RuntimeError("what the program has replaced was called")

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if sys.argv[1] == "modules":
    for name in [name for name in sys.modules if name.startswith("torch.distributed")]:
        del sys.modules[name]
elif sys.argv[1] == "open":
    builtins.open = io.open = refused
elif sys.argv[1] == "getpid":
    os.getpid = refused
elif sys.argv[1] == "clock":
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep"):
        setattr(time, name, refused)
dist.all_reduce(torch.ones(3))
threading.Event().wait(0.5)  # for some heartbeats
dist.destroy_process_group()
if sys.argv[1] == "modules":
    assert "torch.distributed" not in sys.modules, "a second import would register types twice"
"""


@pytest.mark.parametrize("gone", ["modules", "open", "getpid", "clock"])
def test_what_the_program_has_dropped_is_not_missed(
    gone: str, tmp_path: Path, zygote: Zygote
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ALL_BUT_GONE)
    done = zygote.run(2, [str(script), gone], tmp_path)
    assert done.exit_code == 0, done.explain()
    assert (done.report["findings"], done.report["off"]) == ([], [])
    assert "refused" not in done.stdout + done.stderr, done.explain()
