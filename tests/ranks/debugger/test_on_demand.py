"""A rank that runs is stopped because somebody asks for it, and goes on in the same way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distdebug.record.reading.reader import FlightReader
from distdebug.record.requests import control
from distdebug.record.requests.breakpoints import FOLDER, Stop, stops
from distdebug.record.requests.control import ControlError
from distdebug.record.snapshot import Process
from tests.ranks.debugger.test_breakpoints import attach
from tests.support import runs
from tests.support.zygote import Zygote

SCRIPT = Path(__file__).parents[1] / "scripts" / "asked.py"
LIMIT_S = 90.0


class Asked:
    """A run of the script on two ranks, which ends when it is let."""

    def __init__(
        self, zygote: Zygote, tmp_path: Path, mode: str, *flags: str, timeout_s: float = 60.0
    ) -> None:
        self.folder = tmp_path
        self.directory = tmp_path / "run"
        self._go = tmp_path / "go"
        program = [str(SCRIPT), mode, str(self._go), str(timeout_s)]
        self._run = zygote.start(2, program, tmp_path, flags)
        self.process = self._run.process
        self.wait(lambda: all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)))

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.finish()

    def finish(self) -> runs.Run:
        """Wait for its end."""
        return self._run.finish()

    def wait(self, holds: Callable[[], object]) -> None:
        """Until it holds."""
        until = time.monotonic() + LIMIT_S
        while not holds():
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.send_signal(signal.SIGINT)
                raise AssertionError(self.finish().explain())
            time.sleep(0.02)

    def ask(self, action: str, **arguments: object) -> str:
        """Once the supervisor knows the rank."""
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return control.ask(self.directory, action, arguments)
            except ControlError as refusal:
                early = ("there is no rank", "no rank is running")
                unknown = any(text in str(refusal) for text in early)
                unknown = unknown and arguments.get("rank") != 7
                if not unknown or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def told(self, word: str, times: int = 1) -> None:
        """The supervisor has told that so often."""
        events = self.directory / "events.jsonl"
        self.wait(lambda: events.exists() and events.read_text().count(word) >= times)

    def standing(self, rank: int = 1) -> Stop:
        """The rank stands; where."""
        self.wait(lambda: any(one.rank == rank for one in stops(self.directory)))
        return next(one for one in stops(self.directory) if one.rank == rank)

    def through(self) -> runs.Run:
        """Let it come to its end, which must be a good one."""
        self._go.touch()
        ended = self.finish()
        assert ended.exit_code == 0, ended.explain()
        assert ended.stdout.count("is through") == 2
        assert not ended.errors
        assert "switched off" not in ended.stderr
        assert not any((self.directory / FOLDER).iterdir())
        for rank in (0, 1):
            reader = FlightReader(self.directory / "ranks" / f"{rank}.flight")
            reader.view(Process(alive=False))
            assert reader.environment["RANK"] == str(rank)
            assert reader.environment["DISTDEBUG_RUN_DIR"] == str(self.directory)
            assert "HOME" not in reader.environment
        return ended


def test_break_and_continue(tmp_path: Path, zygote: Zygote) -> None:
    with Asked(zygote, tmp_path, "calling") as run:
        for turn in range(2):
            answer = run.ask("break", rank=1)
            stop = run.standing()
            assert stop.function in ("calling", "main")
            assert stop.file == str(SCRIPT)
            assert answer.startswith(("rank 1 is at a breakpoint (asked.py:", "rank 1 will stop"))
            assert [one.rank for one in stops(run.directory)] == [1]
            with pytest.raises(ControlError, match="rank 1 is at a breakpoint"):
                run.ask("break", rank=1)
            run.told("rank 1 is at a breakpoint", turn + 1)
            rank = 1 if turn else None
            assert run.ask("continue", rank=rank) == "rank 1 goes on"
            run.told("rank 1 has left its breakpoint", turn + 1)
        with pytest.raises(ControlError, match="rank 1 is not at a breakpoint"):
            run.ask("continue", rank=1)
        with pytest.raises(ControlError, match="no rank is at a breakpoint"):
            run.ask("continue")
        ended = run.through()
        assert ended.stderr.count("rank 1 is at a breakpoint") == 2
        assert ended.stderr.count("rank 1 has left its breakpoint") == 2


def test_a_rank_that_makes_no_call(tmp_path: Path, zygote: Zygote) -> None:
    """Stepped through afterwards, and asked again when it was left to itself."""
    with Asked(zygote, tmp_path, "computing") as run:
        run.ask("break", rank=1)
        assert run.standing().function == "computing"
        with attach(tmp_path, run.directory, 1) as terminal:
            terminal.expect(r"\n-> .*\n\(rank 1\) $")
            terminal.type("p turns > 0")
            terminal.expect(r"True\n\(rank 1\) $")
            terminal.type("n")
            terminal.expect(r"asked.py\(\d+\)computing\(\).*\n-> .*\n\(rank 1\) $")
            with pytest.raises(ControlError, match="left to the terminal that is at its prompt"):
                run.ask("continue", rank=1)
            terminal.type("q")
            terminal.expect("rank 1 goes on, and stops at no further breakpoint")
        run.wait(lambda: not stops(run.directory))
        run.ask("break", rank=1)
        run.standing()
        assert run.ask("continue", rank=1) == "rank 1 goes on"
        run.through()


@pytest.mark.long
def test_attach_once_comes_back_and_leaves_the_rank_its_breakpoints(
    tmp_path: Path, zygote: Zygote
) -> None:
    with Asked(
        zygote, tmp_path, "calling", "--break", "all_reduce#1@1", "--break", "all_reduce#3@1"
    ) as run:
        for _ in range(2):
            run.standing()
            with attach(tmp_path, run.directory, 1, "--once") as terminal:
                terminal.expect(r"continue lets it go on(?s:.*)\n\(rank 1\) $")
                terminal.type("n")
                terminal.expect(r"\n\(rank 1\) $")
                terminal.type("c")
                terminal.expect(r"rank 1 goes on\n")
                assert terminal.finish() == 0
        run.through()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["thread", "traced"])
def test_a_main_thread_that_cannot_be_traced(tmp_path: Path, mode: str, zygote: Zygote) -> None:
    """It waits for another thread, or is traced by another tool: the next call stops."""
    with Asked(zygote, tmp_path, mode) as run:
        run.ask("break", rank=1)
        assert run.standing().function == "calling"
        assert run.ask("continue") == "rank 1 goes on"
        run.through()


@pytest.mark.long
def test_both_ranks(tmp_path: Path, zygote: Zygote) -> None:
    with Asked(zygote, tmp_path, "computing") as run:
        run.ask("break", rank=1)
        assert "rank 0 will stop" in run.ask("break", rank=0)  # it waits for rank 1
        run.standing(1)
        assert [one.rank for one in stops(run.directory)] == [1]
        said = run.ask("continue")
        assert sorted(said.split("; ")) == ["rank 0 will not be stopped", "rank 1 goes on"]
        run.through()


@pytest.mark.long
def test_a_request_that_is_taken_back_leaves_line_breakpoints(
    tmp_path: Path, zygote: Zygote
) -> None:
    lines = SCRIPT.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "is through" in text)
    with Asked(zygote, tmp_path, "computing", "--break", f"asked.py:{line}@0") as run:
        assert "rank 0 will stop" in run.ask("break", rank=0)
        assert run.ask("continue", rank=0) == "rank 0 will not be stopped"
        (tmp_path / "go").touch()
        assert run.standing(0).line == line
        run.ask("continue")
        run.through()


@pytest.mark.long
def test_ranks_that_cannot_stop(tmp_path: Path, zygote: Zygote) -> None:
    with Asked(zygote, tmp_path, "held") as run:
        for request, refusal in (
            ({"rank": 7}, "there is no rank 7 yet"),
            ({}, "say which rank is to stop"),
            ({"rank": "1"}, "a rank is a number, not '1'"),
        ):
            with pytest.raises(ControlError, match=refusal):
                run.ask("break", **request)
        time.sleep(4)  # this is what is tested: silence that is longer than a heartbeat may be late
        with pytest.raises(ControlError, match=r"has run no Python for \d+ s \(its GIL is held\)"):
            run.ask("break", rank=1)
        run.ask("break", rank=0)
        pid = next((int(one.name[6:]) for one in (run.directory / FOLDER).glob("break-*")), 0)
        pid = pid or run.standing(0).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            run.wait(lambda: "stopped by a signal" in _refusal(run, 0))
        finally:
            os.kill(pid, signal.SIGCONT)
        run.standing(0)
        run.ask("continue")
        run.through()


def _refusal(run: Asked, rank: int) -> str:
    try:
        return run.ask("break", rank=rank)
    except ControlError as refusal:
        return str(refusal)


@pytest.mark.long
def test_neither_hang_nor_group_timeout_while_a_rank_stands(tmp_path: Path, zygote: Zygote) -> None:
    with Asked(zygote, tmp_path, "calling", "--hang-timeout", "2", timeout_s=5) as run:
        run.ask("break", rank=1)
        run.standing()
        time.sleep(8)  # this is what is tested: longer than both
        assert run.ask("continue", rank=1) == "rank 1 goes on"
        run.through()


@pytest.mark.long
def test_inject(tmp_path: Path, zygote: Zygote) -> None:
    with Asked(zygote, tmp_path, "calling") as run:
        with pytest.raises(ControlError, match="this run has no plan of faults; start it with"):
            run.ask("inject", fault=0)
        (run.directory / "faults.json").write_text(
            '{"schema": "distdebug.faults/1", "seed": 1, '
            '"faults": [{"number": 0, "text": "kill(rank=1) @ all_reduce#5"}]}'
        )
        with pytest.raises(ControlError, match="the plan has no fault 3; it has 0"):
            run.ask("inject", fault=3)
        assert run.ask("inject", fault=0) == "fault 0 is asked for now: kill(rank=1) @ all_reduce#5"
        (line,) = (run.directory / "inject-now.jsonl").read_text().splitlines()
        assert line.startswith('{"fault":0,"time_ns":')
        (tmp_path / "go").touch()
        assert run.finish().exit_code == 0
