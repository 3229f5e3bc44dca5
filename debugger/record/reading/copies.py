"""Copies of what other nodes have in their `ranks/`, and how they are told from our own files.

The head of a job keeps them in its own `ranks/`, each under its name with `node<number>-` before
it, since processes of two hosts may have one pid.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"node(\d{1,6})-")


def prefix(node: int) -> str:
    """Of the names of that node's files; "" for this one, which is 0."""
    return f"node{node}-" if node else ""


def node_of(name: str) -> int:
    """The node that reported the file with this name."""
    match = _NAME.match(name)
    return int(match[1]) if match else 0


def own_name(name: str) -> str:
    """What the file with this name is called on its own node."""
    match = _NAME.match(name)
    return name[match.end() :] if match else name
