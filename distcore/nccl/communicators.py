"""How communicators come to be and end: ids over the store, connected in the background, aborted.

NCCL is asked to block nowhere (`blocking=False`): a rank that waits for others does it here, where
the group's deadline, its abort and Python's signals are seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

from ..errors import DeadlineExceeded, GroupFailed, PeerLost, RendezvousError
from ..patience import Deadline, extended
from .library import IN_PROGRESS, REMOTE_ERROR, SUCCESS, TIMED_OUT, Library

_FIRST_PAUSE_S = 0.00002
_LAST_PAUSE_S = 0.02
_SPINS = 100
_STUCK_S = 2.0
_END_S = 10.0
"""How long the end of a communicator waits for the other ranks' ends."""


class NotTaken(DeadlineExceeded):
    """NCCL was asked for something, and has not begun with it in time."""


class Clock:
    """Real time; tests have another."""

    def now(self) -> float:
        """As time.monotonic()."""
        return time.monotonic()

    def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)


def wait_for(
    condition: Callable[[], bool], deadline: Deadline, check: Callable[[], object], clock: Clock
) -> bool:
    """Ask until it is true; whether it was in time. `check` is called in between and may raise."""
    pause_s = _FIRST_PAUSE_S
    limit: float = deadline
    while not condition():
        check()
        if clock.now() >= limit:
            limit = extended(limit)
            if clock.now() >= limit:
                return False
        clock.pause(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True


class Member:
    """One communicator of this rank, and what is known of it. `calling` is held by whoever calls
    NCCL with it."""

    def __init__(self, library: Library, communicator: Any, name: str, clock: Clock) -> None:
        self.communicator = communicator
        self.name = name
        self._library = library
        self._clock = clock
        self.calling = RLock()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Member of {self.name}: {'ended' if self._ended else 'open'}>"

    def error(self) -> BaseException | None:
        """What NCCL found wrong since, in the background; None while nothing is."""
        with self.calling:
            if self._ended:
                return None
            code = int(self.communicator.get_async_error())
            if code in (SUCCESS, IN_PROGRESS):
                return None
            return failure(self._library, code, self.communicator, self.name)

    def settle(self, deadline: Deadline, check: Callable[[], object], what: str) -> None:
        """Wait until NCCL has taken what it was asked. Raises its error; DeadlineExceeded."""
        code = SUCCESS

        def settled() -> bool:
            nonlocal code
            check()  # before: an aborted communicator must not be asked
            with self.calling:
                code = SUCCESS if self._ended else int(self.communicator.get_async_error())
            return code != IN_PROGRESS

        # NCCL takes a call in some microseconds, on a thread of its own: far less than a sleep.
        soon = any(settled() for _ in range(_SPINS))
        if not soon and not wait_for(settled, deadline, check, self._clock):
            raise NotTaken(
                f"{what} was not taken by NCCL within {deadline.limit_s:g} s: not all ranks of "
                f"{self.name} make it"
            )
        check()
        if code != SUCCESS:
            raise failure(self._library, code, self.communicator, self.name)

    def abort(self) -> None:
        """End what runs, on this rank, at once. From any thread."""
        # A call that NCCL does not return from is ended by this as well, and cannot be waited for.
        held = self.calling.acquire(timeout=_STUCK_S)
        try:
            if self._ended:
                return
            self._ended = True
            self.communicator.abort()
        except Exception:
            pass  # it is broken already, or its device is gone
        finally:
            if held:
                self.calling.release()

    def close(self) -> None:
        """End it together with the other ranks; abort it where they do not come."""
        with self.calling:
            if self._ended:
                return
        try:
            self.communicator.finalize()
            self.settle(Deadline.after(_END_S), lambda: None, "the end of the communicator")
        except Exception:
            self.abort()
            return
        with self.calling:
            self._ended = True
        try:
            self.communicator.destroy()
        except Exception:
            pass  # nothing more can be done about it


def failure(library: Library, code: int, communicator: Any, name: str) -> GroupFailed:
    """The error for a result of NCCL's."""
    try:
        last = str(communicator.get_last_error()).strip()
    except Exception:  # an older library, or one that fails altogether
        last = ""
    kind = {REMOTE_ERROR: PeerLost, TIMED_OUT: DeadlineExceeded}.get(code, GroupFailed)
    detail = f": {last}" if last else ""
    return kind(f"NCCL says of {name}: {library.words(code)}{detail}")


class Connector:
    """Makes communicators of ranks that find each other through a store."""

    def __init__(self, library: Library, store: Any, clock: Clock) -> None:
        self._library = library
        self._store = store
        self._clock = clock

    def connect(
        self,
        key: str,
        name: str,
        ranks: Sequence[int],
        rank: int,
        deadline: Deadline,
        check: Callable[[], object],
    ) -> Member:
        """A communicator of `ranks` (global, for the messages); `rank` is this one's place in them,
        and the device that is current its own. `key` is the same on all of them, and used once.
        `check` may raise at any time. Raises RendezvousError naming who did not come in time."""
        store = self._store
        id_key = f"{key}/id"
        if rank == 0:
            store.set(id_key, self._library.unique_id())
        else:
            store.set(f"{key}/{rank}", "")
            if not wait_for(lambda: bool(store.check([id_key])), deadline, check, self._clock):
                raise self._nobody(name, [ranks[0]], deadline)
        unique_id = bytes(store.get(id_key))
        communicator = self._library.start(len(ranks), rank, unique_id, name)
        member = Member(self._library, communicator, name, self._clock)
        try:
            member.settle(deadline, check, f"connecting {name}")
        except NotTaken:
            member.abort()
            late = [
                ranks[other]
                for other in range(1, len(ranks))
                if other != rank and not store.check([f"{key}/{other}"])
            ]
            raise self._nobody(name, late, deadline) from None
        except BaseException:
            member.abort()
            raise
        return member

    def split(
        self,
        parent: Member,
        color: int | None,
        key: int,
        name: str,
        deadline: Deadline,
        check: Callable[[], object],
    ) -> Member | None:
        """See `Library.split`; None for a rank without a colour."""
        made = self._library.split(parent.communicator, color, key, name)
        what = f"splitting {parent.name}"
        parent.settle(deadline, check, what)
        if color is None:
            return None
        member = Member(self._library, made, name, self._clock)
        try:
            member.settle(deadline, check, what)
        except BaseException:
            member.abort()
            raise
        return member

    def _nobody(self, name: str, late: Sequence[int], deadline: Deadline) -> RendezvousError:
        who = f"rank {late[0]}" if len(late) == 1 else f"ranks {', '.join(map(str, late))}"
        missing = f"{who} did not come" if late else "all ranks came, and NCCL did not connect them"
        return RendezvousError(
            f"{name}: no communicator within {deadline.limit_s:g} s: {missing}"
            + ("" if late else "; NCCL_DEBUG=INFO shows what it tries")
        )
