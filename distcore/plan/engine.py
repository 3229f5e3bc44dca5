"""The engine of a plan: outputs get what can be known of them, and nobody waits who need not.

Every call is counted, and every tensor keeps its shape. Of small tensors the real values are
exchanged (see `exchange`); all others are marked as not known, and hold what is likeliest: that all
ranks have what this one has. What all ranks get alike from a call they get alike here, known or
not: a loss that all have reduced lets them all stop at the same step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.buffers import bytes_of, tensor_over
from ..base.reduction import Reduction
from ..engine.base import Body, Engine, MessageRequest
from ..engine.staging import DeviceReach, Staging, is_plain, whole_of
from ..engine.work import CallWork, JoinedWork
from .exchange import Exchange, unpacked
from .work import PlannedCall, PlannedLife, PlannedWork, Step

COPIED_BYTES = 1 << 20
"""Larger tensors get no likely values: memory that is never touched costs nothing."""
STAND_IN_BYTES = 1 << 16
"""Values that are not known travel, too, up to so many bytes: splits and sizes must fit those of
the other ranks."""
KNOWN, STAND_IN = b"\1", b"\0"
"""The first byte of each value that travels."""


REACH = DeviceReach(("cpu", "cuda", "meta"), (), is_plain)


def _is_known(value: bytes | None) -> bool:
    return value is not None and value.startswith(KNOWN)


def _data(value: bytes | None, size_bytes: int) -> bytes | None:
    """The elements of a value that has come, known or not; None where it has none for so many."""
    return None if value is None else unpacked(value[1:], size_bytes)


class PlannedStaging(Staging):
    """Copies in when the call is made, and back when its result is there."""

    def _stand_in(self, tensor: Tensor) -> tuple[Tensor, Any]:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), None

    def around(self, body: Body) -> Body:
        if not self._copies:
            return body

        def staged(call: PlannedCall) -> None:
            self.load()
            body(call)
            call.later(self.store)

        return planned(staged)


def planned(body: Body) -> Body:
    """A body that leaves to `PlannedCall.later` what waits for others."""
    body.is_planned = True  # type: ignore[attr-defined]
    return body


class PlanEngine:
    """All of `engine.base.Engine`."""

    name = "plan"
    reach = REACH

    def __init__(self, session: PlannedLife, exchange: Exchange) -> None:
        self.session = session
        self._exchange = exchange
        self._rank = session.rank
        self._size = len(session.ranks)
        self._everyone = range(self._size)
        self._absent = frozenset(exchange.absent(session.ranks))
        self._begun: weakref.WeakSet[PlannedWork] = weakref.WeakSet()
        """Calls that wait for others when they are waited for."""
        self._role = ""

    def __getattr__(self, name: str) -> Callable[..., Body]:
        """The planner of an op that has none of its own here: its tensors are not known then."""
        if name not in vars(Engine):
            raise AttributeError(f"{type(self).__name__} has no {name!r}")

        def plan(*given: Any) -> Body:
            each = [one if isinstance(one, Sequence) else [one] for one in given]
            tensors = [one for some in each for one in some if isinstance(one, Tensor)]
            return planned(lambda _call: self._guess(tensors))

        return plan

    def staging(self) -> Staging:
        return PlannedStaging(self.reach)

    def start(
        self, text: str, timeout_s: float, at_once: bool, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Count the call; what waits for others comes when the program waits for the call."""
        del timeout_s
        session = self.session
        if session.failure is not None:
            raise session.unusable()
        slot = f"{session.token}#{session.calls}"
        session.calls += 1
        # What is put together of several calls wants their results where it makes them.
        deferred = not at_once and hasattr(body, "is_planned")
        call = PlannedCall(slot, text, not deferred)
        body(call)
        if at_once and text == "barrier()":
            # Behind a barrier the calls before it are complete, with most backends.
            for one in list(self._begun):
                one.synchronize()
        work = PlannedWork(text, tensors, call.steps)
        if call.steps:
            self._begun.add(work)
        return work

    # -- values --------------------------------------------------------------------------------

    def _guess(self, tensors: Sequence[Tensor], alike: str = "") -> None:
        whole = whole_of(tensors)
        for at, one in enumerate(tensors if whole is None else [whole]):
            self._unknown(one, alike, at)

    def _of_role(self, slot: str, text: str) -> str:
        """Returns what names this call in all groups of one role: the parameters that two replicas
        gather, and the losses that they reduce, are taken to be the same, as they are by symmetry.
        The first of the group's ranks to ask says which role that is."""
        if not self._role:
            token, role = self.session.token, self.session.role
            self._role = self._exchange.agreed(token, "role", role.encode()).decode()
        return f"{self._role}{slot.removeprefix(self.session.token)} {text}"

    def _unknown(self, tensor: Tensor, alike: str, at: int) -> None:
        """`alike`: the call of which all ranks have the same at this place, if it is one."""
        self._exchange.mark([tensor], real=False, alike=alike and f"{alike}/{at}")

    def _known(self, tensors: Sequence[Tensor]) -> None:
        whole = whole_of(tensors)
        self._exchange.mark([whole] if whole is not None else tensors, real=True)

    def _value(self, tensor: Tensor) -> bytes | None:
        """Returns this rank's contribution, and whether it is known; None where it is too much."""
        exchange = self._exchange
        if not exchange.is_small(tensor):
            return None
        known = exchange.is_real(tensor)
        if not known and tensor.nbytes > STAND_IN_BYTES:
            return None
        data = exchange.carried(tensor, bytes(bytes_of(tensor)))
        return None if data is None else (KNOWN if known else STAND_IN) + data

    def _fill(self, outputs: Sequence[Tensor], data: Tensor) -> None:
        """The likeliest values, where they cost little."""
        whole = whole_of(outputs)
        size_bytes = sum(one.nbytes for one in outputs) if whole is None else whole.nbytes
        if data.is_meta or size_bytes > COPIED_BYTES:
            return
        if whole is not None and not whole.is_meta and size_bytes == len(outputs) * data.nbytes:
            bytes_of(whole)[:] = bytes(bytes_of(data)) * len(outputs)
            return
        source = bytes_of(data)
        for one in outputs:
            if one.nbytes == data.nbytes and not one.is_meta and one is not data:
                bytes_of(one)[:] = source

    def _scale(self, tensor: Tensor, reduction: Reduction) -> None:
        """The likeliest sum: that of equal parts."""
        adds = tensor.is_floating_point() or tensor.dtype in (torch.int32, torch.int64)
        if reduction.op != "SUM" or tensor.is_meta or not adds:
            return
        if 0 < tensor.nbytes <= COPIED_BYTES:
            tensor_over(bytes_of(tensor), tensor.dtype).mul_(self._size)

    def _reduced(
        self, values: Sequence[bytes | None], tensor: Tensor, reduction: Reduction
    ) -> bool:
        """Put the reduction of these into the tensor; False where one of them is not known."""
        known = {one: _data(one, tensor.nbytes) if _is_known(one) else None for one in set(values)}
        if None in known.values():
            return False
        if not tensor.numel():
            return True
        # By halves, all of a half at once: one after the other, N ranks would make N steps each.
        data = memoryview(bytearray(b"".join(known[one] or b"" for one in values)))
        whole = tensor_over(data, tensor.dtype)
        reduction.prepare(whole, whole)
        left, size_bytes = len(values), tensor.nbytes
        while left > 1:
            half = left // 2
            into = data[: half * size_bytes]
            reduction.merge(into, data[(left - half) * size_bytes : left * size_bytes], into)
            left -= half
        bytes_of(tensor)[:] = data[:size_bytes]
        reduction.finish(tensor, self._size)
        return True

    def _written(
        self, values: Sequence[bytes | None], outputs: Sequence[Tensor], alike: str = ""
    ) -> None:
        """Put each value into its output; where there is none it stays as it is."""
        unknown = []
        for at, (value, one) in enumerate(zip(values, outputs, strict=True)):
            data = _data(value, one.nbytes)
            if data is None or not _is_known(value):
                unknown.append((at, one))
            if data:
                bytes_of(one)[:] = data
        self._known(outputs)
        for at, one in unknown:
            self._unknown(one, alike, at)

    # -- collectives ---------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body:
        def body(call: PlannedCall) -> None:
            slot = call.part()

            def guess() -> None:
                self._guess_reduction(slot, call.text, tensor, reduction)

            self._reduce(call, slot, [tensor], tensor, reduction, guess)

        return planned(body)

    def _reduce(
        self,
        call: PlannedCall,
        slot: str,
        given: Sequence[Tensor],
        output: Tensor,
        reduction: Reduction,
        guess: Callable[[], None],
    ) -> None:
        """`output` gets the reduction of what all ranks give, or else what `guess` says."""

        def take() -> None:
            values = self._collect(slot, call.text, self._everyone)
            if self._reduced(values, output, reduction):
                self._known([output])
            else:
                guess()

        if self._offered(slot, call.text, given):
            call.later(take)
        else:
            guess()

    def _guess_reduction(self, slot: str, text: str, tensor: Tensor, reduction: Reduction) -> None:
        """Guesses the likeliest value, the same on all ranks: that of the rank that comes first. No
        rank waits for it."""
        if self._size == 1:
            return  # it keeps what it has, and what that came of
        self._scale(tensor, reduction)
        if self._exchange.is_small(tensor) and 0 < tensor.nbytes <= STAND_IN_BYTES:
            slot = self._of_role(slot, text)
            likely = self._exchange.agreed(slot, text, bytes(bytes_of(tensor)))
            bytes_of(tensor)[:] = likely
        self._guess([tensor], slot)

    def _offered(self, slot: str, text: str, tensors: Sequence[Tensor]) -> bool:
        """Give what this rank has, one value for all or one for each; False where the result is not
        known whatever the others have."""
        if not all(self._exchange.is_small(one) for one in tensors):
            return False
        values = [self._value(one) for one in tensors]
        self._exchange.offer(slot, text, self._rank, values)
        return all(map(_is_known, values))

    def reduce(self, tensor: Tensor, root: int, reduction: Reduction) -> Body:
        whole = self.all_reduce(tensor, reduction)

        def body(call: PlannedCall) -> None:
            if self._rank == root:
                whole(call)
            else:
                self._offered(call.part(), call.text, [tensor])

        return planned(body)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction
    ) -> Body:
        def body(call: PlannedCall) -> None:
            own = inputs[self._rank]

            def guess() -> None:
                self._fill([output], own)
                self._scale(output, reduction)
                self._guess([output])

            self._reduce(call, call.part(), list(inputs), output, reduction, guess)

        return planned(body)

    def broadcast(self, tensor: Tensor, root: int) -> Body:
        def body(call: PlannedCall) -> None:
            slot, text = call.part(), call.text
            if self._rank == root and self._offered(slot, text, [tensor]):
                return
            if self._rank == root or not self._exchange.is_small(tensor):
                # Of the root's own it is said, too: what follows from it is the same on all ranks.
                self._guess([tensor], slot)
            else:
                call.later(lambda: self._take([tensor], slot, text, [root], slot))

        return planned(body)

    def _take(
        self,
        outputs: Sequence[Tensor],
        slot: str,
        text: str,
        sources: Sequence[int],
        alike: str = "",
    ) -> None:
        for source in self._absent.intersection(sources) if len(sources) == 1 else ():
            self._lack(source, outputs)
        self._written(self._collect(slot, text, sources), outputs, alike)

    def _lack(self, source: int, outputs: Sequence[Tensor]) -> None:
        """Numbers of a rank that is not planned are not known. Without its objects and sizes there
        is no going on."""
        if any(one.numel() and not one.is_floating_point() for one in outputs):
            self._exchange.lack(self.session.ranks[source])

    def _collect(self, slot: str, text: str, sources: Sequence[int]) -> list[bytes | None]:
        """Returns what these ranks have for this one; for those that are not planned, what all
        others have, where that is one and the same."""
        there = [one for one in sources if one not in self._absent]
        found = self._exchange.collect(slot, text, self._rank, there) if there else []
        if len(there) == len(sources):
            return found
        alike = found[0] if len(set(found)) == 1 else None
        known = dict(zip(there, found, strict=True))
        return [known.get(one, alike) for one in sources]

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Body:
        def body(call: PlannedCall) -> None:
            slot, text = call.part(), call.text
            small = self._exchange.is_small(tensor)
            if small:
                self._offered(slot, text, [tensor])
            self._fill(outputs, tensor)
            if not small:
                self._guess(outputs, self._of_role(slot, text))
            else:

                def take() -> None:
                    self._take(outputs, slot, text, self._everyone, self._of_role(slot, text))

                call.later(take)

        return planned(body)

    def _copy(self, source: Tensor, target: Tensor) -> None:
        if source.nbytes == target.nbytes and not (source.is_meta or target.is_meta):
            if source.nbytes:
                bytes_of(target)[:] = bytes_of(source)
            self._exchange.mark([target], real=self._exchange.is_real(source))

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Body:
        every = None if outputs is None else self.all_gather(outputs, tensor)

        def body(call: PlannedCall) -> None:
            if every is not None and self._rank == root:
                every(call)
            else:
                self._offered(call.part(), call.text, [tensor])

        return planned(body)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Body:
        def body(call: PlannedCall) -> None:
            slot, text = call.part(), call.text
            if inputs is not None and self._rank == root:
                self._offered(slot, text, list(inputs))
                self._copy(inputs[self._rank], output)
            elif not self._exchange.is_small(output):
                self._guess([output])
            else:
                call.later(lambda: self._take([output], slot, text, [root]))

        return planned(body)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Body:
        def body(call: PlannedCall) -> None:
            slot, text = call.part(), call.text
            values = [self._value(one) for one in inputs]
            self._exchange.offer(slot, text, self._rank, values)
            small = all(self._exchange.is_small(one) for one in outputs)
            if not small:
                self._guess(outputs)
                if whole_of(outputs) is None:
                    self._copy(inputs[self._rank], outputs[self._rank])
            else:
                call.later(lambda: self._take(outputs, slot, text, self._everyone))

        return planned(body)

    def barrier(self) -> Body:
        """Waited for only where the exchange wants that: it has no value."""

        def body(call: PlannedCall) -> None:
            self.meet(call.part(), call)

        return planned(body)

    def meet(self, slot: str, call: PlannedCall) -> None:
        """Be there, and wait for the others where that is wanted."""
        exchange, text = self._exchange, call.text
        if exchange.barriers_wait:
            exchange.offer(slot, text, self._rank, [b""])

            def wait() -> None:
                self._collect(slot, text, self._everyone)

            call.later(wait)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], reductions: Sequence[Reduction]
    ) -> Body:
        pairs = zip(tensors, reductions, strict=True)
        return self.together([self.all_reduce(one, its) for one, its in pairs])

    def together(self, bodies: Sequence[Body]) -> Body:
        def body(call: PlannedCall) -> None:
            for one in bodies:
                one(call)

        return planned(body)

    # -- messages ------------------------------------------------------------------------------

    def send(self, message: MessageRequest) -> CallWork:
        value = self._value(message.tensor)
        assert message.peer is not None
        self._exchange.send(self.session.token, self._rank, message.peer, message.tag, value)
        return PlannedWork(message.text, message.tensors[:1], [])

    def receive(self, message: MessageRequest) -> CallWork:
        text, _, _, tensor, peer, tag, tensors, arrived = message
        exchange, token = self._exchange, self.session.token
        came_from = [-1 if peer is None else peer]
        steps: list[Step] = []
        if peer is None:

            def take_any() -> None:
                came_from[0], value = exchange.take_any(token, self._rank, tag)
                self._written([value], [tensor])

            steps.append(take_any)
        else:
            number = exchange.expect(token, peer, self._rank, tag)
            if exchange.is_small(tensor):

                def take() -> None:
                    if peer in self._absent:
                        self._lack(peer, [tensor])
                        self._guess([tensor])
                        return
                    value = exchange.take(token, peer, self._rank, tag, number)
                    self._written([value], [tensor])

                steps.append(take)
            else:
                self._guess([tensor])
        if arrived is not None:
            steps.append(arrived)
        return PlannedWork(text, tensors[:1], steps, lambda: came_from[0])

    def begin_batch(self) -> None:
        """Nothing to do: calls do not wait for each other."""

    def end_batch(self, works: Sequence[Any]) -> CallWork:
        return JoinedWork(works)
