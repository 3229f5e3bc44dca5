"""Processes that are at work and those that hang, seen as `inspect` sees them: while the other
ranks wait, a call that takes its time, or a thread of a rank's that is at work, is no hang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distdebug.inspection.judging import late_ranks
from distdebug.inspection.look import Limits, Stance
from distdebug.inspection.stance import stance
from distdebug.record.wording import RankState
from distdebug.supervisor.stacks.sights import Sight, look

LIMITS = Limits()
BEGIN = """
import hashlib, os, queue, socket, subprocess, sys, threading, time
def computes():
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", (1 << 31) - 1)
def moves():
    number = 0
    while True:
        number += 1
        number += 1
def spins():
    while True: pass
def polls():
    while True:
        time.sleep(0.01)
def sleeps():
    time.sleep(1 << 20)
def backs_off():
    time.sleep(25)
def serves():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()
def receives():
    one, other = socket.socketpair()
    def sends():
        while True:
            other.send(b"x")
            time.sleep(0.01)
    threading.Thread(target=sends, daemon=True).start()
    while True:
        one.recv(1)
def metrics():
    import socketserver
    server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(1 << 20)
def takes_a_lock():
    lock = threading.Lock()
    while True: lock.acquire()
def beside(work):
    threading.Thread(target=globals()[work], daemon=True).start()
def says_when_it_is_there():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name == "<module>":
        time.sleep(0.01)
    print(flush=True)
beside("says_when_it_is_there")
"""


@contextmanager
def running(program: str, folder: Path) -> Iterator[int]:
    """The pid of a process that is in this program."""
    script = folder / "rank.py"
    script.write_text(f"{BEGIN}{program}\n")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def settled(pid: int) -> Sight:
    """The process when its main thread uses a core, or has slept for so long that this counts."""
    while True:
        problems: list[str] = []
        sight = look([pid], LIMITS.still_s, problems)[pid]
        assert sight.main is not None, problems
        if sight.main.running or sight.main.still_s > 1.0:
            return sight


def is_late(one: Stance, others_s: float) -> bool:
    """Whether it is, while the other rank has waited for so long. All that it has done so far was
    done by then."""
    waiting = Stance(RankState.COLLECTIVE, op="all_reduce", still_s=others_s)
    return late_ranks({0: waiting, 1: one}, {0: waiting}, LIMITS) == [1]


@pytest.mark.parametrize(
    ("program", "late_after_s"),
    [
        ("computes()", LIMITS.moving_s),
        ("moves()", LIMITS.moving_s),
        ("spins()", LIMITS.busy_s),
        ("beside('computes'); queue.Queue().get()", LIMITS.moving_s),
        ("beside('moves'); queue.Queue().get()", LIMITS.moving_s),
        ("beside('receives'); threading.Event().wait()", LIMITS.moving_s),
        ("beside('serves'); queue.Queue().get()", None),
        ("beside('sleeps'); queue.Queue().get()", LIMITS.still_s),
        ("beside('polls'); queue.Queue().get()", LIMITS.still_s),
        ("beside('backs_off'); queue.Queue().get()", LIMITS.moving_s),
        ("beside('backs_off'); takes_a_lock()", LIMITS.still_s),
        ("os.system('sleep 25; true')", LIMITS.moving_s),
        ("subprocess.call(['sleep', '25'])", LIMITS.moving_s),
        ("subprocess.call(['sleep', '999'])", LIMITS.still_s),
        ("os.system('while true; do sleep 1; done')", LIMITS.still_s),
        ("beside('spins'); queue.Queue().get()", LIMITS.still_s),
        ("beside('metrics'); queue.Queue().get()", LIMITS.still_s),
        ("beside('computes'); takes_a_lock()", LIMITS.still_s),
    ],
)
def test_what_is_late_when(program: str, late_after_s: float | None, tmp_path: Path) -> None:
    with running(program, tmp_path) as pid:
        one = stance(settled(pid))
    assert one.doing is RankState.CODE, one
    late = [s for s in (LIMITS.still_s, LIMITS.busy_s, LIMITS.moving_s) if is_late(one, s)]
    if late_after_s is None:
        assert not late, one
    else:
        assert late[:1] == [late_after_s], one
