"""Messages of a group outside of batches: which connection each takes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from torch import Tensor

from . import plan
from .communicators import Connector, Timer
from .device import Device
from .inbox import SourceInbox
from .life import NcclLife
from .messages import Launch, PairConnection
from .outbox import Path
from .planned import Planned
from .work import StreamWork

_SOURCE, _TARGET = 0, 1
"""The ranks of a message's communicator."""


class Messenger:
    """Connections are made by their first message; see `messages` and `inbox`."""

    def __init__(
        self,
        life: NcclLife,
        connector: Connector,
        store: Any,
        clock: Timer,
        device: Device,
        launch: Launch,
    ) -> None:
        self._life = life
        self._connector = connector
        self._store = store
        self._clock = clock
        self._device = device
        self._launch = launch
        self._inboxes: dict[int, SourceInbox] = {}
        self._connections: dict[tuple[Path, int], PairConnection] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<Messenger of {self._life.described}: {len(self._connections)} connections>"

    def send(
        self, work: StreamWork, tensor: Tensor, peer: int, tag: int, tensors: Sequence[Tensor]
    ) -> None:
        what = Planned(lambda: plan.send(tensor, _TARGET, tag), tuple(tensors))
        path = Path(self._life.rank, peer, tag)
        self._life.outbox.sent(path)
        connection = self._connection(path, work.index)
        connection.post(work, what, self._launch)
        self._life.watched(connection.lane, work)

    def receive(
        self,
        work: StreamWork,
        make: Callable[[int], plan.Plan],
        peer: int | None,
        tag: int,
        tensors: Sequence[Tensor],
    ) -> None:
        """`make`: the plan, for a source; `peer` None: the first whose message is found."""
        what = Planned(lambda: make(_SOURCE), tuple(tensors))
        with self._lock:
            inbox = self._inboxes.get(tag)
            if inbox is None:
                inbox = self._inboxes[tag] = SourceInbox(self._life, self._store, tag, self._clock)
        if peer is None:
            if self._device.capturing():
                raise RuntimeError(
                    f"{work.text}: a receive from any source cannot be captured into a CUDA "
                    f"graph, for the source is not known before it sends: name it"
                )
            self._life.watched(inbox, work)

        # Now, on the caller's thread: it may be posted later, by another.
        ready = self._device.event(timed=False)
        ready.record(self._device.current_stream(work.index))

        def post(path: Path) -> None:
            connection = self._connection(path, work.index)
            connection.post(work, what, self._launch, ready)
            if peer is not None:
                self._life.watched(connection.lane, work)

        inbox.receive(peer, work, post)

    def _connection(self, path: Path, index: int) -> PairConnection:
        with self._lock:
            found = self._connections.get((path, index))
            if found is None:
                found = self._connections[path, index] = PairConnection(
                    path, self._life, self._connector, self._device, index
                )
            return found
