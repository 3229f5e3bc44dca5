"""The life of one group on NCCL: its communicators, its first failure, its end.

See `engine.Life`. What fails on one rank is told to the others through the store, whose watchdogs
then abort: a kernel that waits for a rank that is gone would wait for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Lock
from typing import Any

from ..base.deadline import Deadline
from ..engine import process_exit
from ..errors import Aborted, GroupFailed, unusable
from ..limits import DRAIN_S
from .communicators import Comm, Timer, abort_all, close_all, wait_for
from .device import Device
from .gpu_clock import GpuClock
from .library import Library
from .outbox import Outbox
from .watchdog import StreamWatch, Watchdog
from .work import StreamWork


class NcclLife:
    """Made with the group; NCCL itself is first asked by its first call."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        store: Any,
        library: Library,
        device: Device,
        clock: Timer,
    ) -> None:
        self.name = name
        self._library = library
        self._device = device
        self.ranks = tuple(ranks)
        self.rank = rank
        self.calls = 0
        # The how many-th group of this name in this store: the same on all ranks, unasked.
        number = store.add(f"nccl/{name}/{rank}", 1)
        self.token = f"{number}"
        self.prefix = f"nccl/{name}/{number}"
        self._clock = clock
        self._failure: BaseException | None = None
        self._lock = Lock()
        self._closed = False
        self._members: list[Comm] = []
        self._clocks: dict[int, GpuClock] = {}
        # torch's stores serve one request at a time, and a rank may be waiting in another.
        self._own_store: Any = store.clone() if hasattr(store, "clone") else store
        self.outbox = Outbox(self._own_store, self.prefix)
        self.watch = StreamWatch(self.members, self.fail, self._said_by_peers, self.described)
        self.watchdog = Watchdog(self._look, device, clock.now, f"distcore nccl group {name!r}")
        process_exit.watch(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "failed" if self._failure else "ready"
        return (
            f"<Life of {self.name!r}: rank {self.rank} of {len(self.ranks)}, {self.calls} calls, "
            f"{self.watch.pending} on their streams, {state}>"
        )

    @property
    def described(self) -> str:
        """The group's name for the messages."""
        return f"group {self.name!r} (rank {self.ranks[self.rank]})"

    def _look(self, now_s: float) -> None:
        self.watch.look(now_s)
        try:
            self.outbox.tell(now_s)
        except Exception:
            pass  # the store has gone with the rank that held it; NCCL finds out by itself

    def members(self) -> list[Comm]:
        with self._lock:
            return list(self._members)

    def joined(self, member: Comm) -> None:
        """A communicator of this group is connected."""
        with self._lock:
            failed = self._failure is not None
            if not failed:
                self._members.append(member)
        if failed:
            member.abort()
            raise self.unusable()

    def _clock_of(self, index: int) -> GpuClock:
        """Returns the clock of a device. All lanes share it, since each clock takes a stream."""
        with self._lock:
            if index not in self._clocks:
                self._clocks[index] = GpuClock(self._device, index)
            return self._clocks[index]

    def watched(self, lane: Any, work: StreamWork) -> None:
        """A call of this group was made on this lane; those of one lane end in their order."""
        if work.captured:
            return  # the graph runs it, as often as it likes
        self.watch.add(lane, work, self._clock_of(work.index))
        self.watchdog.start(work.index)
        failure = self._failure
        if failure is not None:  # since it was launched, and nobody else would end it
            self.watch.give_up(failure, aborted=True)

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def check(self) -> None:
        """Raise what every call raises after the first failure."""
        if self._failure is not None:
            raise self.unusable()

    def unusable(self) -> GroupFailed:
        return unusable(self.name, self.ranks, self._failure)

    def fail(self, error: BaseException) -> None:
        """The first failure: all calls end, all communicators are aborted. From any thread."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            members = list(self._members)
        # First, and not only for the waiters, should an abort hang: see `StreamWatch.give_up`.
        self.watch.give_up(error)
        if not getattr(error, "told", False):
            self._tell(error)
        abort_all(members, self._library)

    def _tell(self, error: BaseException) -> None:
        said = {
            "by": self.ranks[self.rank],
            "kind": type(error).__name__,
            "text": str(error)[:2000],
        }
        try:
            # Only the first rank's words count: those of the others are consequences.
            self._own_store.compare_set(f"{self.prefix}/failed", "", json.dumps(said))
        except Exception:
            pass  # the store has gone with the rank that held it

    def _said_by_peers(self) -> BaseException | None:
        key = f"{self.prefix}/failed"
        try:
            if not self._own_store.check([key]):
                return None
            said = json.loads(bytes(self._own_store.get(key)).decode())
            by, kind, text = int(said["by"]), str(said["kind"]), str(said["text"])
        except Exception:
            return None  # the store is gone: NCCL itself will find out
        error = GroupFailed(f"rank {by} gave up {self.described}: {kind}: {text}", by)
        error.told = True  # type: ignore[attr-defined]
        return error

    def drain(self, timeout_s: float, lane: Any = None) -> bool:
        """Wait for what is on the streams, or on this lane alone; whether it was over in time."""
        if self._failure is not None:
            return True
        deadline = Deadline.after(timeout_s)

        def empty() -> bool:
            return self._failure is not None or self.watch.pending_on(lane) == 0

        return wait_for(empty, deadline, lambda: None, self._clock)

    def abort(self, reason: str) -> None:
        self.fail(Aborted(f"group {self.name!r} was aborted: {reason}"))

    def close(self) -> None:
        process_exit.forget(self)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self.drain(DRAIN_S):
            pending = self.watch.pending
            self.abort(
                f"rank {self.ranks[self.rank]} destroyed the group while {pending} calls were "
                f"pending"
            )
        self.watchdog.stop(1.0)
        if self._failure is None:
            self.watch.release()
        with self._lock:
            if self._failure is None:
                self._failure = Aborted(f"group {self.name!r} was destroyed")
            members, self._members = self._members, []
        close_all(members, self._library)

    def close_gracefully(self) -> None:
        """The process ends: NCCL's peers notice by themselves, should they still need this rank."""
        self.watchdog.stop(1.0)

    def abandon(self) -> None:
        """This is a forked child, which CUDA serves in no way."""
        self._failure = Aborted(f"group {self.name!r} is the parent process's: CUDA does not fork")
