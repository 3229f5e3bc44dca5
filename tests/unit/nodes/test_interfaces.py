"""Which address others reach this host by, where its own name leads them astray."""

from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from distdebug.nodes import interfaces
from distdebug.nodes.interfaces import address_towards, is_here, names_loopback

DEBIANS = "127.0.1.1"


@pytest.fixture(name="debian")
def _debian(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of this host, as Debian's installer writes it into /etc/hosts."""
    known = socket.getaddrinfo

    def getaddrinfo(host: str, *args: object, **kwargs: object) -> object:
        return known(DEBIANS if host == "node0" else host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return "node0"


def net(monkeypatch: pytest.MonkeyPatch, addresses: dict[str, str]) -> None:
    """There is no way out, and there are these interfaces."""
    rows = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in addresses.items()
    }
    monkeypatch.setattr(interfaces, "_EVERYWHERE", ())
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: rows)
    up = {name: SimpleNamespace(isup=name != "down0") for name in addresses}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: up)


def test_a_host_whose_own_name_is_loopback_there_alone(
    debian: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would be told 127.0.1.1, and look for the head on themselves."""
    net(
        monkeypatch,
        {
            "lo": "127.0.0.1",
            "docker0": "172.17.0.1",
            "down0": "10.0.0.1",
            "net0": "10.0.0.2",
            "net1": "10.0.1.2",
        },
    )
    assert address_towards(debian) == "10.0.0.2"
    assert is_here(debian)


def test_a_host_without_a_network(debian: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net(monkeypatch, {"lo": "127.0.0.1"})
    assert address_towards(debian) == DEBIANS


def test_the_way_out_is_never_loopback(debian: str) -> None:
    """On whatever host this runs."""
    address = address_towards(debian)
    assert address == DEBIANS or not ipaddress.ip_address(address).is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.5"])
def test_a_name_that_means_loopback_everywhere(host: str) -> None:
    """The twin: all nodes are on one host, and nobody else is to reach the head."""
    assert ipaddress.ip_address(address_towards(host)).is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost.localdomain", True),
        ("ip6-localhost", True),
        ("::1", True),
        ("127.0.1.1", True),
        ("node0", False),
        ("10.0.0.1", False),
        ("localnode", False),
        ("", False),
    ],
)
def test_names_of_loopback(host: str, expected: bool) -> None:
    assert names_loopback(host) is expected
