"""Whatever ends a run, no rank outlives it, and what was known is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Process
from tests.support import runs
from tests.support.torch_loaded import Forked
from tests.support.waiting import until
from tests.support.zygote import Zygote

FORGIVING = {"DISTDEBUG_RAISE_OWN_FAULTS": ""}  # as for users: here the layer must fail
WAITING = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.zeros(4)
dist.all_reduce(tensor)
open(os.path.join(sys.argv[1], f"ready-{dist.get_rank()}"), "w").close()
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(tensor)
"""
SNIPPETS = {
    "sleeping": WAITING,
    "stopped": WAITING.replace("time.sleep(600)", "os.kill(os.getpid(), 19)"),
    "deaf": WAITING.replace(
        "time.sleep(600)",
        "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)",
    ),
    "checkpoint": WAITING.replace(  # who is "ready" can save
        "open(",
        "import signal, select\n"
        "def save(number, _frame):\n"
        "    select.select([], [], [], 1.5)\n"
        "    open(os.path.join(sys.argv[1], f'saved-{dist.get_rank()}-{number}'), 'w').close()\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); signal.signal(signal.SIGINT, save)\n"
        "open(",
        1,
    ).replace("if dist.get_rank() == 1:", "if True:"),
    "gil": WAITING.replace("time.sleep(600)", "import ctypes; ctypes.PyDLL(None).sleep(600)"),
}


def chosen(*short: str) -> list[Any]:
    """All ranks that wait; but for these they are marked long."""
    return [
        pytest.param(name, marks=() if name in short else pytest.mark.long)
        for name in SNIPPETS
        if name != "checkpoint"
    ]


@dataclass
class Started:
    """A run of two ranks that wait: as a user starts it, or everything forked."""

    directory: Path
    process: subprocess.Popen[str] | Forked
    finish: Callable[[float], runs.Run]

    @property
    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture(name="start")
