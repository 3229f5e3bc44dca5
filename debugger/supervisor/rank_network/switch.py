"""The switch between the ranks' network namespaces: hands on what they send, with faults.

A process of its own, so that nobody waits for the supervisor, and nothing is left when that is
killed: it ends with its standard input, and all namespaces with it and the ranks. It gets
{"ranks", "directory", "plan"} in the first line there, and answers in one line with {"entrances"}
or {"failed"}. Standard library only.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ...faults.injected import InjectedLog
from ...faults.packets import destination
from ...faults.plan import Plan
from ...faults.wire import Clock, Leaving, Wire
from ...record.network import LAUNCHER, SWITCH, Entrances, address
from . import namespaces

_PACKET_BYTES = 1 << 16
_MOST_AT_ONCE = 32
"""Packets of one sender before it is another one's turn."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LAUNCHER_PORT = -1


class Switch:
    """The switch between `ports`, by rank; the launcher's is under -1. `wires`: by sender and
    receiver, those with faults. `clock` begins when each rank has said that its group is there."""

    def __init__(
        self,
        ports: Mapping[int, int],
        wires: Mapping[tuple[int, int], Wire],
        clock: Clock,
        control: int,
    ) -> None:
        self._rank_of = {tun: rank for rank, tun in ports.items()}
        self._tun_of = {
            socket.inet_aton(LAUNCHER if rank == _LAUNCHER_PORT else address(rank)): (rank, tun)
            for rank, tun in ports.items()
        }
        self._tuns = dict(ports)
        self._wires = wires
        self._clock = clock
        self._control = control
        self._to_begin = {rank for rank in ports if rank != _LAUNCHER_PORT}
        self._late: list[tuple[float, int, int, bytes, Wire]] = []
        self._order = itertools.count()
        self._switch = socket.inet_aton(SWITCH)

    def run(self) -> None:
        """Forwards packets until the control descriptor ends."""
        poll = select.poll()
        for descriptor in (*self._rank_of, self._control):
            poll.register(descriptor, select.POLLIN)
        buffer = bytearray(_PACKET_BYTES)
        while True:
            wait_ms = None
            if self._late:
                wait_ms = max(0, 1000 * (self._late[0][0] - time.monotonic()))
            for descriptor, _event in poll.poll(wait_ms):
                if descriptor == self._control:
                    if not os.read(descriptor, 4096):
                        return
                    continue
                self._read(descriptor, buffer)
            self._send_late()

    def _read(self, tun: int, buffer: bytearray) -> None:
        view = memoryview(buffer)
        sender = self._rank_of[tun]
        for _ in range(_MOST_AT_ONCE):
            try:
                packet = view[: os.readv(tun, [buffer])]
            except BlockingIOError:
                return
            target = destination(packet)
            found = self._tun_of.get(target)
            if found is None:
                if target == self._switch and self._to_begin:
                    self._to_begin.discard(sender)
                    if not self._to_begin:
                        self._clock.began_s = time.monotonic()
                continue
            receiver, other = found
            wire = self._wires.get((sender, receiver))
            if wire is None:
                _write(other, packet)
            else:
                self._send_late()
                now_s = time.monotonic()
                for one in wire.take(bytes(packet), now_s):
                    self._send(one, wire, tun if one.back else other, now_s)

    def _send(self, one: Leaving, wire: Wire, tun: int, now_s: float) -> None:
        if one.back or (one.at_s <= now_s and not wire.queued_bytes):
            _write(tun, one.packet)
            return
        wire.queued_bytes += len(one.packet)
        heapq.heappush(self._late, (one.at_s, next(self._order), tun, one.packet, wire))

    def _send_late(self) -> None:
        """Sends the packets that are due by now."""
        if not self._late:
            return
        now_s = time.monotonic()
        while self._late and self._late[0][0] <= now_s:
            _, _, tun, packet, wire = heapq.heappop(self._late)
            wire.queued_bytes -= len(packet)
            _write(tun, packet)


def _write(tun: int, packet: bytes | memoryview) -> None:
    """A packet that finds no room, or nobody, is lost, as on any network."""
    with contextlib.suppress(OSError):
        os.write(tun, packet)


def wires_of(plan: Plan, ranks: int, clock: Clock, directory: Path) -> dict[tuple[int, int], Wire]:
    """Returns the wires with faults; what happens on them is written to the run directory."""
    found = {}
    for sender, receiver in itertools.permutations(range(ranks), 2):
        wire = Wire(sender, receiver, plan, clock, InjectedLog(directory, sender).add)
        if wire:
            found[sender, receiver] = wire
    return found


def main() -> None:
    """The process."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    control = sys.stdin.fileno()
    with open(control, "rb", closefd=False) as lines:
        request = json.loads(lines.readline())
    ranks = int(request["ranks"])
    try:
        made = namespaces.make([*map(address, range(ranks)), LAUNCHER])
    except OSError as error:
        _answer({"failed": error.strerror or str(error)})
        return
    clock = Clock()
    plan = Plan.from_json(request["plan"])
    wires = wires_of(plan, ranks, clock, Path(request["directory"]))
    *of_ranks, of_launcher = [port.namespace for port in made]
    entrances = Entrances(os.getpid(), of_launcher, tuple(of_ranks))
    ports = {rank: port.tun for rank, port in enumerate(made[:-1])}
    ports[_LAUNCHER_PORT] = made[-1].tun
    _answer({"entrances": entrances.text})
    Switch(ports, wires, clock, control).run()


def _answer(value: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
