"""The switch between the ranks' network namespaces: hands on what they send, with faults.

A process of its own, so that nobody waits for the supervisor, and nothing is left when that is
killed: it ends with its standard input, and all namespaces with it and the ranks. It gets
{"ranks", "directory", "plan"} in the first line there, and answers in one line with {"entrances"}
or {"failed"}. Standard library only.

The namespaces have one interface each, whose other end this process holds, which needs root. They
have no names and leave nothing behind: a namespace is gone with the last process in it and the last
descriptor of it, its interface with the descriptor that carries it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...faults.injected import InjectedLog
from ...faults.packets import destination
from ...faults.plan import Plan
from ...faults.wire import Clock, Wire
from ...record.network import INTERFACE, LAUNCHER, NETMASK, SWITCH, Entrances, address
from ...system.proc import namespace_path, setting

TUN = Path("/dev/net/tun")
MTU_BYTES = 65_000
"""One packet for nearly every message: the switch's cost is by the packet."""
_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 1, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8916, 0x891C, 0x8922


@dataclass(frozen=True, slots=True)
class Port:
    """A namespace. `tun`: a descriptor, not blocking, that gives and takes whole IPv4 packets of
    its interface. `namespace`: a descriptor of the namespace itself."""

    tun: int
    namespace: int


def make(addresses: Sequence[str]) -> list[Port]:
    """A namespace for each address, with loopback and an interface that has the address.

    This process must have one thread; it is where it was before, afterwards. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    own = namespace_path("self", "net")
    home = os.open(own, os.O_RDONLY)
    try:
        ports = []
        for address in addresses:
            _check(libc.unshare(_CLONE_NEWNET), "unshare")
            ports.append(Port(_interface(address), os.open(own, os.O_RDONLY)))
        return ports
    finally:
        _check(libc.setns(home, _CLONE_NEWNET), "setns")
        os.close(home)


def why_impossible() -> str:
    """Tells why there can be none, as far as that can be told without making one; "" where they
    can."""
    if os.geteuid() != 0:
        return "needs root"
    if not TUN.exists():
        return f"needs {TUN}, which this machine does not have (modprobe tun)"
    return ""


def _interface(address: str) -> int:
    tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    name = INTERFACE.encode()
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TUN | _IFF_NO_PI))
    try:
        # It would send greetings of its own, and be a second family to choose from.
        setting(f"net.ipv6.conf.{INTERFACE}.disable_ipv6").write_text("1")
    except OSError:
        pass  # a kernel without IPv6
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, NETMASK)):
            packed = socket.inet_aton(text)
            fcntl.ioctl(any_socket, request, struct.pack("16sH2x4s8x", name, 2, packed))
        fcntl.ioctl(any_socket, _SIOCSIFMTU, struct.pack("16si12x", name, MTU_BYTES))
        for one in (b"lo", name):
            asked = struct.pack("16sH14x", one, 0)
            flags: int = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[1]
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", one, flags | _IFF_UP))
    return tun


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


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
                    to = tun if one.back else other
                    if one.back or (one.at_s <= now_s and not wire.queued_bytes):
                        _write(to, one.packet)
                    else:
                        wire.queued_bytes += len(one.packet)
                        late = (one.at_s, next(self._order), to, one.packet, wire)
                        heapq.heappush(self._late, late)

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
        made = make([*map(address, range(ranks)), LAUNCHER])
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
