"""A peer that answers is never given up, however little it takes. (One that does not: see the tests
on two hosts.)"""

from __future__ import annotations

import gc
import select
import socket
import time

from distcore.bootstrap import sockets
from distcore.bootstrap.sockets import NEVER, HalfOpen

TIMEOUT_MS = 1000


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _address = listener.accept()
    for end in (one, other):
        sockets.tune(end, TIMEOUT_MS)
    return one, other


def test_a_peer_that_takes_nothing_for_a_while() -> None:
    """Its window is closed for three times as long as it might be out of reach."""
    watch = HalfOpen()
    one, other = connected()
    with one, other:
        assert watch.add(one, TIMEOUT_MS)
        sent = 0
        until = time.monotonic() + 3 * TIMEOUT_MS / 1000
        while time.monotonic() < until:
            watch.look()
            if select.select([], [one], [], 0.02)[1]:
                sent += one.send(bytes(1_000_000))
        taken = 0
        while taken < sent:
            select.select([other], [], [], 10)
            taken += len(other.recv(1_000_000))
        assert one.send(b"more") == 4
        assert watch.due - time.monotonic() < 0.1


def test_what_nobody_uses_any_more_is_forgotten() -> None:
    watch = HalfOpen()
    assert watch.due == NEVER
    one, other = connected()
    assert watch.add(one, TIMEOUT_MS)
    assert watch.add(other, TIMEOUT_MS)
    one.close()
    other.close()
    del other
    gc.collect()
    while watch.due != NEVER:
        watch.look()
        time.sleep(0.01)


def test_unix_sockets_need_nobody_to_watch_them() -> None:
    watch = HalfOpen()
    one, other = socket.socketpair()
    with one, other:
        assert not watch.add(one, TIMEOUT_MS)
    assert watch.due == NEVER