def _start(tmp_path: Path, zygote: Zygote) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(
        snippet: str,
        by_command: bool = False,
        extra: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> Started:
        script = tmp_path / "train.py"
        script.write_text(SNIPPETS[snippet])
        program, directory = [str(script), str(tmp_path)], tmp_path / "run"
        if by_command:
            process = runs.start("run", ["-n", "2", *program], directory, tmp_path)
            begun = Started(directory, process, partial(runs.finish, process, directory))
        else:
            command = zygote.start(2, program, tmp_path, flags, extra=extra)
            begun = Started(directory, command.process, command.finish)
        started.append(begun)
        ready = [tmp_path / f"ready-{rank}" for rank in (0, 1)]
        until(lambda: all(one.exists() for one in ready), "both are ready", runs.LIMIT_S)
        until(lambda: snippet == "checkpoint" or second_call(directory))
        return begun

    yield start
    for one in started:
        one.process.kill()
        if isinstance(one.process, subprocess.Popen):
            one.process.communicate()


def second_call(directory: Path) -> bool:
    """Whether rank 0 is in it."""
    view = FlightReader(directory / "ranks" / "0.flight").view(Process(alive=True))
    return view.calls == 2 and bool(view.waits)


def survivors(processes: list[psutil.Process], within_s: float = 30.0) -> list[psutil.Process]:
    """Who is still there after a time in which even a busy machine has got rid of them."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    left = []
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
            left += [one] * (one.status() != psutil.STATUS_ZOMBIE)
    return left


def said(started: Started) -> str:
    """What a forked run has said so far."""
    return (started.directory.parent / "stderr").read_text()


def check_interrupted(started: Started) -> runs.Run:
    below = started.family
    began = time.monotonic()
    started.process.send_signal(signal.SIGINT)
    done = started.finish(60)
    took_s = time.monotonic() - began
    assert done.exit_code == 130, done.explain()
    assert done.report["outcome"] == "interrupted"
    assert set(done.report["ranks"]) == {"0", "1"}
    assert done.report["ranks"]["0"]["location"]["line"] == 10
    assert "train.py" in done.stderr
    assert not survivors(below)
    assert took_s < 28  # 2 s is the promise, and half a minute what SIGTERM gives
    return done


def test_one_interrupt_ends_all_below_torchrun(start: Callable[..., Started]) -> None:
    done = check_interrupted(start("sleeping", by_command=True))
    assert len(done.stderr.splitlines()) <= 40, "tracebacks and all"


def test_an_interrupted_hang_names_who_was_late(start: Callable[..., Started]) -> None:
    started = start("sleeping", flags=["--notice-after", "0.5"])
    until(lambda: "rank 1 is late for" in said(started), "a notice names it")
    started.process.send_signal(signal.SIGINT)
    done = started.finish(60)
    assert (done.exit_code, done.report["outcome"]) == (130, "interrupted"), done.explain()
    (found,) = done.report["findings"]
    assert (found["kind"], found["culprits"]) == ("missing_rank", [1])
    assert (found["proven"], found["severity"]) == (False, "warning")
    assert "timed out" not in done.stderr
    assert "debugger/rank" not in done.stderr, "no frame of ours is shown"
    (row,) = [line for line in done.stderr.splitlines() if "<- look here" in line]
    assert row.split()[:2] == ["rank", "1"]


@pytest.mark.parametrize("snippet", chosen("deaf"))
def test_one_interrupt_ends_all(snippet: str, start: Callable[..., Started]) -> None:
    check_interrupted(start(snippet))


@pytest.mark.parametrize("snippet", chosen("stopped"))
def test_killed_supervisor_leaves_no_rank(snippet: str, start: Callable[..., Started]) -> None:
    started = start(snippet)
    below = started.family
    assert len(below) >= 4  # the warden, the launcher, two ranks
    started.process.kill()
    assert not survivors(below)


def test_killed_launcher_leaves_no_rank(start: Callable[..., Started]) -> None:
    started = start("sleeping", by_command=True)
    below = started.family
    torchrun = next(one for one in below if "torch.distributed.run" in " ".join(one.cmdline()))
    torchrun.kill()
    done = started.finish(60)
    assert done.exit_code == 128 + signal.SIGKILL, done.explain()
    assert not survivors(below)


def test_terminated_supervisor_reports(start: Callable[..., Started]) -> None:
    started = start("sleeping")
    started.process.send_signal(signal.SIGTERM)
    done = started.finish(60)
    assert done.exit_code == 128 + signal.SIGTERM
    assert done.report["outcome"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_may_save_a_checkpoint(
    number: signal.Signals, start: Callable[..., Started], tmp_path: Path
) -> None:
    started = start("checkpoint")
    below = started.family
    started.process.send_signal(number)
    done = started.finish(60)
    assert done.exit_code == 128 + number, done.explain()
    saved = sorted(path.name for path in tmp_path.glob("saved-*"))
    assert saved == [f"saved-{rank}-{int(number)}" for rank in (0, 1)], done.explain()
    assert not survivors(below)


def test_they_have_as_long_as_torchrun_is_told_to_wait(start: Callable[..., Started]) -> None:
    started = start("deaf", extra={"TORCHELASTIC_SHUTDOWN_TIMEOUT": "1"})
    below = started.family
    began = time.monotonic()
    started.process.send_signal(signal.SIGTERM)
    done = started.finish(60)
    took_s = time.monotonic() - began
    assert done.exit_code == 128 + signal.SIGTERM, done.explain()
    assert 1 < took_s < 28, "half a minute is what they have where nothing is said"
    assert not survivors(below)


def test_a_second_interrupt_ends_at_once(start: Callable[..., Started]) -> None:
    started = start("deaf")
    below = started.family
    started.process.send_signal(signal.SIGTERM)
    until(lambda: "is handed on" in said(started))
    began = time.monotonic()
    started.process.send_signal(signal.SIGINT)
    done = started.finish(60)
    assert time.monotonic() - began < 20, "SIGTERM alone gives them half a minute"
    assert done.exit_code == 128 + signal.SIGTERM
    assert not survivors(below)


SEEN = """
import json, os, time
run = os.environ["DISTDEBUG_RUN_DIR"]
supervisor = json.load(open(f"{run}/run.json"))["pid"]
names = [f"/{os.environ['RANK']}.flight", f"/pid-{os.getpid()}.flight"]  # as it was called first
while not any(name in open(f"/proc/{supervisor}/maps").read() for name in names):
    time.sleep(0.01)
"""
"""The supervisor reads the record of this rank: of one that vanishes before it has seen nobody."""


def test_vanished_run_directory_costs_the_record_only(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"exec({SEEN!r})\n"
        "dist.barrier()\n"
        f"if dist.get_rank() == 0: exec({runs.REMOVE_RUN_DIRECTORY!r})\n"
        "for _ in range(20): dist.all_reduce(torch.ones(3))\n"
        "dist.barrier()\n"
        "open(f'done-{dist.get_rank()}', 'w').close()\n"
    )
    done = zygote.run(2, [str(script)], tmp_path, extra=FORGIVING)
    assert done.exit_code == 0, done.explain()
    assert (tmp_path / "done-0").exists()
    assert (tmp_path / "done-1").exists()
    assert "run directory" in done.stderr


@pytest.mark.root
def test_full_disk_costs_the_record_only(tmp_path: Path, zygote: Zygote) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        os.chmod(small, 0o700)
        script = tmp_path / "train.py"
        script.write_text(
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "for _ in range(20): dist.all_reduce(torch.ones(3))\n"
            "open(f'done-{dist.get_rank()}', 'w').close()\n"
        )
        done = zygote.start(
            2, [str(script)], tmp_path, extra=FORGIVING, directory=small / "run"
        ).finish()
        assert done.exit_code == 0, done.explain()
        assert (tmp_path / "done-0").exists()
        assert (tmp_path / "done-1").exists()
        assert "switched off" in done.stderr
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
