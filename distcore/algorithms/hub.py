"""Through rank 0 and back: the fewest messages there are, for small ones among few ranks.

Where ranks outnumber processors, a message costs the time of two ranks that are woken, and not the
way between them: 2 (n-1) messages in all are over before the n log2 n of the algorithms whose ranks
all work at once. Steps and bytes below are for n ranks and a message of N bytes; "sent" is by one
rank. Source: the linear algorithms of Open MPI's basic component (reduce, then broadcast).
"""

from __future__ import annotations

from ..base.reduction import Reduction
from ..transports.base import Receive, Send, Transport
from .pieces import NO_RECEIVES, NO_SENDS, give_back, merge_in_order, take_scratch


def all_reduce(net: Transport, data: memoryview, reduction: Reduction) -> None:
    """Rank 0 combines everything in the order of ranks, and sends the result to everyone.

    Steps: 2. Sent: (n-1) N by rank 0, N by the others. Scratch: (n-1) N on rank 0, however large:
    meant for small messages.
    """
    size, length = net.size, len(data)
    if net.rank:
        net.exchange([Send(0, data)], NO_RECEIVES)
        net.exchange(NO_SENDS, [Receive(0, data)])
        return
    scratch = take_scratch((size - 1) * length)
    parts = [data, *(scratch[part * length : (part + 1) * length] for part in range(size - 1))]
    net.exchange(NO_SENDS, [Receive(peer, parts[peer]) for peer in range(1, size)])
    merge_in_order(parts, 0, data, reduction)
    give_back(scratch)
    reduction.finish_bytes(data, size)
    net.exchange([Send(peer, data) for peer in range(1, size)], NO_RECEIVES)
