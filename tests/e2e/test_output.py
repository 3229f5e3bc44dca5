"""What ranks print reaches the terminal and the log, whatever becomes of disk and supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import runs
from tests.support.terminal import Terminal
from tests.support.waiting import until

FORGIVING = {"DISTDEBUG_RAISE_OWN_FAULTS": ""}
BOTH = """
import os, sys
for number in range(200):
    print("out", number)
    print("err", number, file=sys.stderr)
os.system("echo child > /dev/stderr")
print("last", sys.stdout.isatty(), sys.stderr.isatty())
"""
FLOOD = """
import sys
for number in range(int(sys.argv[1])):
    print(f"line {number} " + "x" * 900)
print("last")
"""
WAITS = """
import os, sys, time
print("before")
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
for number in range(int(sys.argv[1])):
    print(f"line {number} " + "x" * 90)
open("printed", "w").close()
time.sleep(float(sys.argv[2]))
"""


def command(tmp_path: Path, directory: Path, *flags: str) -> list[str]:
    """A script as the only rank, without torch: what it prints is all that matters."""
    own = ["exec", "--run-dir", str(directory), "--allow-unwatched", *flags, "--"]
    return [str(runs.DISTDEBUG), *own, "env", "RANK=3", sys.executable, str(tmp_path / "train.py")]


@pytest.fixture(name="start")
def _start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, *arguments: str, flags: tuple[str, ...] = (), directory: str = "run"):
        (tmp_path / "train.py").write_text(script)
        with (tmp_path / "shown").open("wb") as shown:
            process = subprocess.Popen(
                [*command(tmp_path, tmp_path / directory, *flags), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
                cwd=tmp_path,
                env=runs.environment(FORGIVING),
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def shown(tmp_path: Path) -> str:
    return (tmp_path / "shown").read_text()


def ranks_lines(text: str) -> list[str]:
    return [line.removeprefix("[rank 3] ") for line in text.splitlines() if "[rank 3]" in line]


def below(process: subprocess.Popen[bytes], word: str) -> list[psutil.Process]:
    """Those below it that have this word on their command line; others come and go."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] * (word in " ".join(one.cmdline()))
    return found


def expected() -> list[str]:
    return [f"{name} {number}" for number in range(200) for name in ("out", "err")] + ["child"]


def test_two_streams_that_go_to_one_place_keep_their_order(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert start(BOTH).wait(runs.LIMIT_S) == 0
    assert ranks_lines(shown(tmp_path)) == [*expected(), "last False False"]
    logs = tmp_path / "run" / "logs"
    assert (logs / "3.out").read_text().splitlines() == [*expected(), "last False False"]
    assert not (logs / "3.err").exists()


def test_two_streams_that_go_to_two_places_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BOTH)
    done = subprocess.run(
        command(tmp_path, tmp_path / "run"),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=runs.environment(),
    )
    outs = [line for line in expected() if line.startswith("out")]
    errs = [line for line in expected() if not line.startswith("out")]
    assert ranks_lines(done.stdout) == [*outs, "last False False"]
    assert ranks_lines(done.stderr) == errs, "a child that opens it anew empties nothing"
    assert (tmp_path / "run" / "logs" / "3.err").read_text().splitlines() == errs


def test_on_a_terminal_a_rank_has_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BOTH)
    line = command(tmp_path, tmp_path / "run")
    with Terminal(line, tmp_path, runs.environment()) as terminal:
        terminal.expect("last True True")
        terminal.expect("OK")
    found = re.findall(r"\[rank 3\] (\w+ \d+|child)\r?\n", terminal.shown)
    assert found == expected()


SIZES = """
import fcntl, os, struct, sys, termios, time
def size():
    return struct.unpack("HHHH", fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))[:2]
first = size()
print("first", *first)
while size() == first and not os.path.exists("enough"):
    time.sleep(0.01)
print("then", *size())
"""


