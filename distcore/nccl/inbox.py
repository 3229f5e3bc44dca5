"""Receives from any source: NCCL needs to know from whom, so the senders tell, through the store.

Nobody tells before somebody asks: a program without such receives pays nothing. Once a rank of the
group has received from any source, every rank's watchdog writes down how many messages outside of
batches it has sent to whom; so a message from any source is found some tens of milliseconds after
it was sent, the first one of a group up to a second later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from ..base.background_thread import BackgroundThread
from .communicators import Timer, wait_for
from .life import NcclLife
from .outbox import Path, sent_key
from .work import StreamWork

Post = Callable[[Path], None]
"""Receive on this path: the message is there, or on its way."""


class SourceInbox:
    """The receives of one tag, in the order they were made, while one of them is from any source;
    those from named ranks pass by otherwise."""

    def __init__(self, life: NcclLife, store: Any, tag: int, clock: Timer) -> None:
        self._life = life
        self._store = store
        self._tag = tag
        self._clock = clock
        self._lock = Lock()
        self._received: Counter[int] = Counter()
        self._waiting: deque[tuple[int | None, StreamWork, Post]] = deque()
        self._peers: Sequence[int] = [rank for rank in range(len(life.ranks)) if rank != life.rank]

    def __repr__(self) -> str:
        return f"<Inbox of tag {self._tag}: {len(self._waiting)} waiting>"

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
            self._store.set(f"{self._life.prefix}/any", "")
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
                sent = int(bytes(self._store.get(key)).decode()) if self._store.check([key]) else 0
                if sent > self._received[peer]:
                    found.append(peer)
                    return True
            return False

        # The group's watchdog knows when this is late, and ends it for all ranks.
        while not wait_for(there, work.deadline, self._life.check, self._clock):
            self._life.check()
        return found[0]
