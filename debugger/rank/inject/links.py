"""Link faults of a plan: given to distcore, which performs them; what happens of them is written.

Every rank has all of them, not only who sends: a group's ranks must agree on how they connect.
Where the ranks have a network of their own, its switch performs them, on every backend; it is told
when the group is there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distcore.testing import Fault, FaultPlan, Injection, Kind, inject

from ...faults import actions
from ...faults import plan as plans
from ...faults.actions import Family
from ...faults.injected import InjectedLog
from ...faults.plan import Moment, Plan, When
from ...record import network
from ...record.wording import by_device
from ..group.wrap import Groups

ACTIONS = frozenset(name for name, one in actions.ACTIONS.items() if one.family is Family.LINK)
_KINDS = {
    "drop": Kind.DROP,
    "delay": Kind.DELAY,
    "rate": Kind.THROTTLE,
    "corrupt": Kind.CORRUPT,
    "truncate": Kind.TRUNCATE,
    "duplicate": Kind.DUPLICATE,
    "reset": Kind.RESET,
    "blackhole": Kind.BLACKHOLE,
}
_LASTING = frozenset({Kind.DELAY, Kind.THROTTLE, Kind.BLACKHOLE})
"""The faults that go on from their time to the end, where the others happen once."""
_KEPT_BYTES = 60
"""The bytes left of a truncated frame: its header, and a little more."""


def observe(plan: Plan, directory: Path, groups: Groups) -> None:
    """From now on the plan's link faults happen to the connections of this process's groups.
    Without any, nothing changes. Raises ValueError, KeyError or TypeError for a plan that makes no
    sense."""
    if plan.namespaces:
        groups.on_default_group(lambda _backend, rank: _tell_switch(plan, directory, rank))
        return
    made = [(fault.number, one) for fault in _of_links(plan) for one in _faults(fault)]
    if not made:
        return
    numbers = {id(one): number for number, one in made}
    log = _Log(directory)

    def happened(injection: Injection) -> None:
        log.add(numbers[id(injection.fault)], injection)

    inject(FaultPlan(tuple(one for _number, one in made), plan.seed, happened))
    groups.on_default_group(lambda backend, rank: _refuse(plan, directory, backend, rank))


def _refuse(plan: Plan, directory: Path, backend: str, rank: int) -> None:
    """Say so where link faults cannot happen to a group on this backend ("tcp",
    "cpu:gloo,cuda:nccl")."""
    if "tcp" in by_device(backend).values():
        return
    log = InjectedLog(directory, rank)
    for fault in _of_links(plan):
        log.refuse(
            fault.number,
            f'faults of links need the backend tcp, as in init_process_group("tcp"), or --netns '
            f"(as root), with which they work on every one; the default group is on {backend}",
        )


def _tell_switch(plan: Plan, directory: Path, rank: int) -> None:
    """The default group is there. Say so, too, where this rank is not in the network at all."""
    if os.environ.get(network.RANK_VARIABLE) == str(rank):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"begun", (network.SWITCH, network.BEGUN_PORT))
        return
    log = InjectedLog(directory, rank)
    for fault in _of_links(plan):
        log.refuse(
            fault.number,
            "with --netns each rank's process must find its RANK in the environment as it starts, "
            "as torchrun does it; this one did not",
        )


def _of_links(plan: Plan) -> list[plans.Fault]:
    return [fault for fault in plan.faults if fault.action in ACTIONS]


def _faults(fault: plans.Fault) -> Iterator[Fault]:
    """distcore's words for it."""
    arguments = fault.arguments
    kind = _KINDS[arguments.get("what", "blackhole")]
    details = _window(fault.moment, kind)
    details |= {name: one for name, one in arguments.items() if name in ("delay_s", "bytes_per_s")}
    if kind is Kind.TRUNCATE:
        details["keep_bytes"] = _KEPT_BYTES
    for sender, receiver in fault.pairs:
        yield Fault(kind, sender, receiver, **details)


def _window(moment: Moment, kind: Kind) -> dict[str, Any]:
    match moment.when:
        case When.FRAME:
            frames = None
            if moment.last is not None:
                frames = (moment.last - moment.first) // moment.stride + 1
            return {"first_frame": moment.first, "frames": frames, "stride": moment.stride}
        case When.TIME:
            once = moment.for_s is None and kind not in _LASTING
            return {
                "at_s": moment.at_s,
                "for_s": moment.for_s,
                "frames": 1 if once else None,
            }
        case other:
            raise ValueError(f"a link fault at a {other.value}; it takes a frame or a time")


class _Log:
    """The lines of this process's faults; whatever thread sends writes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._of_rank: dict[int, InjectedLog] = {}

    def add(self, number: int, injection: Injection) -> None:
        """Logs an injection that happens now; the sender is this process."""
        with self._lock:
            log = self._of_rank.get(injection.rank)
            if log is None:  # which rank this is, is known by now
                log = self._of_rank[injection.rank] = InjectedLog(self._directory, injection.rank)
            log.add(number, str(injection), group=injection.group)