def test_a_ranks_terminal_is_resized_with_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SIZES)
    line = command(tmp_path, tmp_path / "run")
    with Terminal(line, tmp_path, runs.environment(), size=(31, 117)) as terminal:
        terminal.expect("first 31 117")
        terminal.resize(40, 66)
        terminal.expect("then 40 66")
        terminal.expect("OK")


def test_a_ranks_terminal_stays_as_it_is_where_nobody_resizes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SIZES)
    line = command(tmp_path, tmp_path / "run")
    with Terminal(line, tmp_path, runs.environment(), size=(31, 117)) as terminal:
        terminal.expect("first 31 117")
        (tmp_path / "enough").touch()
        terminal.expect("then 31 117")


@pytest.mark.root
def test_a_full_disk_costs_the_log_and_not_the_training(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
    try:
        os.chmod(small, 0o700)
        assert start(FLOOD, "10000", directory="small/run").wait(100) == 0
        lines = ranks_lines(shown(tmp_path))
        assert len(lines) == 10001
        assert lines[-1] == "last"
        assert shown(tmp_path).count("but not kept in") == 1
        assert "No space left on device" in shown(tmp_path)
    finally:
        # The drain ends by itself, and may have its files open a moment longer than the run takes.
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_a_removed_run_directory_costs_the_log_and_not_the_output(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    script = runs.REMOVE_RUN_DIRECTORY + FLOOD
    assert start(script, "1000").wait(runs.LIMIT_S) == 0
    assert len(ranks_lines(shown(tmp_path))) == 1001
    assert "but not kept in" in shown(tmp_path)


def test_a_flood_is_shown_whole_and_kept_within_its_limit(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert start(FLOOD, "5000", flags=("--log-max-mb", "0.5")).wait(runs.LIMIT_S) == 0
    assert len(ranks_lines(shown(tmp_path))) == 5001
    logs = [tmp_path / "run" / "logs" / name for name in ("3.out.1", "3.out")]
    assert sum(path.stat().st_size for path in logs) <= 1 << 19
    assert logs[1].read_text().endswith("last\n")
    assert "but not kept in" not in shown(tmp_path)


def test_a_killed_drain_is_replaced(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(WAITS, "5000", "0")
    until((tmp_path / "ready").exists, "the rank is there")
    until(lambda: "before" in shown(tmp_path), "the first line is shown")
    (drain,) = below(process, "output.drain")
    drain.kill()
    (tmp_path / "go").touch()
    assert process.wait(runs.LIMIT_S) == 0
    lines = [line.split(" x")[0] for line in ranks_lines(shown(tmp_path))]
    assert lines == ["before", *(f"line {number}" for number in range(5000))]


def test_output_goes_on_while_the_supervisor_is_stopped(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(WAITS, "5000", "600")
    until((tmp_path / "ready").exists, "the rank is there")
    process.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    until(lambda: "line 4999" in shown(tmp_path), "all is shown")
    assert len(ranks_lines(shown(tmp_path))) == 5001


def test_what_was_printed_is_shown_when_the_supervisor_is_killed(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(WAITS, "5000", "600")
    until((tmp_path / "ready").exists, "the rank is there")
    (drain,) = below(process, "output.drain")
    (tmp_path / "go").touch()
    until((tmp_path / "printed").exists, "all is printed")
    process.kill()
    until(lambda: "line 4999" in shown(tmp_path), "all is shown")
    until(lambda: not drain.is_running(), "the drain ends with the last rank")


@pytest.mark.parametrize("drain_too", [False, True])
def test_a_supervisor_that_is_killed_with_its_warden_leaves_nobody(
    drain_too: bool, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(WAITS, "5", "600")
    until((tmp_path / "ready").exists, "the rank is there")
    everybody = psutil.Process(process.pid).children(recursive=True)
    (warden,) = below(process, "command.warden")
    (drain,) = below(process, "output.drain")
    (rank,) = below(process, "train.py")
    process.send_signal(signal.SIGSTOP)  # else it could end them when it sees its warden die
    if drain_too:
        rank.suspend()  # so the kernel has to
        drain.kill()
    warden.kill()
    process.kill()
    until(lambda: not any(one.is_running() for one in everybody), "nobody is left", 20)
