"""The tree of a run ends: politely when it can, in bounded time when it does not want to."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from distdebug.supervisor.command import warden
from distdebug.supervisor.command.launch import Launch, end_tree
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import LIMIT_S, pids_in, python

pytestmark = pytest.mark.timeout(120)

POLITE = """
import os, signal, sys, time
def end(*_):
    open(sys.argv[1], "a").write("said goodbye\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
if len(sys.argv) > 3:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [(), ("stopped",)])
def test_who_listens_ends_by_itself(tmp_path: Path, stopped: tuple[str, ...]) -> None:
    with Launch() as launch:
        launch.start([*python(POLITE), str(tmp_path / "bye"), str(tmp_path / "pids"), *stopped])
        (pid,) = pids_in(tmp_path / "pids", 1)
        if stopped:
            until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text())
        began_s = time.monotonic()
        assert end_tree(launch, grace_s=40) == ()
        assert time.monotonic() - began_s < 20
        assert launch.descendants() == []
        assert (tmp_path / "bye").read_text() == "said goodbye\n"
        status = launch.poll()
        assert status is not None
        assert status.code == 0


def test_who_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start([*python(DEAF), str(tmp_path / "pids")])
        pids = pids_in(tmp_path / "pids", 2)
        began_s = time.monotonic()
        killed = end_tree(launch, grace_s=0.3)
        assert 0.3 <= time.monotonic() - began_s < 20
        assert set(killed) == set(pids)
        assert launch.descendants() == []


def test_without_grace_it_kills_at_once(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start([*python(POLITE), str(tmp_path / "bye"), str(tmp_path / "pids")])
        pids = pids_in(tmp_path / "pids", 1)
        assert end_tree(launch, grace_s=0) == tuple(pids)
        status = launch.poll()
        assert status is not None
        assert status.signal == signal.SIGKILL
        assert not (tmp_path / "bye").exists()


STARTS_ANOTHER = """
import os, signal, sys
def start(*_):
    # Unlike a shell's, this child takes no signal for its parent's on its way to `sleep`.
    child = os.posix_spawnp("sleep", ["sleep", "600"], os.environ, setsigdef=[signal.SIGTERM])
    os.waitpid(child, 0)
    os._exit(0)
signal.signal(signal.SIGTERM, start)
open(sys.argv[1], "w").close()
signal.pause()
"""


def test_who_is_started_meanwhile_is_asked_too(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with Launch() as launch:
        launch.start([*python(STARTS_ANOTHER), str(ready)])
        until(ready.exists)
        began_s = time.monotonic()
        assert end_tree(launch, grace_s=40) == ()
        assert time.monotonic() - began_s < 20


def test_nothing_to_end(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start(["true"])
        assert launch.wait(LIMIT_S)
        began_s = time.monotonic()
        end_tree(launch, grace_s=30)
        assert time.monotonic() - began_s < 15


LAUNCHER = """
import os, signal, sys, time
def complain(*_):
    open(sys.argv[1], "a").write("launcher complains\\n")
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    def bye(*_):
        open(sys.argv[1], "a").write("rank ends\\n")
        os._exit(3)
    signal.signal(signal.SIGTERM, bye)
else:
    signal.signal(signal.SIGTERM, complain)
    signal.signal(signal.SIGCHLD, complain)
open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_a_silenced_launcher_says_nothing_and_its_ranks_end_politely(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start([*python(LAUNCHER), str(tmp_path / "said"), str(tmp_path / "pids")])
        (rank,) = set(pids_in(tmp_path / "pids", 2)) - {launch.pid}
        began_s = time.monotonic()
        assert end_tree(launch, grace_s=40, silence_launcher=True) == (launch.pid,)
        assert time.monotonic() - began_s < 20
        assert (tmp_path / "said").read_text() == "rank ends\n"
        status = launch.exits.find(rank)
        assert status is not None
        assert status.code == 3


def test_a_launch_that_has_ended_adopts_nobody() -> None:
    """Nobody here would reap them: they would be zombies for as long as this process lives."""
    with Launch():
        assert warden.become_subreaper()  # it was one already
    assert not warden.become_subreaper(False)
