"""The engine of a group on NCCL: calls are planned, put on the group's stream, and watched.

See `distcore.engine.Engine`. Environment, read when a group is made: nothing; NCCL reads its own
(NCCL_DEBUG, NCCL_SOCKET_IFNAME, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple

from torch import Tensor

from ..base.deadline import Deadline
from ..base.reduction import Reduction
from ..engine.base import MessageRequest
from ..engine.staging import GPU_ONLY, DeviceReach
from ..engine.work import FINISHED, CallWork
from ..errors import DeadlineExceeded, GroupFailed
from . import plan
from .communicators import Comm
from .elements import Reducing, reducing_of, refuse_float8
from .library import Transfer, issue
from .life import NcclLife
from .messages import Messenger
from .plan import DeviceStaging, Planned, together
from .work import GatheredWork, StreamLane, StreamWork


class _Place(NamedTuple):
    """The communicator and the stream of a group on one device."""

    member: Comm
    lane: StreamLane


class NcclEngine:
    """The engine of one group. `bound` is the device that the program named for it, if it named
    one."""

    def __init__(self, name: str, life: NcclLife, reach: DeviceReach = GPU_ONLY) -> None:
        self.name = name
        self.session = life
        self.reach = reach
        self.bound: int | None = None
        self._life = life
        self._device = life.device
        self._rank = life.rank
        self._size = len(life.ranks)
        self._places: dict[int, _Place] = {}
        self._made = 0
        self._batch: list[tuple[str, float, Planned, GatheredWork]] | None = None
        self._lock = RLock()  # a communicator takes calls of one thread at a time

        self._messenger = Messenger(life, self._launch)

    def staging(self) -> Any:
        return DeviceStaging(self.reach)

    # -- planning ----------------------------------------------------------------------------------

    def _reducing(self, reduction: Reduction | Reducing, tensor: Tensor) -> Reducing:
        known = reduction if isinstance(reduction, Reducing) else reducing_of(reduction)
        if known.dtype.itemsize == 1 and known.dtype.is_floating_point:
            refuse_float8(known, self._device.capability(self._index_of(tensor)), self.name)
        return known

    def all_reduce(self, tensor: Tensor, reduction: Any) -> Planned:
        how, rank, size = self._reducing(reduction, tensor), self._rank, self._size
        return Planned(lambda: plan.all_reduce(tensor, how, rank, size), (tensor,))

    def reduce(self, tensor: Tensor, root: int, reduction: Any) -> Planned:
        how, rank, size = self._reducing(reduction, tensor), self._rank, self._size
        return Planned(lambda: plan.reduce(tensor, how, root, rank, size), (tensor,))

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], reduction: Any) -> Planned:
        how, rank, size = self._reducing(reduction, output), self._rank, self._size
        return Planned(
            lambda: plan.reduce_scatter(output, inputs, how, rank, size), (output, *inputs)
        )

    def broadcast(self, tensor: Tensor, root: int) -> Planned:
        return Planned(lambda: plan.broadcast(tensor, root, self._rank), (tensor,))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Planned:
        return Planned(lambda: plan.all_gather(outputs, tensor, self._rank), (*outputs, tensor))

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Planned:
        rank, size = self._rank, self._size
        return Planned(
            lambda: plan.gather(outputs, tensor, root, rank, size), (*(outputs or ()), tensor)
        )

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Planned:
        rank, size = self._rank, self._size
        return Planned(
            lambda: plan.scatter(output, inputs, root, rank, size), (output, *(inputs or ()))
        )

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Planned:
        rank, size = self._rank, self._size
        return Planned(lambda: plan.all_to_all(outputs, inputs, rank, size), (*outputs, *inputs))

    def barrier(self) -> Planned:
        """Plans a barrier. Its wait is on the host: when it returns, all ranks' streams have
        come."""
        if self._device.capturing():
            raise RuntimeError(
                f"barrier() of {self._life.described} waits on the host, which a CUDA graph "
                f"cannot capture: leave it out of the captured part"
            )
        index = self.meeting_place()
        return Planned(lambda: plan.barrier(self._device.kind, index), (), blocks=True)

    def all_reduce_coalesced(self, tensors: Sequence[Tensor], reductions: Sequence[Any]) -> Planned:
        return together(
            [self.all_reduce(one, its) for one, its in zip(tensors, reductions, strict=True)]
        )

    def together(self, bodies: Sequence[Any]) -> Planned:
        return together(bodies)

    # -- launching ---------------------------------------------------------------------------------

    def start(
        self, text: str, timeout_s: float, at_once: bool, body: Any, tensors: Sequence[Tensor]
    ) -> CallWork:
        self._life.check()
        if not isinstance(body, Planned):
            raise TypeError(f"{text}: backend {self.name} takes dense tensors only: use to_dense()")
        if self._batch is not None:
            return self._gathered(text, timeout_s, body)
        work = self._launched(text, timeout_s, body, tensors)
        if at_once:
            work.wait()
        return work

    def _launched(
        self, text: str, timeout_s: float, what: Planned, tensors: Sequence[Tensor]
    ) -> StreamWork:
        index = self._index(text, what)
        deadline = Deadline.after(timeout_s)
        work = StreamWork(text, tensors, self._device, index, deadline, what.blocks)
        with self._lock:
            place = self.connect(index, deadline)
            self._life.calls += 1
            self._launch(place.lane, place.member, work, what, None)
            self._life.watched(place.lane, work)
        return work

    def _launch(
        self, lane: StreamLane, member: Comm, work: StreamWork, what: Planned, ready: Any
    ) -> None:
        """Raises GroupFailed, and ends the group, where the call cannot be launched as a whole;
        RuntimeError for one that a graph cannot have."""
        life, library = self._life, self._life.library
        if self._device.capturing():
            if not life.watchdog.capture_safe:
                raise RuntimeError(
                    f"{work.text} of {life.described} cannot be captured into a CUDA graph: this "
                    f"driver, or the package cuda-bindings, does not let the group's watchdog ask "
                    f"for other calls meanwhile"
                )
            member.captured = True

        def settled() -> None:
            member.settle(work.deadline, life.check, f"{work.text} of {life.described}")

        def put(stream: int, transfers: Sequence[Transfer]) -> None:
            issue(library, member.communicator, stream, transfers, member.calling, settled)

        try:
            lane.launch(work, what.plan, put, what.tensors, ready)
        except BaseException as error:
            failed = error
            if life.failure is not None and not isinstance(error, GroupFailed):
                failed = life.unusable()  # the communicator is gone, and this is why
            elif isinstance(error, Exception) and not isinstance(error, GroupFailed):
                failed = GroupFailed(
                    f"{work.text} of {life.described} could not be launched: "
                    f"{type(error).__name__}: {error}"
                )
                failed.__cause__ = error
            work.finish(failed)
            life.fail(failed)
            raise failed from None

    def connect(self, index: int, deadline: Deadline) -> _Place:
        """The communicator of all ranks on this device: made by the first call, which every rank
        must make. Raises RendezvousError, naming who did not come in time."""
        with self._lock:
            place = self._places.get(index)
            if place is not None:
                return place
            if self._device.capturing():
                raise RuntimeError(
                    f"{self._life.described}: its first call cannot be captured into a CUDA "
                    f"graph, for the ranks must connect first: make one call before the capture, "
                    f"or name the device_id when the group is made"
                )
            life = self._life
            with self._device.entered(index):
                try:
                    member = self._life.connector.connect(
                        f"{life.prefix}/{self._made}",
                        f"group {life.name!r}",
                        life.ranks,
                        life.rank,
                        deadline,
                        life.check,
                    )
                except BaseException as error:
                    life.fail(error)
                    raise
            return self.adopt(index, member)

    def adopt(self, index: int, member: Comm) -> _Place:
        """This communicator is the group's on this device."""
        with self._lock:
            self._made += 1
            self._life.joined(member)
            place = self._places[index] = _Place(member, StreamLane(self._device, index))
            self._life.watchdog.start(index)
            return place

    def split(
        self, color: int | None, key: int, name: str, timeout_s: float
    ) -> tuple[int, Comm | None] | None:
        """NCCL's split of the communicator, which every rank of the group takes part in: the device
        and this rank's new one. None where no call has connected the group yet."""
        with self._lock:
            if not self._places:
                return None
            index, place = next(iter(self._places.items()))
            deadline = Deadline.after(timeout_s)
            try:
                # NCCL asks for it. Messages have communicators of their own.
                if not self._life.drain(timeout_s, place.lane):
                    raise DeadlineExceeded(
                        f"split_group() of {self._life.described}: the calls before it are not "
                        f"complete after {timeout_s:g} s"
                    )
                self._life.check()
                with self._device.entered(index):
                    made = self._life.connector.split(
                        place.member, color, key, name, deadline, self._life.check
                    )
            except BaseException as error:  # the communicator is in the middle of it
                self._life.fail(error)
                raise
            return index, made

    def _index_of(self, tensor: Tensor) -> int:
        index: int | None = tensor.device.index
        return self._device.current() if index is None else index

    def _index(self, text: str, what: Planned) -> int:
        """The device of a call: that of its tensors, which must be one."""
        found = {self._index_of(tensor) for tensor in what.tensors}
        if len(found) > 1:
            kind = self._device.kind
            raise ValueError(
                f"{text}: expected tensors on one device, given some on "
                f"{' and '.join(f'{kind}:{index}' for index in sorted(found))}"
            )
        return found.pop() if found else self.meeting_place()

    def meeting_place(self) -> int:
        """Returns the device of a call without tensors: the one named for the group, or that of its
        first call, or the current one."""
        if self.bound is not None:
            return self.bound
        first = next(iter(self._places), None)
        return self._device.current() if first is None else first

    # -- batches -----------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._batch = []

    def drop_batch(self) -> None:
        self._batch = None

    def end_batch(self, works: Sequence[Any]) -> CallWork:  # noqa: ARG002 - parts of one call
        """Returns a handle for all calls since `begin_batch`, which run together, as one call of
        NCCL."""
        batch, self._batch = self._batch or [], None
        if not batch:
            return FINISHED
        texts = [text for text, _timeout_s, _what, _work in batch]
        text = texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"
        timeout_s = max(timeout_s for _text, timeout_s, _what, _work in batch)
        what = together([what for _text, _timeout_s, what, _work in batch])
        whole = self._launched(text, timeout_s, what, what.tensors)
        for _text, _timeout_s, _what, part in batch:
            part.part_of(whole)
        return whole

    def _gathered(self, text: str, timeout_s: float, what: Planned) -> CallWork:
        assert self._batch is not None
        part = GatheredWork(text, self._device, self._index(text, what))
        self._batch.append((text, timeout_s, what, part))
        return part

    # -- messages ----------------------------------------------------------------------------------

    def send(self, message: MessageRequest) -> CallWork:
        text, _, timeout_s, tensor, peer, tag, tensors, _ = message
        assert peer is not None
        self._life.check()
        if self._batch is not None:  # on the communicator of all ranks
            what = Planned(lambda: plan.send(tensor, peer, tag), tuple(tensors))
            return self._gathered(text, timeout_s, what)
        work = self._message(text, timeout_s, tensors)
        self._messenger.send(work, tensor, peer, tag, tensors)
        return work

    def receive(self, message: MessageRequest) -> CallWork:
        text, _, timeout_s, tensor, peer, tag, tensors, arrived = message
        self._life.check()

        def make(come_from: int) -> plan.Plan:
            made = plan.receive(tensor, come_from, tag)
            if arrived is not None:
                made[-1].then.append(arrived)
            return made

        if self._batch is None:
            work = self._message(text, timeout_s, tensors)
            self._messenger.receive(work, make, peer, tag, tensors)
            return work
        if peer is None:
            raise ValueError(
                f"{text}: what is in a batch is one call of NCCL, which must know the source: name "
                f"it, or receive outside of the batch"
            )
        return self._gathered(text, timeout_s, Planned(lambda: make(peer), tuple(tensors)))

    def _message(self, text: str, timeout_s: float, tensors: Sequence[Tensor]) -> StreamWork:
        index = self._index_of(tensors[0])
        return StreamWork(text, tensors[:1], self._device, index, Deadline.after(timeout_s))
