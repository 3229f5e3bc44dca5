"""At DETAIL: a collective enters the backend once all ranks of its group make the same one.

They compare 64 bits of it on a network of their own (`distcore.tcp.side_channel`), whatever the
backend is. Where they differ, nothing is sent, each rank gets everybody's call, and all raise one
and the same error at their own lines. A rank that does not come is awaited as the backend would
await it, and found by the supervisor in the same way: the call is on record already.

An asynchronous call whose ranks have yet to agree enters the backend when they do. The program goes
on meanwhile, as it would with the backend's own call: a rank that waited here for the others could
wait for one that waits for this rank's next call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from distcore.engine.call_queue import CallQueue
from distcore.errors import DeadlineExceeded, GroupFailed, RendezvousError
from distcore.tcp.side_channel import SideChannel

from ...record.dispute import settle
from ...record.ops import op_type
from ...record.signature import Signature, hash64, scalar_of
from ..checks import argument_checks, memory_layout
from ..limits import IN_CALL_S, JOIN_S, MOST_IN_VAIN_S, SHORT_IN_CALL_S
from ..log.rank_log import is_interruption, say
from ..record.describe import tensors_in
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from ..record.waiting import NO_TIMEOUT, ForwardingWork
from ..torch_private.gloo import GlooSockets


class Grace:
    """The time for which the calls of one group wait, each within the call.

    One that nobody joined in time waits short the next time; where it is joined at once then, as
    long as at first. What was waited for in vain is never more than `MOST_IN_VAIN_S` in all: a
    program whose ranks make their calls in other orders at each step loses that and no more.
    """

    def __init__(self) -> None:
        self._left_s = MOST_IN_VAIN_S
        self._in_vain: set[int] = set()

    def of(self, call: int) -> float:
        """For the call with this hash."""
        return SHORT_IN_CALL_S if self._left_s <= 0 or call in self._in_vain else IN_CALL_S

    def ended(self, call: int, in_vain: bool, waited_s: float) -> None:
        """The call waited as long as this."""
        if not in_vain:
            self._in_vain.discard(call)
        elif self._left_s > 0:
            self._left_s -= waited_s
            self._in_vain.add(call)


class Deferral:
    """A call between its making and its entry into the backend.

    `agree()` runs on the thread of the group's turn, and raises what the call must raise.
    `forward()` makes the backend's call: on the caller's thread if the others come soon.
    """

    def __init__(self, agree: Callable[[], None], forward: partial[Any]) -> None:
        self._agree = agree
        self._forward = forward
        self._guard = threading.Lock()
        self._agreed = threading.Event()  # the caller may go on
        self._entered = threading.Event()  # the call was made, or never will be
        self._caller_left = False
        self._cancelled = False
        self._made = False
        self._as_caller = _modes()
        self._on_entry: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.work: Any = None

    def start(self, turn: CallQueue, grace_s: float = SHORT_IN_CALL_S) -> Any:
        """The backend's work, or one that stands for it until the ranks agree. Raises what comes of
        the call within `grace_s`."""
        try:
            # In here, since the handler of a signal may raise as soon as the turn has the call: it
            # would wait for ever for a caller that has gone.
            turn.submit(self._run)
            self._agreed.wait(grace_s)
            if self._leave():
                return DeferredWork(self)
            if self.error is not None:
                raise self.error
            self._made = True
            work = self._forward()
        except BaseException as error:
            # What the handler of a signal raises comes behind the call, as it would without us: the
            # others make theirs, and wait for it. The end of the process needs none.
            goes_on = isinstance(error, Exception) and is_interruption(error)
            self._cancelled = not goes_on
            if not self._leave():
                if goes_on:
                    self._enter()
                self._entered.set()
            raise
        self._entered.set()
        return work

    def _leave(self) -> bool:
        """The caller does not wait any longer; False where it need not."""
        with self._guard:
            self._caller_left = not self._agreed.is_set()
            return self._caller_left

    def _run(self) -> None:
        try:
            self._agree()
        except BaseException as error:
            self.error = error
        with self._guard:
            self._agreed.set()
            left = self._caller_left
        if not left:
            self._entered.wait()  # the turn is the caller's as long
            return
        self._enter()

    def _enter(self) -> None:
        """Make the call, once, now that it is agreed on or refused."""
        with self._guard:
            if self._made:
                return
            self._made = True
        if self.error is None and not self._cancelled:
            try:
                with self._as_caller():
                    self.work = self._forward()
            except BaseException as error:
                self.error = error
        with self._guard:
            self._entered.set()
            waiting, self._on_entry = self._on_entry, []
        for tell in waiting:
            tell()

    @property
    def devices(self) -> list[int | str | torch.device]:
        """The CUDA devices of the call's tensors."""
        tensors = tensors_in(self._forward.args)
        return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))

    @property
    def entered(self) -> bool:
        """Whether `work` or `error` is there."""
        return self._entered.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        """Until `entered`; whether it came true in time. Who waits here makes the call, as it would
        without a deferral: what a profiler sees belongs to a thread."""
        mine = left = False
        try:
            with self._guard:
                if self._caller_left and not self._agreed.is_set():
                    mine = True
                    self._caller_left = False
            if mine:
                self._agreed.wait(timeout_s)
        finally:
            left = mine and self._leave()
            if mine and not left:
                self._enter()  # also when a signal's handler has raised: the group waits for it
        return not left and self._entered.wait(timeout_s)

    def when_entered(self, tell: Callable[[], None]) -> None:
        """Call `tell()` then, on any thread."""
        with self._guard:
            if not self._entered.is_set():
                self._on_entry.append(tell)
                return
        tell()


