"""Moves a rank's process into its network namespace, before the program has opened a socket."""

from __future__ import annotations

import ctypes
import os

from ..record.network import INTERFACE, LAUNCHER, RANK_VARIABLE, VARIABLE, Entrances, address

_CLONE_NEWNET = 0x4000_0000
_INTERFACE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "DISTCORE_SOCKET_IFNAME",
)


def enter(rank: int) -> None:
    """Move this process, and what it will start, into the namespace of this rank.

    Whatever a backend is told of interfaces, there is one now; and the store, which is the
    launcher's or rank 0's, is elsewhere. Raises OSError, ValueError and IndexError.
    """
    environment = os.environ
    descriptor = os.open(Entrances.read(environment[VARIABLE]).of_rank(rank), os.O_RDONLY)
    try:
        # os.setns is there from Python 3.12 on only.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
    finally:
        os.close(descriptor)
    environment[RANK_VARIABLE] = str(rank)
    environment.update(dict.fromkeys(_INTERFACE_VARIABLES, INTERFACE))
    if "MASTER_ADDR" in environment:
        launchers = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        environment["MASTER_ADDR"] = LAUNCHER if launchers else address(0)
