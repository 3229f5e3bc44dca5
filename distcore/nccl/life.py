"""The life of one group on NCCL: its communicators, its calls on their streams, its first failure,
its end.

See `engine.Life`. `StreamWatch` finds which calls are over, which are late and what failed, one
look at a time, without a clock or a thread of its own; `Watchdog` is the thread that lets it look.
What a look costs is one question to CUDA for each stream, and one to NCCL for each communicator.
What fails on one rank is told to the others through the store, whose watchdogs then abort: a kernel
that waits for a rank that is gone would wait for ever. The watchdog also tells what this rank has
sent, to receivers from any source (see `messages`).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Lock
from typing import Any

from ..base.background_thread import BackgroundThread
from ..base.deadline import Deadline, Timer, extended, wait_for
from ..engine import process_exit
from ..errors import Aborted, DeadlineExceeded, GroupFailed, unusable
from ..groups.process_group import Origin
from ..limits import ASK_EVERY_S, DRAIN_S, REST_PAUSE_S
from .communicators import Comm, Connector, abort_all, close_all
from .device import Cuda, GpuClock
from .library import Library
from .work import StreamLane, StreamWork


@dataclass(eq=False)
class StreamWatch:
    """The watch of one group. `fail(error)` ends it; `peers()` gives what another rank says went
    wrong.

    The calls of one lane end in their order, so only the first of each is asked.
    """

    _members: Callable[[], Iterable[Comm]]
    _fail: Callable[[BaseException], None]
    _peers: Callable[[], BaseException | None]
    _describe: str
    _lock: Lock = field(default_factory=Lock)
    _pending: dict[Any, deque[StreamWork]] = field(default_factory=dict)
    _clocks: dict[Any, GpuClock] = field(default_factory=dict)
    _asked_s: float = 0.0

    @property
    def pending(self) -> int:
        return self.pending_on(None)

    def pending_on(self, lane: Any) -> int:
        """Calls on this lane; on all of them for None."""
        with self._lock:
            lanes = self._pending.values() if lane is None else [self._pending.get(lane, ())]
            return sum(len(one) for one in lanes)

    def add(self, lane: Any, work: StreamWork, clock: GpuClock) -> None:
        """A call was made on this lane; it is launched now, or will be."""
        with self._lock:
            self._pending.setdefault(lane, deque()).append(work)
            self._clocks[lane] = clock

    def release(self) -> None:
        """All calls are over: their streams are free for other groups."""
        with self._lock:
            lanes, clocks = list(self._pending), set(self._clocks.values())
            self._pending.clear()
        for lane in (*lanes, *clocks):
            if isinstance(lane, StreamLane | GpuClock):
                lane.release()

    def look(self, now_s: float) -> None:
        """Finish what is over; fail the group for what is late or wrong."""
        try:
            self._finish_those_over()
            self._fail_for_the_late(now_s)
            for member in self._members():
                error = member.error()
                if error is not None:
                    self._fail(error)
                    return
            if now_s - self._asked_s >= ASK_EVERY_S:
                self._asked_s = now_s
                said = self._peers()
                if said is not None:
                    self._fail(said)
        except Exception as error:  # CUDA's own: after it no stream of this process goes on
            failed = GroupFailed(
                f"{self._describe}: the GPU cannot be asked any more "
                f"({type(error).__name__}: {error})"
            )
            failed.__cause__ = error
            self._fail(failed)

    def _lanes(self) -> list[tuple[deque[StreamWork], GpuClock]]:
        with self._lock:
            return [(works, self._clocks[lane]) for lane, works in self._pending.items()]

    def _finish_those_over(self) -> None:
        for works, clock in self._lanes():
            clock.tick()
            if not clock.known:
                continue  # at the first look; the next one can tell when they ran
            while works and works[0].reached():
                work = works[0]
                work.finish(None, clock.span_ns(work.started, work.ended))
                works.popleft()

    def _fail_for_the_late(self, now_s: float) -> None:
        for works, _clock in self._lanes():
            work = works[0] if works else None
            if work is None or now_s < work.deadline:
                continue
            if now_s < extended(work.deadline):
                continue
            limit_s = work.deadline.limit_s
            self._fail(
                DeadlineExceeded(
                    f"{work.text} of {self._describe} is not complete after {limit_s:g} s: its "
                    f"communicator was aborted; a rank that has not made this call, or cannot "
                    f"reach the others, holds it up"
                )
            )
            return

    def give_up(self, error: BaseException, aborted: bool = False) -> None:
        """All calls that are not over end with this error. To be called before the communicators
        are aborted: an abort brings their streams to the ends of calls that did nothing. `aborted`:
        it is too late for that, and no call that is left can be trusted."""
        with self._lock:
            works = [work for lane in self._pending.values() for work in lane]
            self._pending.clear()
        for work in works:
            try:
                over = not aborted and work.reached()
            except Exception:
                over = False
            work.finish(None if over else error)


@dataclass(eq=False)
class Watchdog:
    """The thread that lets `StreamWatch` look."""

    _look: Callable[[float], None]
    _device: Cuda
    _now: Callable[[], float]
    _name: str
    capture_safe: bool = False
    """Whether a graph may be captured while this thread looks."""
    _stop: Flag = field(default_factory=Flag)
    _began: Flag = field(default_factory=Flag)
    _thread: BackgroundThread | None = None

    def start(self, index: int) -> None:
        """Once there is something to look at, on this device; again it changes nothing."""
        if self._thread is None and not self._stop.is_set():
            self._thread = BackgroundThread(self._run, self._name, (index,))
            self._thread.start()
            self._began.wait(timeout=5.0)  # the first call waits until it runs

    def _run(self, index: int) -> None:
        # A thread that asks CUDA anything makes a context on its device: not on the first one,
        # which belongs to another rank.
        with self._device.entered(index):
            self.capture_safe = self._device.watches()
            self._began.set()
            while not self._stop.wait(REST_PAUSE_S):
                self._look(self._now())

    def stop(self, limit_s: float = 0.0) -> None:
        """End it after the look that it is in, and wait for that."""
        self._stop.set()
        if self._thread is not None and not self._thread.is_here():
            self._thread.join(limit_s)


@dataclass(frozen=True)
class Path:
    """The way of a message: from whom to whom, as ranks of the group, and with which tag."""

    source: int
    target: int
    tag: int


class Outbox:
    """The paths on which this rank has sent; its watchdog calls `tell`."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._sent: Counter[Path] = Counter()
        self._told: Counter[Path] = Counter()
        self._asked = False
        self._looked_s = 0.0
        self._lock = Lock()

    def sent(self, path: Path) -> None:
        with self._lock:
            self._sent[path] += 1

    def tell(self, now_s: float) -> None:
        """Write down what is new, if anybody wants to know."""
        if not self._sent:
            return
        if not self._asked:
            if now_s - self._looked_s < ASK_EVERY_S:
                return
            self._looked_s = now_s
            self._asked = bool(self._store.check([f"{self._prefix}/any"]))
            if not self._asked:
                return
        with self._lock:
            new = [(path, n) for path, n in self._sent.items() if n != self._told[path]]
        for path, count in new:
            self._store.set(sent_key(self._prefix, path), str(count))
            self._told[path] = count


