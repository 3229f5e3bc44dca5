"""A socket whose bytes go out later than they are given to it, in their order: at a set time, at a
rate, or once nothing holds them back any more. A thread sends what is late.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from multiprocessing import util

from ..limits import DRAIN_S, LONGEST_WAIT_S

BACKLOG_BYTES = 4 * 1024 * 1024
FOREVER = float("inf")
_PIECE_BYTES = 16 * 1024
_now = time.monotonic


class LateSocket(socket.socket):
    """Takes the place (and the descriptor) of a connected socket. Who inherits says in `send` what
    is to be `put`, and when, and in `held_until` for how long nothing goes out."""

    def __init__(self, connection: socket.socket) -> None:
        timeout = connection.gettimeout()
        super().__init__(fileno=connection.detach())
        self.settimeout(timeout)
        self.broken: OSError | None = None
        self.free_at = 0.0
        """The earliest time at which bytes that are put from now on go out."""
        self.changed = threading.Condition()
        self._backlog: deque[tuple[float, memoryview | None]] = deque()
        self._backlog_bytes = 0
        self._pump: threading.Thread | None = None
        self._end_at = FOREVER  # once it is closed: when the thread gives up
        self._owner = os.getpid()

    def held_until(self) -> float:
        """Until when, by time.monotonic(), nothing goes out; what is past holds nothing back."""
        return 0.0

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more is to be put."""
        return self._backlog_bytes > BACKLOG_BYTES

    def put(self, data: memoryview, bytes_per_s: float | None = None) -> None:
        """Send this now, or after what waits already."""
        with self.changed:
            # With nothing before it, and nothing that holds it back, it goes out at once.
            free = max(self.free_at, self.held_until()) <= _now()
            if not self._backlog and bytes_per_s is None and free:
                data = data[self._write(data) :]
            if len(data):
                self._queue(data, bytes_per_s)

    def put_end(self) -> None:
        """Nothing comes behind what was put so far but the end."""
        with self.changed:
            self._append(_now(), None)

    def shutdown(self, how: int) -> None:
        if how == socket.SHUT_WR and self._backlog:
            self.put_end()
        else:
            super().shutdown(how)

    def drop_late(self) -> None:
        """Forget what has not gone out. The caller holds `changed`."""
        self._backlog.clear()
        self._backlog_bytes = 0
        self.changed.notify()

    def close(self) -> None:
        if self._owner == os.getpid():  # a forked child has neither the thread nor its locks
            with self.changed:
                self._end_at = min(self._end_at, _now() + DRAIN_S)
                self.changed.notify()
                if self._backlog and self.broken is None:
                    return  # the thread closes it
        super().close()

    def drain(self, until: float) -> None:
        """Wait until all is out that is not held back beyond then."""
        pump = self._pump
        while pump is not None and pump.is_alive() and self._owner == os.getpid():
            with self.changed:
                if not self._backlog or max(self._backlog[0][0], self.held_until()) > until:
                    return
            left_s = until - _now()
            if left_s <= 0:
                return
            pump.join(min(left_s, 0.01))

    def _queue(self, data: memoryview, bytes_per_s: float | None) -> None:
        data = memoryview(bytes(data))  # the caller may change it once it is taken
        at = max(self.free_at, _now())
        for offset in range(0, len(data), _PIECE_BYTES):
            piece = data[offset : offset + _PIECE_BYTES]
            if bytes_per_s is not None:
                at += len(piece) / bytes_per_s
            self._append(at, piece)
        self.free_at = at

    def _append(self, at: float, piece: memoryview | None) -> None:
        self._backlog.append((at, piece))
        self._backlog_bytes += 0 if piece is None else len(piece)
        if self._pump is None:
            self._pump = threading.Thread(target=self._run, name="distcore faults", daemon=True)
            self._pump.start()
            _late.add(self)
        self.changed.notify()

    def _write(self, data: memoryview) -> int:
        try:
            return socket.socket.send(self, data)
        except BlockingIOError:
            return 0

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except OSError as error:
            self.broken = error
        except ValueError:  # it was closed meanwhile: there is no descriptor to poll
            pass
        with self.changed:
            self.drop_late()
            if self._end_at != FOREVER:
                super().close()

    def _step(self) -> bool:
        """Send the next piece; False when there is nothing left to do."""
        with self.changed:
            while not self._backlog:
                if self._end_at != FOREVER:
                    return False
                self.changed.wait()
            at, piece = self._backlog[0]
            while (until := max(at, self.held_until())) > (now := _now()):
                if now >= self._end_at or self.broken is not None:
                    return False
                self.changed.wait(min(until - now, self._end_at - now, LONGEST_WAIT_S))
                if not self._backlog:
                    return self.broken is None
        size = 0 if piece is None else len(piece)
        if piece is None:
            super().shutdown(socket.SHUT_WR)
        else:
            writable = select.poll()
            writable.register(self.fileno(), select.POLLOUT)
            while len(piece := piece[self._write(piece) :]):
                writable.poll(1000)
                if _now() > self._end_at or self.broken is not None:
                    return False
        with self.changed:
            if not self._backlog:  # a reset took it away meanwhile
                return False
            self._backlog.popleft()
            self._backlog_bytes -= size
        return True


_late: weakref.WeakSet[LateSocket] = weakref.WeakSet()
_watching_process = 0


def send_before_the_end() -> None:
    """From now on the end of this process waits for what is late, as TCP goes on to send when a
    process has ended. To be called before what closes the connections gracefully is registered."""
    global _watching_process
    if _watching_process == os.getpid():
        return
    if not _watching_process:
        atexit.register(_drain_all)
    _watching_process = os.getpid()
    # Children of multiprocessing end past atexit.
    util.Finalize(None, _drain_all, exitpriority=-200)


def _drain_all() -> None:
    until = _now() + DRAIN_S
    for late in list(_late):
        late.drain(until)
