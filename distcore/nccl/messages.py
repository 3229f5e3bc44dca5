"""Messages outside of batches: each pair of ranks has a connection for each direction and tag.

NCCL matches messages by their order alone, and what is on one stream waits for what is before it.
With connections of their own, messages of other tags overtake each other, and two ranks that each
send first and receive then do not wait for each other. A connection takes a communicator (of two
ranks: some tens of MiB of the GPU) and is made in the background by the first message on it, which
waits for it; the program does not.

For a receive from any source NCCL needs to know from whom, so the senders tell, through the store.
Nobody tells before somebody asks: a program without such receives pays nothing. Once a rank of the
group has received from any source, every rank's watchdog writes down how many messages outside of
batches it has sent to whom; so a message from any source is found some tens of milliseconds after
it was sent, the first one of a group up to a second later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import Any

from torch import Tensor

from ..base.background_thread import BackgroundThread
from ..base.deadline import wait_for
from . import plan
from .communicators import Comm
from .life import NcclLife, Path, sent_key
from .plan import Planned
from .work import StreamLane, StreamWork

Post = Callable[[Path], None]
"""Receive on this path: the message is there, or on its way."""


class SourceInbox:
    """The receives of one tag, in the order they were made, while one of them is from any source;
    those from named ranks pass by otherwise."""

    def __init__(self, life: NcclLife, tag: int) -> None:
        self._life = life
        self._tag = tag
        self._lock = Lock()
        self._received: Counter[int] = Counter()
        self._waiting: deque[tuple[int | None, StreamWork, Post]] = deque()
        self._peers: Sequence[int] = [rank for rank in range(len(life.ranks)) if rank != life.rank]

    def receive(self, source: int | None, work: StreamWork, post: Post) -> None:
        """`post` is called with the path of the message that this receive is for."""
        with self._lock:
            if source is not None and not self._waiting:
                self._received[source] += 1
                alone = True
            else:
                alone = False
                self._waiting.append((source, work, post))
                start = len(self._waiting) == 1
        if alone:
            assert source is not None
            post(self._path(source))
        elif start:
            name = f"distcore nccl receives of tag {self._tag}"
            BackgroundThread(self._run, name).start()

    def _path(self, source: int) -> Path:
        return Path(source, self._life.rank, self._tag)

    def _run(self) -> None:
        try:
            self._life.store.set(f"{self._life.prefix}/any", "")
            while True:
                with self._lock:
                    source, work, post = self._waiting[0]
                found = self._found(work) if source is None else source
                work.source = found
                post(self._path(found))
                with self._lock:
                    self._received[found] += 1
                    self._waiting.popleft()
                    if not self._waiting:
                        return
        except BaseException as error:
            self._life.fail(error)
            with self._lock:
                waiting, self._waiting = list(self._waiting), deque()
            for _source, work, _post in waiting:
                work.finish(error)

    def _found(self, work: StreamWork) -> int:
        """The rank of the group whose next message this receive is for."""
        found: list[int] = []

        def there() -> bool:
            for peer in self._peers:
                key = sent_key(self._life.prefix, self._path(peer))
                sent = (
                    int(bytes(self._life.store.get(key)).decode())
                    if self._life.store.check([key])
                    else 0
                )
                if sent > self._received[peer]:
                    found.append(peer)
                    return True
            return False

        # The group's watchdog knows when this is late, and ends it for all ranks.
        while not wait_for(there, work.deadline, check=self._life.check, clock=self._life.clock):
            self._life.check()
        return found[0]


Launch = Callable[[StreamLane, Comm, StreamWork, Planned, Any], None]
"""(lane, member, work, what, ready): put the message on the lane's stream."""


class PairConnection:
    """The communicator and stream of one path; before it is there, the messages that wait for
    it."""

    def __init__(self, path: Path, life: NcclLife, index: int) -> None:
        self._path = path
        self._life = life
        self._lock = Lock()
        self._member: Comm | None = None
        self._waiting: deque[tuple[StreamWork, Planned, Any]] = deque()
        self._connecting = False
        self.lane = StreamLane(life.device, index)

    def post(self, work: StreamWork, what: Planned, launch: Launch, ready: Any = None) -> None:
        """Launch a message after those before it, now or when the ranks are connected; `ready`: see
        `StreamLane.launch`."""
        with self._lock:
            if self._member is not None and not self._waiting:
                launch(self.lane, self._member, work, what, ready)
                return
            if self._life.device.capturing():
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
            with self._life.device.entered(self.lane.index):
                self._life.device.watches()  # what NCCL asks CUDA for is no part of another's graph
                member = self._life.connector.connect(
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


_SOURCE, _TARGET = 0, 1
"""The ranks of a message's communicator."""


class Messenger:
    """The messages of a group: which connection each takes, and in which order. Connections are
    made by their first message."""

    def __init__(self, life: NcclLife, launch: Launch) -> None:
        self._life = life
        self._launch = launch
        self._inboxes: dict[int, SourceInbox] = {}
        self._connections: dict[tuple[Path, int], PairConnection] = {}
        self._lock = Lock()

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
                inbox = self._inboxes[tag] = SourceInbox(self._life, tag)
        if peer is None:
            if self._life.device.capturing():
                raise RuntimeError(
                    f"{work.text}: a receive from any source cannot be captured into a CUDA "
                    f"graph, for the source is not known before it sends: name it"
                )
            self._life.watched(inbox, work)

        # Now, on the caller's thread: it may be posted later, by another.
        ready = self._life.device.event(timed=False)
        ready.record(self._life.device.current_stream(work.index))

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
                found = self._connections[path, index] = PairConnection(path, self._life, index)
            return found
