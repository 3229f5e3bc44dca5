"""A socket that sends later: in order, at a rate, at its end, and past its process's own end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from distcore.transports import late_socket
from distcore.transports.late_socket import FOREVER, LateSocket


class Held(LateSocket):
    """Holds back until told otherwise."""

    until = 0.0

    def held_until(self) -> float:
        return self.until


@pytest.fixture
def ends() -> Iterator[tuple[Held, socket.socket]]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.settimeout(20)
    with other:
        held = Held(one)
        yield held, other
        held.until = 0.0
        held.close()


def put(late: LateSocket, data: bytes, bytes_per_s: float | None = None) -> None:
    late.put(memoryview(data), bytes_per_s)


def received(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := end.recv(size - len(found))):
        found += part
    return found


def test_nothing_is_late_unless_asked(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    put(late, b"now")
    assert received(end, 3) == b"now"
    assert late._pump is None


def test_what_comes_behind_waits_as_well(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    began = time.monotonic()
    late.free_at = began + 0.2
    put(late, b"first")
    late.free_at = 0.0
    put(late, b"second")
    assert received(end, 11) == b"firstsecond"
    assert time.monotonic() - began >= 0.2


def test_a_rate(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    began = time.monotonic()
    put(late, bytes(50_000), 200_000)
    assert received(end, 50_000) == bytes(50_000)
    assert time.monotonic() - began >= 0.25


def test_what_is_held_goes_on_when_it_may(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    late.until = FOREVER
    put(late, b"held")
    end.settimeout(0.1)
    with pytest.raises(TimeoutError):
        end.recv(1)
    with late.changed:
        late.until = 0.0
        late.changed.notify()
    end.settimeout(20)
    assert received(end, 4) == b"held"


def test_the_end_comes_behind_what_is_late(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    late.free_at = time.monotonic() + 0.1
    put(late, b"last")
    late.put_end()
    assert received(end, 5) == b"last"


def test_a_close_does_not_take_away_what_is_late(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    late.free_at = time.monotonic() + 0.1
    put(late, b"last")
    late.close()
    assert received(end, 5) == b"last"


def test_the_process_waits_for_what_is_late_at_its_end(ends: tuple[Held, socket.socket]) -> None:
    late, end = ends
    late.free_at = time.monotonic() + 0.2
    put(late, b"last")
    late_socket._drain_all()
    end.setblocking(False)
    assert end.recv(5) == b"last"


def test_but_not_for_what_is_held_for_ever(ends: tuple[Held, socket.socket]) -> None:
    late, _end = ends
    late.until = FOREVER
    put(late, b"never")
    began = time.monotonic()
    late_socket._drain_all()
    assert time.monotonic() - began < 5


def test_a_full_backlog_is_told(ends: tuple[Held, socket.socket]) -> None:
    late, _end = ends
    late.until = FOREVER
    put(late, bytes(late_socket.BACKLOG_BYTES))
    assert not late.is_full
    put(late, b"more")
    assert late.is_full
