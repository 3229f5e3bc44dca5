"""The ranks' own network, where a run has one: its addresses, and how its processes come to them.

Each rank lives in a network namespace of its own with one interface; so does the launcher, with all
that it starts until that is a rank. Between them stands a switch, `supervisor.rank_network.switch`,
which makes faults of links happen. The namespaces have no names: they are reached through
descriptors of the switch, and are gone with the last process that is in them.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
from dataclasses import dataclass

from ..system.proc import path_of

VARIABLE = "DISTDEBUG_NETWORK"
"""In the environment of such a run: `Entrances.text`."""
RANK_VARIABLE = "DISTDEBUG_NETWORK_RANK"
"""Set in a rank that is in the namespace of that rank."""
INTERFACE = "distdebug0"
NETMASK = "255.255.255.0"
_NET = "10.213.0."
LAUNCHER = f"{_NET}254"
SWITCH = f"{_NET}253"
"""The switch's own address; a rank sends a datagram there when its default group is made."""
BEGUN_PORT = 9
MOST_ADDRESSES = 250
_CLONE_NEWNET = 0x4000_0000
_INTERFACE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "DISTCORE_SOCKET_IFNAME",
)


def address(rank: int) -> str:
    """The address of this global rank."""
    if not 0 <= rank < MOST_ADDRESSES:
        raise ValueError(f"rank {rank}: such a network has ranks 0 to {MOST_ADDRESSES - 1}")
    return f"{_NET}{rank + 1}"


def rank_at(text: str) -> int | None:
    """The reverse; None for any other address."""
    try:
        packed = ipaddress.IPv4Address(text).packed
    except ValueError:
        return None
    rank = packed[3] - 1
    return rank if 0 <= rank < MOST_ADDRESSES and text == address(rank) else None


@dataclass(frozen=True, slots=True)
class Entrances:
    """The namespaces as descriptors of the process `pid`, the launcher's and, by rank, the
    ranks'."""

    pid: int
    launcher: int
    ranks: tuple[int, ...]

    @property
    def text(self) -> str:
        return ",".join(map(str, (self.pid, self.launcher, *self.ranks)))

    @classmethod
    def read(cls, text: str) -> Entrances:
        """The reverse of `text`. Raises ValueError."""
        pid, launcher, *ranks = map(int, text.split(","))
        return cls(pid, launcher, tuple(ranks))

    @property
    def of_launcher(self) -> str:
        """The path to open."""
        return path_of(self.launcher, self.pid)

    def of_rank(self, rank: int) -> str:
        """The path to open. Raises IndexError for a rank that has none."""
        if not 0 <= rank < len(self.ranks):
            raise IndexError(f"rank {rank} has no network namespace: there are {len(self.ranks)}")
        return path_of(self.ranks[rank], self.pid)


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
