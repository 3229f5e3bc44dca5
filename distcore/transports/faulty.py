"""Connections that misbehave on purpose: a socket that delays, throttles, drops, truncates,
duplicates, corrupts or resets what is sent on it, frame by frame, as a plan says (`fault_plan`).

It stands where a transport gets its connections (`faulty_connect` around the `connect` of a `Mesh`
or the `dial` of a `Mailbox`), knows nothing of calls, and sees only this rank's sending side.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .fault_plan import Fault, FaultPlan, Injection, Kind
from .frames import DATA, HEADER, IN_MEMORY
from .parcel_stream import BODY, EAGER, OFFER

__all__ = ["faulty_connect"]

Connect = Callable[[int, float], socket.socket]
"""(peer, deadline by time.monotonic()) -> a connected socket to that group rank."""

LINGER_S = 10.0
"""How long after its close a connection goes on to send what was delayed."""
_BACKLOG_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 16 * 1024
_PAUSE_S = 0.001
_COUNTED = (DATA, EAGER, OFFER, BODY)
_now = time.monotonic


def faulty_connect(connect: Connect, plan: FaultPlan, rank: int, lane: int = 0) -> Connect:
    """`connect`, or a mailbox's `dial`, for group rank `rank` with the plan's faults on what it
    sends. Connections that the plan does not mention are given as they are."""

    def connect_to(peer: int, deadline: float) -> socket.socket:
        connection = connect(peer, deadline)
        if not plan.concerns(rank, peer, lane):
            return connection
        return FaultySocket(connection, plan, rank, peer, lane)

    return connect_to


class FaultySocket(socket.socket):
    """Takes the place (and the descriptor) of a connected socket. `send` and `sendmsg` go through
    the plan; `sendall`, and `sendmsg` with descriptors, which no frame is sent by, do not.

    What the socket does not take at once, or not yet, a thread sends.
    """

    def __init__(
        self, connection: socket.socket, plan: FaultPlan, rank: int, peer: int, lane: int
    ) -> None:
        timeout = connection.gettimeout()
        super().__init__(fileno=connection.detach())
        self.settimeout(timeout)
        self._plan = plan
        self._place = (rank, peer, lane)
        self._frame = 0
        self._head = bytearray()
        self._left = 0
        self._kept: bytearray | None = None  # the frame so far, where all of it is needed
        self._faults: list[Fault] = []
        self._keep_bytes: int | None = None  # of a truncated frame: what is still to be sent
        self._rate: float | None = None
        self._over = False  # nothing is sent any more
        self._free_at = 0.0
        self._changed = threading.Condition()
        self._backlog: deque[tuple[float, memoryview | None]] = deque()
        self._backlog_bytes = 0
        self._pump: threading.Thread | None = None
        self._broken: OSError | None = None
        self._end_at = float("inf")  # once it is closed: when the thread gives up
        self._owner = os.getpid()

    # -- what the transport calls ------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ARG002 - the socket's signature
        return self._take([data])

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), *rest: Any) -> int:
        if ancdata:
            return super().sendmsg(buffers, ancdata, *rest)
        return self._take(buffers)

    def close(self) -> None:
        if self._owner == os.getpid():  # a forked child has neither the thread nor its locks
            with self._changed:
                self._end_at = min(self._end_at, _now() + LINGER_S)
                self._changed.notify()
                if self._backlog and self._broken is None:
                    return  # the thread closes it
        super().close()

    # -- frames ------------------------------------------------------------------------------------

    def _take(self, buffers: Iterable[Any]) -> int:
        if self._broken is not None:
            raise self._broken
        if self._backlog_bytes > _BACKLOG_BYTES:
            time.sleep(_PAUSE_S)  # the caller's poll says "writable": keep it from spinning
            raise BlockingIOError
        taken = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            taken += len(view)
            self._parse(view)
        return taken

    def _parse(self, view: memoryview) -> None:
        while len(view):
            if not self._left:
                missing = HEADER.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < HEADER.size:
                    return
                head, self._head = bytes(self._head), bytearray()
                self._begin(head)
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            self._emit(part)
            if not self._left:
                self._end()

    def _begin(self, head: bytes) -> None:
        _magic, kind, flags, text_bytes, *_rest, length = HEADER.unpack(head)
        self._left = text_bytes + (0 if flags & IN_MEMORY and kind == DATA else length)
        self._faults, self._rate = [], None
        if kind in _COUNTED:
            self._faults = self._plan.for_frame(*self._place, self._frame)
            self._frame += 1
        whole = False
        for fault in self._faults:
            match fault.kind:
                case Kind.RESET:
                    self._tell(fault)
                    self._reset()
                case Kind.DELAY:
                    assert fault.delay_s is not None
                    self._free_at = max(self._free_at, _now()) + fault.delay_s
                    self._tell(fault)
                case Kind.THROTTLE:
                    self._rate = fault.bytes_per_s
                    self._tell(fault)
                case Kind.TRUNCATE:
                    self._keep_bytes = fault.keep_bytes
                    self._tell(fault)
                case Kind.CORRUPT if self._left <= text_bytes:
                    pass  # there is no payload
                case _:
                    whole = True
        self._kept = bytearray() if whole else None
        self._text_bytes = text_bytes
        self._emit(memoryview(head))

    def _emit(self, part: memoryview) -> None:
        """The next part of the current frame."""
        if self._kept is not None:
            self._kept += part
        else:
            self._pass(part)

    def _end(self) -> None:
        """The current frame is whole."""
        frame, self._kept = self._kept, None
        times = 1
        for fault in self._faults if frame is not None else ():
            match fault.kind:
                case Kind.DROP:
                    times = 0
                case Kind.DUPLICATE:
                    times *= 2
                case Kind.CORRUPT:
                    assert frame is not None
                    self._flip(frame)
                case _:
                    continue
            self._tell(fault)
        if frame is not None:
            for _ in range(times):
                self._pass(memoryview(bytes(frame)))
        if self._keep_bytes is not None:  # of a frame that was shorter than that
            self._keep_bytes = None
            self._finish_sending()

    def _flip(self, frame: bytearray) -> None:
        start = HEADER.size + self._text_bytes
        if len(frame) > start:
            bit = self._plan.dice(*self._place, self._frame, "bit").randrange(
                8 * (len(frame) - start)
            )
            frame[start + bit // 8] ^= 1 << bit % 8

    def _tell(self, fault: Fault) -> None:
        if self._plan.happened is not None:
            self._plan.happened(Injection(fault, *self._place, self._frame - 1))

    # -- bytes -------------------------------------------------------------------------------------

    def _pass(self, data: memoryview) -> None:
        """Send this now, or after what waits already."""
        if self._over:
            return
        if self._keep_bytes is not None:
            data = data[: self._keep_bytes]
            self._keep_bytes -= len(data)
        with self._changed:
            if not self._backlog and self._rate is None and self._free_at <= _now():
                data = data[self._write(data) :]
            if len(data):
                self._queue(data)
        if self._keep_bytes == 0:
            self._keep_bytes = None
            self._finish_sending()

    def _queue(self, data: memoryview) -> None:
        data = memoryview(bytes(data))  # the caller may change it once it is taken
        at = max(self._free_at, _now())
        for offset in range(0, len(data), _PIECE_BYTES):
            piece = data[offset : offset + _PIECE_BYTES]
            if self._rate is not None:
                at += len(piece) / self._rate
            self._append(at, piece)
        self._free_at = at

    def _append(self, at: float, piece: memoryview | None) -> None:
        self._backlog.append((at, piece))
        self._backlog_bytes += 0 if piece is None else len(piece)
        if self._pump is None:
            self._pump = threading.Thread(target=self._run, name="distcore faults", daemon=True)
            self._pump.start()
        self._changed.notify()

    def _finish_sending(self) -> None:
        """Nothing comes behind what was sent so far but the end."""
        self._over = True
        with self._changed:
            self._append(_now(), None)

    def _write(self, data: memoryview) -> int:
        try:
            return super().send(data)
        except BlockingIOError:
            return 0

    def _reset(self) -> None:
        """End the connection at once, for both sides, whatever is on its way."""
        error = ConnectionResetError(104, "Connection reset by an injected fault")
        self._broken, self._over = error, True
        self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Whoever polls the descriptor keeps it, and finds it at its end.
        dead, other = socket.socketpair()
        other.close()
        with self._changed, dead:
            self._backlog.clear()
            os.dup2(dead.fileno(), self.fileno(), inheritable=False)
        raise error

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except OSError as error:
            self._broken = error
        except ValueError:  # it was closed meanwhile: there is no descriptor to poll
            pass
        with self._changed:
            self._backlog.clear()
            self._backlog_bytes = 0
            if self._end_at != float("inf"):
                super().close()

    def _step(self) -> bool:
        """Send the next piece; False when there is nothing left to do."""
        with self._changed:
            while not self._backlog:
                if self._end_at != float("inf"):
                    return False
                self._changed.wait()
            at, piece = self._backlog[0]
            while (wait_s := min(at, self._end_at) - _now()) > 0:
                self._changed.wait(wait_s)
                if self._broken is not None:
                    return False
        size = 0 if piece is None else len(piece)
        if piece is None:
            self.shutdown(socket.SHUT_WR)
        else:
            writable = select.poll()
            writable.register(self.fileno(), select.POLLOUT)
            while len(piece := piece[self._write(piece) :]):
                writable.poll(1000)
                if _now() > self._end_at or self._broken is not None:
                    return False
        with self._changed:
            if not self._backlog:  # a reset took it away meanwhile
                return False
            self._backlog.popleft()
            self._backlog_bytes -= size
        return True
