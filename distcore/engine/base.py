"""The engine's interface: it plans a checked call of a group, runs it, and ends with the group.

The group (`CoreGroup`) checks the arguments, writes the call's text and decides what is copied
first. The engine does the rest. `tcp.engine` runs our own algorithms on a mesh of connections;
`session.QueuedEngine` is shared by the engines whose calls take turns on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..base.reduction import Reduction
from .staging import DeviceReach, Staging
from .work import CallWork

Body = Callable[[Any], object]
"""The body of a call, which runs in its turn on the network of the group's collectives."""


class Life(Protocol):
    """The state of one group, from its making to its end. It registers itself with
    `process_exit`, which asks it for `close_gracefully()` and `abandon()`; as
    `session.Session`."""

    @property
    def calls(self) -> int: ...
    @property
    def failure(self) -> BaseException | None:
        """The first error, which made the group unusable."""

    @property
    def token(self) -> str:
        """Different for groups of the same name that were made one after the other in a store."""

    def unusable(self) -> BaseException:
        """Returns the error that every call raises after the first failure, or the end."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until no call runs or waits; whether that came true in time."""

    def abort(self, reason: str) -> None:
        """End every call at once, those of the other ranks too. From any thread."""

    def close(self) -> None:
        """End the group. Calls that nobody waited for may finish first."""


class MessageRequest(NamedTuple):
    """A message between two ranks; it does not wait for the group's collectives."""

    text: str
    kind: str
    """Of the tensor: `float32[4]`."""
    timeout_s: float
    tensor: Tensor
    """The tensor that is sent, or received into."""
    peer: int | None
    """None: whoever sends."""
    tag: int
    tensors: Sequence[Tensor]
    """The tensors that live until the handle is done; the first is its result."""
    arrived: Callable[[], None] | None = None
    """Called once, before it counts as done."""


class Engine(Protocol):
    """The transport of one group. Ranks are the group's own.

    The planners (`all_reduce` to `together`) are called on the caller's thread, in the order of the
    calls, and give the call's body, which `start` runs; a body may plan and run more. Their tensors
    are plain (`reach.is_plain`) and checked; a result is written in place. What they cannot do they
    refuse with TypeError or ValueError, before anything is sent. What bodies raise is in
    `distcore.errors`. Parts of one tensor are `staging.Parts`.
    """

    @property
    def name(self) -> str:
        """The backend's, in errors and profiles."""

    @property
    def reach(self) -> DeviceReach:
        """The devices whose tensors it takes as they lie, and those whose tensors it copies."""

    @property
    def session(self) -> Life: ...

    def staging(self) -> Staging:
        """Returns a staging for the tensors of one call that are not plain."""

    def start(
        self, text: str, timeout_s: float, at_once: bool, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Run a call; `at_once`: the caller waits for it. `tensors` are what it writes."""

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body: ...
    def reduce(self, tensor: Tensor, root: int, reduction: Reduction) -> Body: ...
    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction
    ) -> Body: ...
    def broadcast(self, tensor: Tensor, root: int) -> Body: ...
    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Body: ...
    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Body: ...
    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Body: ...
    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Body: ...
    def barrier(self) -> Body: ...

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], reductions: Sequence[Reduction]
    ) -> Body: ...
    def together(self, bodies: Sequence[Body]) -> Body:
        """Returns a call that does what these do; they were planned by this engine."""

    def send(self, message: MessageRequest) -> CallWork: ...
    def receive(self, message: MessageRequest) -> CallWork: ...

    # Between the two, the program starts calls that belong together, and waits for none.
    def begin_batch(self) -> None: ...
    def end_batch(self, works: Sequence[Any]) -> CallWork:
        """Returns a handle for all calls since `begin_batch`."""
