"""Messages outside of batches: each pair of ranks has a connection for each direction and tag.

NCCL matches messages by their order alone, and what is on one stream waits for what is before it.
With connections of their own, messages of other tags overtake each other, and two ranks that each
send first and receive then do not wait for each other. A connection takes a communicator (of two
ranks: some tens of MiB of the GPU) and is made in the background by the first message on it, which
waits for it; the program does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from .communicators import Comm, Connector
from .device import Device
from .lane import StreamLane
from .life import NcclLife
from .outbox import Path
from .planned import Planned
from .work import StreamWork

Launch = Callable[[StreamLane, Comm, StreamWork, Planned, Any], None]
"""(lane, member, work, what, ready): put the message on the lane's stream."""


class PairConnection:
    """The communicator and stream of one path; before it is there, the messages that wait for
    it."""

    def __init__(
        self, path: Path, life: NcclLife, connector: Connector, device: Device, index: int
    ) -> None:
        self._path = path
        self._life = life
        self._connector = connector
        self._device = device
        self._lock = Lock()
        self._member: Comm | None = None
        self._waiting: deque[tuple[StreamWork, Planned, Any]] = deque()
        self._connecting = False
        self.lane = StreamLane(device, index)

    def __repr__(self) -> str:
        state = "connected" if self._member else "connecting" if self._connecting else "new"
        return f"<Connection {self._path}: {state}, {len(self._waiting)} waiting>"

    def post(self, work: StreamWork, what: Planned, launch: Launch, ready: Any = None) -> None:
        """Launch a message after those before it, now or when the ranks are connected; `ready`: see
        `StreamLane.launch`."""
        with self._lock:
            if self._member is not None and not self._waiting:
                launch(self.lane, self._member, work, what, ready)
                return
            if self._device.capturing():
                raise RuntimeError(
                    f"{work.text}: the first message on its way cannot be captured into a CUDA "
                    f"graph, for the ranks must connect first: make one before the capture"
                )
            self._waiting.append((work, what, ready or self.lane.ready()))
            if self._connecting:
                return
            self._connecting = True
        name = f"distcore nccl {self._path.source}->{self._path.target}"
        Thread(target=self._connect, args=(work, launch), name=name, daemon=True).start()

    def _connect(self, first: StreamWork, launch: Launch) -> None:
        life, path = self._life, self._path
        ends = (path.source, path.target)
        try:
            with self._device.entered(self.lane.index):
                self._device.watches()  # what NCCL asks CUDA for is no part of another's graph
                member = self._connector.connect(
                    f"{life.prefix}/message/{path.source}/{path.target}/{path.tag}",
                    f"{first.text} of {life.described}",
                    [life.ranks[end] for end in ends],
                    ends.index(life.rank),
                    first.deadline,
                    life.check,
                )
            life.joined(member)
            while True:
                with self._lock:
                    if not self._waiting:
                        self._member = member
                        return
                    work, what, ready = self._waiting[0]
                # NCCL takes the first message when the other rank makes its call too. Whoever posts
                # another one meanwhile does not wait for that.
                launch(self.lane, member, work, what, ready)
                with self._lock:
                    self._waiting.popleft()
        except BaseException as error:
            life.fail(error)
            with self._lock:
                waiting, self._waiting = list(self._waiting), deque()
            for work, _what, _ready in waiting:
                work.finish(error)
