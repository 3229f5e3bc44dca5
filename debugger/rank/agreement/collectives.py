"""At DETAIL: a collective enters the backend once all ranks of its group make the same one.

They compare 64 bits of it on a network of their own (`distcore.tcp.side_channel`), whatever the
backend is. Where they differ, nothing is sent, each rank gets everybody's call, and all raise one
and the same error at their own lines. A rank that does not come is awaited as the backend would
await it, and found by the supervisor in the same way: the call is on record already.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from distcore.engine.call_queue import CallQueue
from distcore.errors import DeadlineExceeded, GroupFailed, RendezvousError
from distcore.tcp.side_channel import SideChannel

from ...record.dispute import settle
from ...record.ops import op_type
from ...record.signature import Signature, hash64, scalar_of
from ..checks import argument_checks, memory_layout
from ..limits import JOIN_S
from ..log.rank_log import is_interruption, say
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from ..torch_private.gloo import GlooSockets
from .deferred_work import Deferral, DeferredWork, Grace

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
