"""The engine of tcp: our own algorithms, on the mesh of connections of a session."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..algorithms import collectives
from ..algorithms.choice import DEFAULT, Chooser
from ..base.reduction import Reduction
from ..engine.queued import QueuedEngine
from ..engine.session import Body, Session
from ..engine.staging import MAIN_MEMORY


class TcpEngine(QueuedEngine):
    """See `engine.Engine`."""

    def __init__(self, session: Session, choice: Chooser = DEFAULT) -> None:
        super().__init__("tcp", session, MAIN_MEMORY)
        self._choice = choice

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body:
        return lambda net: collectives.all_reduce(net, tensor, reduction, self._choice)

    def reduce(self, tensor: Tensor, root: int, reduction: Reduction) -> Body:
        return lambda net: collectives.reduce(net, tensor, root, reduction, self._choice)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction
    ) -> Body:
        return lambda net: collectives.reduce_scatter(net, output, inputs, reduction, self._choice)

    def broadcast(self, tensor: Tensor, root: int) -> Body:
        return lambda net: collectives.broadcast(net, tensor, root, self._choice)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Body:
        return lambda net: collectives.all_gather(net, outputs, tensor, self._choice)

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Body:
        return lambda net: collectives.gather(net, outputs, tensor, root, self._choice)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Body:
        return lambda net: collectives.scatter(net, output, inputs, root, self._choice)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Body:
        return lambda net: collectives.all_to_all(net, outputs, inputs, self._choice)

    def barrier(self) -> Body:
        return collectives.barrier
