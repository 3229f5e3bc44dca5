"""Two machines with a switch between them, in one: network namespaces. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys

PORTS = ("port0", "port1")
"""The switch's."""
PLUGGED, DIRECT = "net0", "net1"
"""Each host's interfaces: to the switch, and by a cable to the other host."""


class Unavailable(Exception):
    """This machine cannot do that; why."""


class Hosts:
    """Hosts 0 and 1, with addresses 10.213.0.1 and .2 on the switch, 10.214.0.1 and .2 directly.

    Raises Unavailable where there are no namespaces, bridges or veth pairs to be had.
    """

    def __init__(self) -> None:
        prefix = f"distcore-{os.getpid()}"
        self.namespaces = [f"{prefix}-{host}" for host in (0, 1)]
        self._switch = f"{prefix}-switch"
        try:
            for namespace in (*self.namespaces, self._switch):
                _ip("netns", "add", namespace)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for port, namespace in zip(PORTS, self.namespaces, strict=True):
                self._cable(namespace, PLUGGED, self._switch, port)
                _ip("-n", self._switch, "link", "set", port, "master", "switch")
            self._cable(self.namespaces[0], DIRECT, self.namespaces[1], DIRECT)
            for number, namespace in enumerate(self.namespaces, start=1):
                _ip("-n", namespace, "link", "set", "lo", "up")
                for interface, net in ((PLUGGED, 213), (DIRECT, 214)):
                    address = f"10.{net}.0.{number}/24"
                    _ip("-n", namespace, "address", "add", address, "dev", interface)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take them away; what still runs there has no network any more."""
        for namespace in (*self.namespaces, self._switch):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    @staticmethod
    def address(host: int, net: int = 213) -> str:
        return f"10.{net}.0.{host + 1}"

    def unplug(self, host: int) -> None:
        """The switch forgets the host: what either side sends vanishes, and nobody is told."""
        _ip("-n", self._switch, "link", "set", PORTS[host], "nomaster")

    def plug_in(self, host: int) -> None:
        """The opposite of `unplug`."""
        _ip("-n", self._switch, "link", "set", PORTS[host], "master", "switch")

    def take_down(self, host: int, interface: str) -> None:
        """The host itself switches its interface off."""
        _ip("-n", self.namespaces[host], "link", "set", interface, "down")

    def run(self, host: int, *command: str) -> str:
        """Run a command on the host; what it printed."""
        line = ["ip", "netns", "exec", self.namespaces[host], *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def python(self, host: int, script: str, *arguments: str) -> str:
        """Run a Python script there."""
        return self.run(host, sys.executable, "-c", script, *arguments)

    def connections(self, host: int, towards: str) -> list[list[str]]:
        """Both ends of each of the host's connections to this address."""
        listed = self.run(host, "ss", "-tnH", "state", "established", "dst", towards)
        return [line.split()[2:4] for line in listed.splitlines()]

    def reset(self, host: int, connection: list[str]) -> None:
        """Break it, as something in between would. Raises Unavailable."""
        here, there = connection
        if here not in self.run(host, "ss", "-KtnH", "src", here, "dst", there):
            raise Unavailable("this kernel does not close connections (ss -K)")

    @staticmethod
    def _cable(one: str, name: str, other: str, other_name: str) -> None:
        _ip(
            "-n", one, "link", "add", name,
            "type", "veth", "peer", "name", other_name, "netns", other,
        )  # fmt: skip
        _ip("-n", one, "link", "set", name, "up")
        _ip("-n", other, "link", "set", other_name, "up")


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable("there is no `ip` (iproute2)") from None
    if done.returncode:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
