"""Which connection an error of lost communication is about, where it says so."""

from __future__ import annotations

import os
import re

from distcore.errors import GroupFailed

from ...record import network

_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


def named_by(error: BaseException) -> dict[str, list[int]]:
    """`link`: the global ranks of the connection's sender and receiver; nothing where that is not
    known.

    distcore's errors name them. Other backends name the other end's address, which is one rank's
    alone where ranks have a network of their own.
    """
    if isinstance(error, GroupFailed):
        return {} if error.link is None else {"link": list(error.link)}
    rank = os.environ.get(network.RANK_VARIABLE, "")
    if not rank.isdigit() or not isinstance(error, RuntimeError):
        return {}
    peers = {network.rank_at(text) for text in _ADDRESS.findall(str(error))} - {None, int(rank)}
    return (
        {"link": [*(one for one in peers if one is not None), int(rank)]} if len(peers) == 1 else {}
    )
