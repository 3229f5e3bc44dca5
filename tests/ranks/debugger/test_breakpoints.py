"""Ranks stop at breakpoints, `distdebug attach` talks to them, and nobody is late meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from distdebug.record.requests.breakpoints import stops
from tests.support import ranks, runs
from tests.support.terminal import Terminal
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

SCRIPT = Path(__file__).parents[1] / "scripts" / "stopping.py"
SUM = 2 * (2 + 10 + 2)
RESULT = f"result [{SUM:.1f}, {SUM:.1f}]"


class Stopping:
    """A run of the script on two ranks, in the background."""

    def __init__(
        self, zygote: Zygote, tmp_path: Path, mode: str, *more: str, timeout_s: float = 60
    ) -> None:
        self._zygote = zygote
        self.folder = tmp_path
        self.directory = tmp_path / "run"
        self._arguments = [str(SCRIPT), mode, str(timeout_s)]
        self._flags: Sequence[str] = more
        self.extra: dict[str, str] = {}

    def start(self, *script_arguments: str) -> Stopping:
        program = [*self._arguments, *script_arguments]
        self._run = self._zygote.start(2, program, self.folder, self._flags, self.extra)
        self.process = self._run.process
        return self

    def stopped(self, rank: int, limit_s: float = runs.LIMIT_S) -> None:
        """Wait until the rank stands at a breakpoint."""
        until = time.monotonic() + limit_s
        while not any(stop.rank == rank for stop in stops(self.directory)):
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(self.finish().explain())
            time.sleep(0.05)

    def told(self, word: str, limit_s: float = runs.LIMIT_S) -> None:
        """Wait until the supervisor has said that."""
        until = time.monotonic() + limit_s
        events = self.directory / "events.jsonl"
        while not (events.exists() and word in events.read_text()):
            assert time.monotonic() < until, f"nobody said {word}"
            time.sleep(0.05)

    def attach(self, rank: int) -> Terminal:
        return attach(self.folder, self.directory, rank)

    def finish(self) -> runs.Run:
        return self._run.finish()

    def line(self, mark: str) -> int:
        lines = SCRIPT.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if mark in line)


def attach(folder: Path, directory: Path, rank: int, *more: str) -> Terminal:
    environment = runs.environment({"HOME": str(folder)})
    command = [str(runs.DISTDEBUG), "attach", str(directory), "--rank", str(rank), *more]
    return Terminal(command, folder, environment)


def test_a_conversation(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "plain").start()
    run.stopped(1)
    run.told("rank 1 is at a breakpoint")  # else the line to which it was stepped may be the first
    folder = run.directory / "breakpoints"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    with run.attach(1) as terminal:
        terminal.expect(r"-> breakpoint\(\)\n\(rank 1\) $")
        terminal.type("p x")
        terminal.expect(r"tensor\(\[11\., 11\.\]\)\n\(rank 1\) $")
        terminal.type("p nothing")
        terminal.expect(r"NameError.*\n\(rank 1\) $")
        terminal.press("p num\t")  # the rank completes it
        terminal.expect("number")
        terminal.type("")
        terminal.expect(r"1\n\(rank 1\) $")
        terminal.press("p x + \x03")  # gives up the line, and ends nothing
        terminal.expect(r"\n\(rank 1\) $")
        terminal.type("print(chr(27) + ']0;title', number)")
        assert "\x1b]0" not in terminal.expect(r"x1b]0;title 1\n\(rank 1\) $")
        for _ in range(2):
            terminal.type("n")
            terminal.expect(r"-> if MODE.*\n\(rank 1\) $")
        terminal.type("n")
        terminal.expect(r"-> y = x \* 2\n\(rank 1\) $")
        terminal.type("n")
        terminal.expect(r"-> communicate\(rank, number, y\)\n\(rank 1\) $")
        terminal.type("p y")
        terminal.expect(r"tensor\(\[22\., 22\.\]\)\n\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
        assert terminal.finish() == 0
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()
    assert ended.stdout.count(RESULT) == 2
    notices = [line for line in ended.stderr.splitlines() if "breakpoint" in line]
    place = f"stopping.py:{run.line('        breakpoint()')} in step"
    assert notices[0] == (
        f"distdebug: rank 1 is at a breakpoint ({place}); "
        f"attach with: distdebug attach {run.directory} --rank 1"
    )
    # Between them stand the lines that were stepped to, if they were seen.
    assert notices[-1].startswith("distdebug: rank 1 has left its breakpoint")
    assert not list(folder.iterdir())
    assert stat.S_IMODE((tmp_path / ".distdebug_history").stat().st_mode) == 0o600


@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [
        "plain",
        pytest.param("received", marks=pytest.mark.long),
        pytest.param("awaited", marks=pytest.mark.long),
    ],
)
def test_neither_hang_nor_group_timeout_while_a_rank_stands(
    tmp_path: Path, mode: str, zygote: Zygote
) -> None:
    run = Stopping(zygote, tmp_path, mode, "--hang-timeout", "2", timeout_s=5).start()
    run.stopped(1)
    time.sleep(8)  # this is what is tested: longer than both
    with run.attach(1) as terminal:
        terminal.expect(r"\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()
    assert not ended.errors


@pytest.mark.long
def test_the_agreement_at_detail_waits_too(tmp_path: Path, zygote: Zygote) -> None:
    flags = ["--hang-timeout", "2", "--debug-level", "DETAIL"]
    run = Stopping(zygote, tmp_path, "plain", *flags, timeout_s=5).start()
    run.stopped(1)
    time.sleep(8)
    with run.attach(1) as terminal:
        terminal.expect(r"\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["late", "late-message"])
def test_without_a_stop_the_group_timeout_holds(
    tmp_path: Path, mode: str, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT, mode, "3", apart=True)
    run.start()
    until = time.monotonic() + 60
    while not (said := re.search(r"failed after ([\d.]+) s: (.*)", run.log(0))):
        assert time.monotonic() < until, run.explain()
        time.sleep(0.05)
    run.kill()
    assert 3.0 <= float(said[1]) < 8.0
    assert said[2].startswith("Timed out waiting 3000ms"), said[2]


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    ["killed", *(pytest.param(one, marks=pytest.mark.long) for one in ("quit", "end of input"))],
)
def test_leaving_the_prompt_leaves_no_rank_stuck(tmp_path: Path, way: str, zygote: Zygote) -> None:
    """Although the rank comes to its breakpoint twice more."""
    run = Stopping(zygote, tmp_path, "loop").start()
    run.stopped(1)
    with run.attach(1) as terminal:
        terminal.expect(r"\(rank 1\) $")
        if way == "killed":
            terminal.kill()
        else:
            terminal.press("q\n" if way == "quit" else "\x04")
            terminal.expect("rank 1 goes on, and stops at no further breakpoint")
            assert terminal.finish() == 0
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()
    assert ended.stderr.count("is at a breakpoint") == 1


@pytest.mark.long
def test_continue_stops_again(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "loop").start()
    run.stopped(1)
    with run.attach(1) as terminal:
        for number in range(3):
            terminal.expect(r"\(rank 1\) $")
            terminal.type("p number")
            terminal.expect(rf"\n{number}\n\(rank 1\) $")
            terminal.type("c")
        terminal.expect("rank 1 has ended")
    assert run.finish().exit_code == 0


@pytest.mark.parametrize("place", ["line", "call"])
def test_break_without_touching_the_script(tmp_path: Path, place: str, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "none")
    line = run.line("y = x * 2")
    where = f"stopping.py:{line}@1" if place == "line" else "all_reduce#1@1"
    run = Stopping(zygote, tmp_path, "none", "--break", where).start()
    run.stopped(1)
    assert [stop.rank for stop in stops(run.directory)] == [1]
    with run.attach(1) as terminal:
        text = r"y = x \* 2" if place == "line" else r"dist\.all_reduce\(y\)"
        terminal.expect(rf"-> {text}\n\(rank 1\) $")
        terminal.type("p number")
        terminal.expect(r"\n0\n" if place == "line" else r"\n1\n")
        terminal.type("q")
        terminal.finish()
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()
    assert ended.stdout.count(RESULT) == 2


@pytest.mark.long
def test_post_mortem(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "raising", "--pdb").start()
    run.stopped(1)
    with run.attach(1) as terminal:
        terminal.expect(r"-> raise ValueError\(.planted.\)\n\(rank 1\) $")
        terminal.type("p y")
        terminal.expect(rf"tensor\(\[{SUM}\., {SUM}\.\]\)")
        terminal.type("q")
        terminal.finish()
    ended = run.finish()
    assert ended.exit_code == 1, ended.explain()
    assert ended.report["outcome"] == "rank_exception"
    assert ended.errors[0]["culprits"] == [1]


@pytest.mark.long
def test_torchs_own_breakpoint(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "torch").start()
    run.stopped(1)
    with run.attach(1) as terminal:
        terminal.expect(r"-> dist\.breakpoint\(1\)\n\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
    ended = run.finish()
    assert ended.exit_code == 0, ended.explain()


@pytest.mark.long
def test_condition(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "condition").start()
    run.stopped(1)
    with run.attach(1) as terminal:
        terminal.expect(r"-> distdebug\.breakpoint\(rank=1.*\n\(rank 1\) $")
        terminal.type("p number")
        terminal.expect(r"\n2\n")
        terminal.type("c")
        terminal.finish()
    assert run.finish().exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["loop", "torch", "condition"])
def test_pythonbreakpoint_0_stops_nowhere(tmp_path: Path, mode: str, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, mode)
    run.extra = {"PYTHONBREAKPOINT": "0"}
    ended = run.start().finish()
    assert ended.exit_code == 0, ended.explain()
    assert "is at a breakpoint" not in ended.stderr


@pytest.mark.long
def test_pythonbreakpoint_names_another(tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "hooks.py").write_text("def here():\n    print('my own hook', flush=True)\n")
    run = Stopping(zygote, tmp_path, "loop")
    run.extra = {
        "PYTHONBREAKPOINT": "hooks.here",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")])
        ),
    }
    ended = run.start().finish()
    assert ended.exit_code == 0, ended.explain()
    assert ended.stdout.count("my own hook") == 3


def test_ctrl_c_ends_a_run_that_stands(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "plain").start()
    run.stopped(1)
    shown = _stacks_when(run, "rank 0: waiting for breakpoint on rank 1")
    assert "rank 1 is at a breakpoint" in shown
    run.process.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.exit_code == 130, ended.explain()


def _stacks_when(run: Stopping, text: str) -> str:
    """What `distdebug stacks` shows once it shows this."""
    until = time.monotonic() + 120
    while True:
        shown = subprocess.run(
            [str(runs.DISTDEBUG), "stacks", str(run.directory)],
            capture_output=True,
            text=True,
            check=False,
            env=runs.environment(),
        ).stdout
        if text in shown:
            return shown
        assert time.monotonic() < until, shown


def test_the_death_of_another_rank_ends_it(tmp_path: Path, zygote: Zygote) -> None:
    go = tmp_path / "go"
    run = Stopping(zygote, tmp_path, "dying").start(str(go))
    run.stopped(1)
    with run.attach(1) as terminal:
        terminal.expect(r"\(rank 1\) $")
        go.touch()
        # By the verdict, or by the launcher before that; also while somebody may be typing.
        terminal.expect("rank 1 (is ended: AbsentRankError: .*rank_died|has ended)")
        assert terminal.finish() == 0
    ended = run.finish()
    assert ended.exit_code == 94, ended.explain()
    assert ended.errors[0]["culprits"] == [0]


def test_the_rank_outlives_no_supervisor(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "plain").start()
    run.stopped(1)
    pids = [stop.pid for stop in stops(run.directory)]
    run.process.kill()
    run.process.wait(60)
    until = time.monotonic() + 120
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_a_supervisor(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    directory = tmp_path / "kept"
    arguments = ("library", "60", str(directory))
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT, *arguments, observed=False)
    run.start()
    until = time.monotonic() + 60
    words = f"attach with: distdebug attach {directory} --rank 1"
    while words not in run.stderr:
        assert run.process.poll() is None, run.stderr
        assert time.monotonic() < until, run.stderr
        time.sleep(0.05)
    with attach(tmp_path, directory, 1) as terminal:
        terminal.expect(r"-> breakpoint\(\)\n\(rank 1\) $")
        terminal.type("c")
        terminal.expect("rank 1 has ended")
    assert run.finish() == 0, run.stderr
    assert run.stdout.count(RESULT) == 2


def test_nobody_stands_there(tmp_path: Path, zygote: Zygote) -> None:
    run = Stopping(zygote, tmp_path, "none").start()
    ended = run.finish()
    assert ended.exit_code == 0
    command = [str(runs.DISTDEBUG), "attach", str(run.directory), "--rank", "1"]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=runs.environment()
    )
    assert found.returncode == 2
    assert "rank 1 is not at a breakpoint" in found.stderr
    assert json.loads((run.directory / "run.json").read_text())
