"""Exchanges with one peer after the other: n-1 steps, for many ranks and large messages.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.buffers import copy_bytes
from ..transports.base import Receive, Send, Transport


def all_to_all(net: Transport, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
    """In step k rank r sends to r+k and receives from r-k; for powers of two it exchanges with
    r xor k. At any time a rank deals with one or two others.

    Steps: n-1. Sent: all inputs but the own one. Empty parts travel too: splits that do not match
    are found where they do not, not by a timeout.
    """
    rank, size = net.rank, net.size
    paired = not size & (size - 1)
    copy_bytes(outputs[rank], inputs[rank])
    for step in range(1, size):
        to = rank ^ step if paired else (rank + step) % size
        source = to if paired else (rank - step) % size
        net.exchange([Send(to, inputs[to])], [Receive(source, outputs[source])])
