"""Copies of what other nodes have in their `ranks/`, and how they are told from our own files.

The head of a job keeps them in its own `ranks/`, each under its name with `node<number>-` before
it, since processes of two hosts may have one pid.
"""

from __future__ import annotations

import re

FEW_NODES = 64
"""Up to so many nodes report all that is new at once, or nearly so, and each has a connection to
the head."""
FAR_HEARTBEAT_S = 30.0
_NAME = re.compile(r"node(\d{1,6})-")


def calling_every_s(nodes: int) -> float:
    """Returns for how long each of many nodes says nothing while its ranks go on calling, and
    nobody asks. It changes with each doubling, not with each node: all together report 16 times a
    second, which takes a quarter of a millisecond of the processor for eight ranks."""
    return min(128.0, (1 << (nodes - 1).bit_length()) / 16)


def far_heartbeat_s(nodes: int) -> float:
    """Returns the age of a heartbeat below which a rank on one of the other `nodes` counts as
    alive, for a reader that has no more than the records."""
    if nodes <= FEW_NODES:
        return FAR_HEARTBEAT_S
    return max(FAR_HEARTBEAT_S, 1.5 * calling_every_s(nodes))


def prefix(node: int) -> str:
    """Returns the prefix of the names of that node's files; "" for this one, which is 0."""
    return f"node{node}-" if node else ""


def node_of(name: str) -> int:
    """The node that reported the file with this name."""
    match = _NAME.match(name)
    return int(match[1]) if match else 0


def own_name(name: str) -> str:
    """Returns the name that the file with this name has on its own node."""
    match = _NAME.match(name)
    return name[match.end() :] if match else name
