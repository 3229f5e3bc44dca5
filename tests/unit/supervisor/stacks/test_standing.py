"""What keeps a process that does not move, and whether it may go on: real processes, one look."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from distcore.bootstrap import listener
from distdebug.record.snapshot import Standstill
from distdebug.supervisor.stacks.sights import Sight, Thread, look
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack
from distdebug.supervisor.stacks.standstill_watch import standstill_of
from tests.support.waiting import until

BEFORE = """
import atexit, http.server, queue, socket, subprocess, sys, tempfile, threading, time
import concurrent.futures
service = socket.create_server(("127.0.0.1", 0))
def ready(): print(flush=True)
def connected():
    return socket.create_connection(service.getsockname())
def serving():
    return http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
def prefetch(): queue.Queue().get()
def trickle(connection):
    while True:
        connection.send(b"x")
        time.sleep(0.2)
"""
PROGRAMS = {
    "polls a lock file": """
def wait_for(lock_path):
    ready()
    while True: time.sleep(0.05)
wait_for("/run/job/ab.lock")
""",
    "thread at the end": """
def upload(): queue.Queue().get()
threading.Thread(target=upload, name="uploader").start()
ready()
""",
    "thread without code of its own": """
threading.Thread(target=prefetch, name="prefetcher", daemon=True).start()
threading.Thread(target=queue.Queue().get, name="listener").start()
ready()
""",
    "executor at the end": """
threading.Thread(target=prefetch, name="prefetcher", daemon=True).start()
pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="saver")
pool.submit(queue.Queue().get)
ready()
""",
    "exit handler": """
def flush():
    connection = connected()
    ready()
    connection.recv(1)
atexit.register(flush)
""",
    "waits for its child": """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
ready()
child.wait()
""",
    "secret": """
def wait(api_token, url):
    ready()
    threading.Event().wait()
wait("/secret/abc", "https://host/path?key=hidden")
""",
    "serves": "server = serving(); ready(); server.serve_forever()",
    "serves in a thread": """
threading.Thread(target=serving().serve_forever, daemon=True).start()
ready()
threading.Event().wait()
""",
    "reads its input": "ready(); input()",
    "reads a pipe as its input": "ready(); sys.stdin.readline()",
    "sleeps until a time": "ready(); time.sleep(500)",
    "timer at the end": """
threading.Timer(900, print).start()
ready()
""",
    "sleeps in a thread at the end": """
def upload(): time.sleep(500)
threading.Thread(target=upload).start()
ready()
""",
    "hears of its child": """
code = "import time\\nwhile True: print(flush=True); time.sleep(0.2)"
child = subprocess.Popen([sys.executable, "-Sc", code], stdout=subprocess.PIPE)
ready()
for line in child.stdout: pass
""",
    "waits for a message": """
import zmq
server = zmq.Context().socket(zmq.REP)
server.bind_to_random_port("tcp://127.0.0.1")
ready()
server.recv()
""",
    "waits for an editor": """
import debugpy
debugpy.listen(("127.0.0.1", 0))
ready()
debugpy.wait_for_client()
""",
    "downloads": """
connection = connected()
other, _ = service.accept()
threading.Thread(target=trickle, args=(other,), daemon=True).start()
ready()
while connection.recv(1): pass
""",
}
QUIET_S = 1.0
MAY_GO_ON = {
    "serves": "serves at 127.0.0.1:",
    "serves in a thread": "serves at 127.0.0.1:",
    "reads its input": "waits for its input",
    "reads a pipe as its input": "waits for its input",
    "sleeps until a time": "sleeps until a time of its own",
    "sleeps in a thread at the end": "sleeps until a time of its own",
    "timer at the end": "sleeps until a time of its own",
    "hears of its child": "moves data",
    "waits for a message": "waits for requests",
    "waits for an editor": "waits for requests",
    "downloads": "moves data",
}
"""What is said of those that somebody may bring on; of all others nothing."""


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Standstill]]:
    """All programs are started together, and looked at once, when each has come to its wait."""
    terminal, own_end = pty.openpty()
    inputs = {"reads its input": own_end, "reads a pipe as its input": subprocess.PIPE}
    programs = {
        name: subprocess.Popen(
            [sys.executable, "-c", BEFORE + text],
            stdin=inputs.get(name, subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for name, text in PROGRAMS.items()
    }
    try:
        for program in programs.values():
            assert program.stdout is not None
            program.stdout.readline()
        pids = {name: program.pid for name, program in programs.items()}
        seen: dict[str, Standstill] = {}

        def asleep() -> bool:
            sights = look(pids.values(), QUIET_S, [])
            seen.update({name: standstill_of(sights[pid], 7, 0.1) for name, pid in pids.items()})
            mains = {name: sights[pid].main for name, pid in pids.items()}
            busy.clear()
            busy.update(n for n, main in mains.items() if main is None or main.running)
            goes_on = {name for name, one in seen.items() if one.goes_on}
            return not busy and goes_on == MAY_GO_ON.keys()

        busy: set[str] = set()
        until(asleep, lambda: f"these run: {busy}; {seen}")
        yield seen
    finally:
        for program in programs.values():
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
        os.close(terminal)
        os.close(own_end)


@pytest.mark.parametrize(
    ("name", "function", "thread", "leaving", "awaits"),
    [
        ("polls a lock file", "wait_for", "", False, "with /run/job/ab.lock in hand"),
        ("thread at the end", "upload", "uploader", True, ""),
        ("exit handler", "flush", "", True, "for 127.0.0.1:"),
        ("waits for its child", "<module>", "", False, ""),
        ("secret", "wait", "", False, "with https://host/path in hand"),
    ],
)
def test_what_keeps_it(
    found: dict[str, Standstill],
    name: str,
    function: str,
    thread: str,
    leaving: bool,
    awaits: str,
) -> None:
    one = found[name]
    assert one.site is not None
    assert (one.site.function, one.thread, one.leaving) == (function, thread, leaving), one
    assert one.awaits.startswith(awaits), one
    assert (one.goes_on, one.since_ns) == ("", 7)


@pytest.mark.parametrize(
    ("name", "thread"),
    [("thread without code of its own", "listener"), ("executor at the end", "saver_0")],
)
def test_a_thread_without_code_of_the_programs_keeps_it(
    found: dict[str, Standstill], name: str, thread: str
) -> None:
    """Another thread has such code, but is a daemon thread, which keeps nobody."""
    one = found[name]
    assert (one.thread, one.leaving, one.site) == (thread, True, None), one


@pytest.mark.parametrize("name", MAY_GO_ON)
def test_what_may_bring_it_on(found: dict[str, Standstill], name: str) -> None:
    assert found[name].goes_on.startswith(MAY_GO_ON[name]), found[name]


@pytest.mark.parametrize(("file", "goes_on"), [(listener.__file__, ""), ("/u/serve.py", "serves")])
def test_the_listener_for_other_ranks_brings_nobody_on(file: str, goes_on: str) -> None:
    """At DETAIL every rank has it."""
    polls, accepts = (Frame("poll", "/u/train.py", 3),), (Frame("run", file, 9),)
    threads = [
        Thread(ThreadStack(1, 1, "MainThread", False, False, polls), 9.0, False),
        Thread(ThreadStack(2, 2, "", False, False, accepts), 9.0, False, serves="127.0.0.1:1"),
    ]
    found = standstill_of(Sight(1, "S", threads), 7, 9.0)
    assert found.goes_on.partition(" ")[0] == goes_on, found
