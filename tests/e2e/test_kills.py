"""Whichever one or two of the processes of a run are killed, nothing of it is left running, and
what the ranks had printed is lost only where both that hold it are killed.

One process for both, the warden and the drain, would leave the helpers of ranks running when it is
killed together with the supervisor: it was tried by killing all three.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import runs
from tests.support.waiting import until

LAUNCHER = """
import os, subprocess, sys
environment = {**os.environ, "WORLD_SIZE": "2"}
ranks = [
    subprocess.Popen([sys.executable, "train.py"], env={**environment, "RANK": str(rank)})
    for rank in range(2)
]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
TRAIN = """
import os, subprocess, sys, time
rank = os.environ["RANK"]
# A helper as a program may have one: in a session of its own, and of no Python.
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("before", flush=True)
open(f"ready{rank}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
for number in range(200):
    print("line", number)
sys.stdout.flush()
open(f"printed{rank}", "w").close()
time.sleep(600)
"""
WORDS = {"warden": "command.warden", "drain": "output.drain", "launcher": "launcher.py"}
"""The processes of a run beside its supervisor, by a word of their command lines."""
NAMES = ("supervisor", *WORDS)
KILLED = [(one,) for one in NAMES] + list(itertools.combinations(NAMES, 2))
HOLD_THE_OUTPUT = {"supervisor", "drain"}


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ["--run-dir", str(tmp_path / "run"), "--allow-unwatched"]
    with (tmp_path / "shown").open("wb") as shown:
        process = subprocess.Popen(
            [str(runs.DISTDEBUG), "exec", *flags, "--", sys.executable, "launcher.py"],
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=shown,
            cwd=tmp_path,
            env=runs.environment({"DISTDEBUG_RAISE_OWN_FAULTS": ""}),
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait()
    for one in left_of(tmp_path / "run"):
        one.kill()


def left_of(directory: Path) -> list[psutil.Process]:
    """Every live process of the run."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get("DISTDEBUG_RUN_DIR") == str(directory):
                found.append(one)
    return found


def is_over(one: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return one.status() == psutil.STATUS_ZOMBIE
    return True


def killed_at_once(run: subprocess.Popen[bytes], names: tuple[str, ...], folder: Path) -> list[str]:
    """Kills these processes while 200 lines of each rank stand in its pipe, and returns the command
    lines of those that are left in the end."""
    until((folder / "ready0").exists, "rank 0 is there")
    until((folder / "ready1").exists, "rank 1 is there")
    until(lambda: shown(folder, "before") == 2, "its first line is shown")
    everybody = psutil.Process(run.pid).children(recursive=True)
    by_name = {"supervisor": psutil.Process(run.pid)}
    for name, word in WORDS.items():
        (by_name[name],) = (one for one in everybody if word in " ".join(one.cmdline()))
    for name in ("supervisor", "drain"):  # neither sees anything before all has happened
        by_name[name].suspend()
    (folder / "go").touch()
    for rank in range(2):
        until((folder / f"printed{rank}").exists, "all is printed")
    for name in names:
        by_name[name].kill()
    for name in {"supervisor", "drain"}.difference(names):
        by_name[name].resume()
    of_run = [one for one in everybody if one != by_name["drain"]]
    if "supervisor" in names or "launcher" in names:
        with contextlib.suppress(AssertionError):
            until(lambda: all(map(is_over, everybody)), limit_s=15)
    else:  # the run goes on
        until(lambda: shown(folder, "line 199") == 2, "all is shown")
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        run.wait(60)
        with contextlib.suppress(AssertionError):
            until(lambda: all(map(is_over, everybody)), limit_s=15)
    return [" ".join(one.cmdline()) for one in of_run if not is_over(one)]


def shown(folder: Path, line: str) -> int:
    return (folder / "shown").read_text().count(f"] {line}\n")


@pytest.mark.long
@pytest.mark.parametrize("names", KILLED, ids="+".join)
def test_nothing_is_left_and_no_output_is_lost(
    run: subprocess.Popen[bytes], names: tuple[str, ...], tmp_path: Path
) -> None:
    left = killed_at_once(run, names, tmp_path)
    lines = [shown(tmp_path, f"line {number}") for number in range(200)]
    assert left == []
    if not HOLD_THE_OUTPUT.issubset(names):
        assert sum(lines) == 400
