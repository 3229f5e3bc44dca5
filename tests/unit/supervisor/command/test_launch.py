"""Nothing outlives the supervisor: real processes, really killed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distdebug.errors import UsageError
from distdebug.record.exits import ExitStatus
from distdebug.supervisor.command.launch import Launch
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import (
    LIMIT_S,
    REPOSITORY,
    alive,
    kill_quietly,
    pids_in,
    python,
)

pytestmark = pytest.mark.timeout(120)

# A launcher like torchrun: a worker in a session of its own, one that is stopped, one that
# ignores every polite signal, and a grandchild that was orphaned on purpose.
TREE = """
import os, signal, sys, time
def note():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
def child(work, session=False):
    if os.fork() == 0:
        if session:
            os.setsid()
        work()
        os._exit(0)
def sleep():
    note()
    time.sleep(600)
def stopped():
    note()
    os.kill(os.getpid(), signal.SIGSTOP)
def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sleep()
child(sleep, session=True)
child(stopped, session=True)
child(deaf)
child(lambda: child(sleep, session=True))
sleep()
"""
TREE_SIZE = 5


@pytest.fixture
def launch() -> Iterator[Launch]:
    with Launch() as handle:
        yield handle


def test_the_exit_code_arrives(launch: Launch) -> None:
    launch.start(["sh", "-c", "exit 7"])
    status = launch.wait(LIMIT_S)
    assert status is not None
    assert (status.code, status.signal) == (7, None)
    assert status.shell_code == 7
    assert launch.exits.find(launch.pid) == status


def test_the_signal_arrives(launch: Launch) -> None:
    launch.start(["sh", "-c", "kill -SEGV $$"])
    status = launch.wait(LIMIT_S)
    assert status is not None
    assert (status.code, status.signal) == (None, signal.SIGSEGV)
    assert (str(status), status.shell_code) == ("SIGSEGV", 139)


def test_running_is_none(launch: Launch) -> None:
    launch.start(["sleep", "600"])
    assert launch.poll() is None
    assert launch.descendants() == [launch.pid]
    assert launch.wait(0.05) is None
    launch.signal(signal.SIGTERM)
    status = launch.wait(LIMIT_S)
    assert status is not None
    assert status.signal == signal.SIGTERM


MAIN_THREAD_ENDS = """
import ctypes, os, sys, threading, time
child = os.fork()
if not child:
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,)).start()
with open(sys.argv[1], "w") as file:
    file.write(f"{child}\\n")
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_zombie_with_threads_lives_and_has_its_children(launch: Launch, tmp_path: Path) -> None:
    """As a launcher is for a moment when a signal ends it: it has a thread for its store."""
    noted = tmp_path / "child"
    launch.start([*python(MAIN_THREAD_ENDS), str(noted)])
    children = pids_in(noted, 1)
    until(lambda: psutil.Process(launch.pid).status() == psutil.STATUS_ZOMBIE)
    assert launch.poll() is None
    assert launch.descendants() == [launch.pid, *children]
    assert len(launch.signal(signal.SIGTERM)) == 2
    until(lambda: not launch.descendants())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-command-here"], "no such command on PATH$"),
        (["train.py"], "on PATH; a script of Python runs as `python train.py`"),
        (["./no/such/file"], "there is no such file"),
        (["/etc/passwd"], "not executable"),
        (["/"], "not executable"),
        ([], "no command was given"),
    ],
)
def test_a_command_that_cannot_start(launch: Launch, command: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        launch.start(command)
    assert launch.pid == 0
    assert launch.descendants() == []


def test_what_the_kernel_refuses_is_told(launch: Launch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01 not a program")
    program.chmod(0o700)
    with pytest.raises(UsageError, match="exec format error"):
        launch.start([str(program)])


def test_environment_directory_and_odd_arguments(launch: Launch, tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9 \xf0\x9f\x8e\x89\n")
    code = (
        "import os, sys; open('out', 'wb').write(os.fsencode(sys.argv[1]) + b'|' +"
        " os.environb[b'ODD'] + b'|' + os.getcwdb())"
    )
    launch.start([*python(code), odd], env={"ODD": odd, "PATH": os.environ["PATH"]}, cwd=tmp_path)
    status = launch.wait(LIMIT_S)
    assert status is not None
    assert status.code == 0
    raw = os.fsencode(odd)
    assert (tmp_path / "out").read_bytes() == raw + b"|" + raw + b"|" + os.fsencode(tmp_path)


def test_the_command_gets_default_signals_and_no_stray_files(
    launch: Launch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    launch.start(["sh", "-c", f"grep SigIgn /proc/self/status > {out}; ls /proc/self/fd >> {out}"])
    assert launch.wait(LIMIT_S)
    ignored, *files = out.read_text().split()[1:]
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert {"0", "1", "2"} <= set(files)
    here = {str(launch.fileno()), str(launch._control)}
    assert not here & (set(files) - {"0", "1", "2", "3"})


def test_orphans_are_reaped_and_their_statuses_kept(launch: Launch, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    waits = f"echo $$ >> {pids}; while kill -0 $PPID; do sleep 0.02; done 2>/dev/null; exit 5"
    launch.start(["sh", "-c", f"sh -c {shlex.quote(waits)} & sleep 600"])
    (orphan,) = pids_in(pids, 1)
    kill_quietly(launch.pid)
    until(lambda: launch.poll() is not None)
    until(lambda: (launch.poll(), launch.exits.find(orphan))[1], what="status of the orphan")
    found = launch.exits.find(orphan)
    assert found == ExitStatus(5, None, found.time_ns if found else 0)


def test_close_leaves_nothing(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start([*python(TREE), str(tmp_path / "pids")])
        pids = pids_in(tmp_path / "pids", TREE_SIZE)
        assert set(pids) <= set(launch.descendants())
    assert not [pid for pid in pids if alive(pid)]


SUPERVISOR = """
import sys, time
from distdebug.supervisor.command.launch import Launch
launch = Launch()
launch.start(sys.argv[1:])
print(launch.pid, launch._warden.pid, flush=True)
time.sleep(600)
"""


def test_sigkill_of_the_supervisor_leaves_nothing_within_seconds(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *python(TREE), str(tmp_path / "pids")],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    assert supervisor.stdout is not None
    with supervisor, supervisor.stdout:
        _, warden = map(int, supervisor.stdout.readline().split())
        pids = pids_in(tmp_path / "pids", TREE_SIZE)
        supervisor.kill()
        until(lambda: not [pid for pid in [*pids, warden] if alive(pid)], what="all gone")


def test_sigint_of_the_terminal_does_not_reach_the_command(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start(["sleep", "600"])
        assert os.getpgid(launch.pid) != os.getpgid(0)
        assert os.getsid(launch.pid) != os.getsid(0)


def test_sigkill_of_the_launcher_leaves_a_tree_that_can_be_ended(tmp_path: Path) -> None:
    with Launch() as launch:
        launch.start([*python(TREE), str(tmp_path / "pids")])
        pids = pids_in(tmp_path / "pids", TREE_SIZE)
        kill_quietly(launch.pid)
        status = launch.wait(LIMIT_S)
        assert status is not None
        assert status.signal == signal.SIGKILL
        # The parent of the orphan may not have come to its own end yet.
        until(lambda: set(launch.descendants()) == set(pids) - {launch.pid})
        launch.signal(signal.SIGKILL)
        until(lambda: not launch.descendants())


def test_a_killed_warden_loses_neither_status_nor_tree(tmp_path: Path) -> None:
    # In a process of its own, since it becomes a subreaper and reaps what is not its child.
    code = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from distdebug.supervisor.command.launch import Launch
with Launch() as launch:
    launch.start(sys.argv[1:])
    while not os.path.exists(sys.argv[-1]) or open(sys.argv[-1]).read().count("\\n") < {TREE_SIZE}:
        pass
    launch._warden.kill()
    launch._warden.wait()
    os.kill(launch.pid, 15)
    print(launch.wait(45))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *python(TREE), str(tmp_path / "pids")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == "SIGTERM\n"
    assert not [pid for pid in pids_in(tmp_path / "pids", TREE_SIZE) if alive(pid)]


def test_the_handle_prints_its_state() -> None:
    with Launch() as launch:
        assert repr(launch) == "<Launch: not started>"
        launch.start(["sh", "-c", "exit 3"])
        launch.wait(LIMIT_S)
        assert repr(launch) == f"<Launch of {launch.pid}: exit code 3>"
