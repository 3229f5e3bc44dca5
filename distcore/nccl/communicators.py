"""The life of communicators: ids over the store, connected in the background, aborted.

NCCL is asked to block nowhere (`blocking=False`): a rank that waits for others does it here, where
the group's deadline, its abort and Python's signals are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock, Thread
from typing import Any

from ..base.deadline import Deadline, Timer, wait_for
from ..errors import DeadlineExceeded, GroupFailed, PeerLost, RendezvousError
from ..limits import DRAIN_S, STUCK_S
from .library import IN_PROGRESS, REMOTE_ERROR, SUCCESS, TIMED_OUT, Library

_SPINS = 100


class NotTaken(DeadlineExceeded):
    """NCCL was asked for something, and has not begun with it in time."""


class Comm:
    """A communicator of this rank, and what is known of it. `calling` is held by every thread that
    calls NCCL with it."""

    def __init__(self, library: Library, communicator: Any, name: str, clock: Timer) -> None:
        self.communicator = communicator
        self.name = name
        self._library = library
        self._clock = clock
        self.calling = RLock()
        self.captured = False
        """Whether a CUDA graph has calls of it: NCCL's end of it waits until the graph is gone."""
        self._ended = False

    def error(self) -> BaseException | None:
        """Returns the error that NCCL found since, in the background; None while there is none."""
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
        if not soon and not wait_for(settled, deadline, check=check, clock=self._clock):
            raise NotTaken(
                f"{what} was not taken by NCCL within {deadline.limit_s:g} s: not all ranks of "
                f"{self.name} make it"
            )
        check()
        if code != SUCCESS:
            raise failure(self._library, code, self.communicator, self.name)

    def abort(self) -> None:
        """End what runs, on this rank, at once. From any thread."""
        abort_all([self], self._library)

    def _take_for_abort(self) -> bool:
        """Whether this call is the one that ends it."""
        # A call that NCCL does not return from is ended by this as well, and cannot be waited for.
        held = self.calling.acquire(timeout=STUCK_S)
        try:
            ended, self._ended = self._ended, True
            return not ended
        finally:
            if held:
                self.calling.release()

    def _finalize(self) -> bool:
        """Begin to end it; whether that worked."""
        with self.calling:
            if self._ended:
                return False
            try:
                self.communicator.finalize()
            except Exception:
                return False
        return True

    def _destroy(self, deadline: Deadline) -> bool:
        """The rest of it, when the other ranks have come; whether that worked."""
        try:
            self.settle(deadline, lambda: None, "the end of the communicator")
            with self.calling:
                self._ended = True
                self.communicator.destroy()
        except Exception:
            return self._ended  # where it is, nothing more can be done about it
        return True


def abort_all(members: Sequence[Comm], library: Library) -> None:
    """End what runs on them, at once, in one group: an abort waits for what is on the streams, and
    that may wait for what another one of them has not done."""
    mine = [member for member in members if member._take_for_abort()]

    def end() -> None:
        try:
            library.abort([member.communicator for member in mine])
        except Exception:
            pass  # they are broken already, or their device is gone

    if not any(member.captured for member in mine):
        end()
        return
    # The kernels are over soon; the memory is NCCL's until the program lets go of the graph.
    thread = Thread(target=end, name="distcore nccl abort", daemon=True)
    thread.start()
    thread.join(STUCK_S)


def close_all(members: Sequence[Comm], library: Library) -> None:
    """End them together with the other ranks, which may have made them in another order; abort them
    where those do not come. What a CUDA graph has calls of is left to the process's end."""
    deadline = Deadline.after(DRAIN_S)
    ending = [member for member in members if not member.captured]
    begun = [member for member in ending if member._finalize()]
    late = [member for member in ending if member not in begun or not member._destroy(deadline)]
    if late:
        abort_all(late, library)


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

    def __init__(self, library: Library, store: Any, clock: Timer) -> None:
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
    ) -> Comm:
        """A communicator of `ranks` (global, for the messages); `rank` is this one's place in them,
        and the device that is current its own. `key` is the same on all of them, and used once.
        `check` may raise at any time. Raises RendezvousError naming who did not come in time."""
        store = self._store
        id_key = f"{key}/id"
        if rank == 0:
            store.set(id_key, self._asked(self._library.unique_id, name))
        else:
            store.set(f"{key}/{rank}", "")
            if not wait_for(
                lambda: bool(store.check([id_key])), deadline, check=check, clock=self._clock
            ):
                raise self._nobody(name, [ranks[0]], deadline)
        unique_id = bytes(store.get(id_key))
        communicator = self._asked(lambda: self._library.start(len(ranks), rank, unique_id), name)
        member = Comm(self._library, communicator, name, self._clock)
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
        parent: Comm,
        color: int | None,
        key: int,
        name: str,
        deadline: Deadline,
        check: Callable[[], object],
    ) -> Comm | None:
        """See `Library.split`; None for a rank without a colour."""
        with parent.calling:
            made = self._asked(
                lambda: self._library.split(parent.communicator, color, key), parent.name
            )
        what = f"splitting {parent.name}"
        # Only then is there another communicator: NCCL fills it in in the background.
        parent.settle(deadline, check, what)
        if color is None:
            return None
        member = Comm(self._library, made, name, self._clock)
        try:
            member.settle(deadline, check, what)
        except BaseException:
            member.abort()
            raise
        return member

    def _asked(self, what: Callable[[], Any], name: str) -> Any:
        """Raises GroupFailed for what NCCL refuses at once."""
        try:
            return what()
        except Exception as error:  # nccl4py's, which are of no common kind
            raise GroupFailed(f"NCCL refuses {name}: {type(error).__name__}: {error}") from error

    def _nobody(self, name: str, late: Sequence[int], deadline: Deadline) -> RendezvousError:
        who = f"rank {late[0]}" if len(late) == 1 else f"ranks {', '.join(map(str, late))}"
        missing = f"{who} did not come" if late else "all ranks came, and NCCL did not connect them"
        return RendezvousError(
            f"{name}: no communicator within {deadline.limit_s:g} s: {missing}"
            + ("" if late else "; NCCL_DEBUG=INFO shows what it tries")
        )