class DeferredWork(ForwardingWork):
    """The handle of a call that has not entered the backend yet; then it is the backend's."""

    _deferral: Deferral
    _future: Any

    def __init__(self, deferral: Deferral) -> None:
        super().__init__()
        self._deferral = deferral
        self._future = None

    def __repr__(self) -> str:
        state = repr(self._deferral.work) if self._deferral.entered else "not agreed on"
        return f"<DeferredWork: {state}>"

    @property
    def _work(self) -> Any:
        """The backend's work, once it is there. Raises what kept it from being made."""
        self._deferral.wait(None)
        if self._deferral.error is not None:
            raise self._deferral.error
        return self._deferral.work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits as the backend's handle does; RuntimeError at the timeout, after which it may be
        called again."""
        if timeout == NO_TIMEOUT:
            return bool(self._work.wait())
        began = time.monotonic()
        if not self._deferral.wait(timeout.total_seconds()):
            raise RuntimeError("Operation timed out! Not all ranks have made this call.")
        left_s = timeout.total_seconds() - (time.monotonic() - began)
        return bool(self._work.wait(timedelta(seconds=max(left_s, 0.001))))

    def is_completed(self) -> bool:
        if not self._deferral.entered:
            return False
        return self._deferral.error is not None or bool(self._deferral.work.is_completed())

    def is_success(self) -> bool:
        return self._deferral.work is not None and bool(self._deferral.work.is_success())

    def exception(self) -> Any:
        if self._deferral.error is not None or self._deferral.work is None:
            return self._deferral.error
        return self._deferral.work.exception()

    def get_future(self) -> Any:
        """A future of its own: the backend's does not exist yet."""
        if self._deferral.entered and self._deferral.error is None:
            return self._deferral.work.get_future()
        if self._future is None:
            self._future = self._made_future()
        return self._future

    def _made_future(self) -> Any:
        """With the devices of the call's tensors, whose streams it makes wait; and failing by what
        a callback raises: what `set_exception` sets, C++ takes for a result."""
        ended: Any = torch.futures.Future(devices=self._deferral.devices)
        inner: list[Any] = []

        def outcome(_ended: Any) -> Any:
            return inner[0].value() if inner else self._work

        future = ended.then(outcome)

        def end(done: Any) -> None:
            inner.append(done)
            ended.set_result(None)

        def connect() -> None:
            if self._deferral.error is not None:
                ended.set_result(None)
            else:
                self._deferral.work.get_future().add_done_callback(end)

        self._deferral.when_entered(connect)
        return future


def _modes() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Returns what makes another thread make the call as this one would have: on its streams, with
    its grad and inference modes."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cuda: Any = torch.cuda
    stream = cuda.current_stream() if cuda.is_initialized() else None

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            if stream is None:
                yield
            else:
                with cuda.stream(stream):
                    yield

    return entered


_LEAVES = hash64("the level is below DETAIL again")
"""What a rank says in the place of its call once its level is below DETAIL."""