def sent_key(prefix: str, path: Path) -> str:
    return f"{prefix}/sent/{path.source}/{path.target}/{path.tag}"


class NcclLife:
    """Made with the group; NCCL itself is first asked by its first call."""

    def __init__(self, origin: Origin, library: Library, device: Cuda, clock: Timer) -> None:
        name, rank, store = origin.name, origin.rank, origin.store
        self.name = name
        self.library = library
        self.device = device
        self.ranks = origin.ranks
        self.rank = rank
        self.calls = 0
        # The how many-th group of this name in this store: the same on all ranks, unasked.
        number = store.add(f"nccl/{name}/{rank}", 1)
        self.token = f"{number}"
        self.prefix = f"nccl/{name}/{number}"
        self.clock = clock
        self.connector = Connector(library, store, clock)
        self.store = store
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
                self._clocks[index] = GpuClock(self.device, index)
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
        abort_all(members, self.library)

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

        return wait_for(empty, deadline, clock=self.clock)

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
        close_all(members, self.library)

    def close_gracefully(self) -> None:
        """The process ends: NCCL's peers notice by themselves, should they still need this rank."""
        self.watchdog.stop(1.0)

    def abandon(self) -> None:
        """This is a forked child, which CUDA serves in no way."""
        self._failure = Aborted(f"group {self.name!r} is the parent process's: CUDA does not fork")