class GroupGuard:
    """The guard of one group, on one rank. `enter` takes the place of the backend's method.

    The ranks of a group leave DETAIL at one call, the first that one of them makes below it: who
    is at DETAIL still would wait there for one that asks nobody any more, and calls that have yet
    to enter the backend would be overtaken by the next. Such a call still comes here, and is
    compared only with those of ranks at DETAIL.
    """

    def __init__(
        self, recorder: Recorder, record: GroupRecord, store: Any, sockets: GlooSockets
    ) -> None:
        self._recorder = recorder
        self._record = record
        self._store = store
        self._sockets = sockets
        self._backend = memory_layout.backend_of_cpu(record.backend)
        self._channel: SideChannel | None = None
        self._opening = threading.Lock()
        self._ended = False
        self._alone = False
        self._leaving = False
        self._period = self._left = 0
        """How many times it was switched on, and the last of these that all ranks have left."""
        self._grace = Grace()
        self.coalesces = False

    def switch(self, on: bool, at_once: bool = False) -> None:
        """Whether the group's calls come here. `at_once`: not from the group's beginning, so that
        other ranks may never do so."""
        self._alone = on and at_once
        self._leaving = not on and self._record.guard is not None and self._channel is not None
        self._period += on
        self._record.guard = self if (on or self._leaving) and not self._ended else None

    def open(self, timeout_s: float) -> SideChannel | None:
        """The network; all ranks of the group call this. None, having said why, without it."""
        if self._channel is None and not self._ended:
            with self._opening:
                self._open(timeout_s)
        return self._channel

    def _open(self, timeout_s: float) -> None:
        record = self._record
        if self._channel is not None or self._ended:
            return  # another thread was first
        try:
            with self._sockets.remembered():
                self._channel = SideChannel(
                    self._store, record.name, record.ranks, record.group_rank, timeout_s
                )
        except RendezvousError as error:
            self._go_on(str(error))

    def _go_on(self, why: str) -> None:
        self._stop()
        say(
            f"group {self._record.name!r} goes on without agreement before its calls: {why} "
            "(the debug level must be DETAIL on all of its ranks)"
        )

    def enter(
        self, known: Known, seq: int, options: Any, is_async: bool, forward: partial[Any]
    ) -> Any:
        """`forward()`, once all ranks make this call, of which `known` tells, as the group's
        collective number `seq`. Raises the finding where they do not."""
        usual_s = self._record.timeout_s
        order = memory_layout.layout(self._backend, forward.func.__name__, forward.args)
        if self._channel is None and not self._ended:
            # The others never meet a call that is refused: they must not be waited for either.
            forward = self._refused_or(forward)
        channel = self.open(min(usual_s, JOIN_S))
        if channel is None:
            return forward()
        given = getattr(options, "timeout", None)
        limit_s = given.total_seconds() if given is not None else 0.0
        if limit_s <= 0:
            limit_s = usual_s
        if self._alone:
            limit_s = min(limit_s, JOIN_S)
        if self._steps_aside(channel.turn):
            return forward()
        call = (channel, known, seq, limit_s, order)
        agree = partial(self._agree, *call, self._period, leaves=self._leaving)
        if is_async and not self.coalesces:
            if channel.turn.pending == 0:  # else it would overtake a call that is still to enter
                forward = self._refused_or(forward)
            deferral = Deferral(agree, forward)
            grace_s = self._grace.of(known.exact)
            work = deferral.start(channel.turn, grace_s)
            self._grace.ended(known.exact, isinstance(work, DeferredWork), grace_s)
            return work
        turn = channel.turn
        turn.enter()
        try:
            forward = self._refused_or(forward)
            try:
                agree()
            except Exception as error:
                if is_interruption(error):
                    forward()  # as without us: what a signal's handler raises comes behind the call
                raise
            return forward()
        finally:
            turn.leave()
            self._steps_aside(turn)

    def _steps_aside(self, turn: CallQueue) -> bool:
        """Whether calls go to the backend at once again: all ranks have left, and no call is still
        to enter."""
        aside = self._left == self._period and turn.pending == 0
        if aside:
            self._record.guard = None
        return aside

    def _refused_or(self, forward: partial[Any]) -> partial[Any]:
        """Raise the backend's error where it refuses the call for its arguments, of which the other
        ranks need not know; else what is to be called when they agree."""
        record, args = self._record, (*forward.args, *forward.keywords.values())
        method, size = forward.func.__name__, len(record.ranks)
        if not argument_checks.expected(self._backend, method, args, size, record.group_rank):
            return forward
        work = forward()  # raises; if not, the backend has it, and the ranks agree afterwards
        # With the arguments, whose devices a deferred call asks for.
        return partial(lambda made, *_args: made, work, *args)

    def _agree(
        self,
        channel: SideChannel,
        known: Known,
        seq: int,
        limit_s: float,
        order: str,
        period: int,
        *,
        leaves: bool,
    ) -> None:
        """Return when all ranks make this call, or when nobody can tell any more: then the backend
        will say so in its own way. `order`: of the elements in memory, where that counts; `period`:
        in which the call was made; `leaves`: below DETAIL."""
        if self._ended or period <= self._left:
            return
        try:
            exact = known.exact ^ hash64(order) if order else known.exact
            said = (_LEAVES, 0) if leaves else (exact, known.contribution)
            agreed = channel.agree(*said, limit_s)
            self._alone = False
            if agreed:
                self._left = period if leaves else self._left
                return
            calls = channel.gather(f"{known.text}\n{order}\n{leaves:d}".encode(), limit_s)
        except DeadlineExceeded as error:
            if self._alone:
                self._go_on(f"not all ranks have come to the first call in {limit_s:g} s")
                return
            call = Signature.from_json(known.text)
            who = "ranks" if error.culprit is None else f"rank {error.culprit}"
            raise DeadlineExceeded(  # the first words are those of torch's own DETAIL
                f"{who} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms, which debug "
                f"level DETAIL puts before {call} {self._record.place(seq)}: {error}",
                error.culprit,
                error.link,
            ) from None
        except GroupFailed as error:
            better = self._recorder.waits.instead(error)
            if better is not error:
                raise better from None
            self._stop()
            return
        texts, orders, leaving = zip(*(call.decode().split("\n") for call in calls), strict=True)
        self._raise(texts, orders, seq, known)
        if "1" in leaving:
            self._left = period

    def _raise(self, texts: Sequence[str], orders: Sequence[str], seq: int, known: Known) -> None:
        signatures = [Signature.from_json(text) for text in texts]
        record = self._record
        dispute = settle(signatures, record.ranks, record.place(seq))
        if dispute is None:
            dispute = memory_layout.settle(signatures[0], orders, record.ranks, record.place(seq))
        if dispute is None:
            return  # the hashes differ, and nothing that they are made of does
        finding = OwnFinding(
            record,
            seq,
            dispute.kind,
            dispute.message,
            dispute.culprits,
            headline=dispute.headline,
        )
        with contextlib.suppress(Exception):
            finding.put_on_record(self._recorder, self._recorder.site(sys._getframe(1)))
        device = "cuda" if known.streams else "cpu"
        raise finding.raised(
            _in_torchs_words(signatures, record.ranks, dispute.culprits, seq, device)
        )

    def _stop(self) -> None:
        """Lets calls go to the backend at once."""
        self._ended = True
        self._record.guard = None

    def retract(self) -> None:
        """Retracts in a forked child: the network is its parent's."""
        self._stop()
        self._record.pairs = None
        self._store = None

    def abort(self) -> None:
        """End what waits for the other ranks, at once."""
        self._stop()
        self._record.pairs = None
        if self._channel is not None:
            self._channel.abort("the group was aborted")

    def close(self) -> None:
        """The group ends on this rank."""
        self._stop()
        self._record.pairs = None
        self._store = None  # it may be the server that the next world must not meet again
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _in_torchs_words(
    calls: Sequence[Signature], ranks: Sequence[int], culprits: Sequence[int], seq: int, device: str
) -> str:
    """Returns a disagreement as torch's own DETAIL says it, for programs and tests look for those
    words: the calls of a culprit and of a rank whose call is another one; the same on all ranks.

    `calls` are those of the `ranks`, in this order; `device` is that of their tensors.
    """
    odd = next((rank for rank in ranks if rank in culprits), ranks[0])
    first = calls[list(ranks).index(odd)]
    place = next((at for at, call in enumerate(calls) if call != first), None)
    if place is None:
        return ""
    rows = sorted([(odd, first), (ranks[place], calls[place])], key=lambda row: row[0])
    (one, its), (another, theirs) = rows
    aspects = (
        ("Op type", op_type(its.op), op_type(theirs.op)),
        ("Tensor Tensor shapes", _shapes(its), _shapes(theirs)),
        ("Tensor Tensor dtypes", _dtypes(its), _dtypes(theirs)),
    )
    differences = [f"{what}: {mine} vs {other}" for what, mine, other in aspects if mine != other]
    return (
        f"Detected mismatch between collectives on ranks. Rank {one} is running collective: "
        f"{_fingerprint(its, seq, device)}, but Rank {another} is running collective: "
        f"{_fingerprint(theirs, seq, device)}.Collectives differ in the following aspects: "
        + "  ".join(differences)
    )


def _fingerprint(call: Signature, seq: int, device: str) -> str:
    fields = [f"SequenceNumber={seq}", f"OpType={op_type(call.op)}"]
    if call.tensors:
        fields.append(f"TensorShape={_shapes(call)}")
        fields.append(f"TensorDtypes={_dtypes(call)}")
        fields.append(f"TensorDeviceTypes=TensorOptions(device={device})")
    return f"CollectiveFingerPrint({', '.join(fields)})"


def _shapes(call: Signature) -> str:
    return ", ".join(str(list(shape)) for shape in call.shapes)


def _dtypes(call: Signature) -> str:
    return ", ".join(scalar_of(dtype) for dtype in call.dtypes)
