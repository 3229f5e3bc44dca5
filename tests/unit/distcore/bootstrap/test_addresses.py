"""Which address a rank listens on: one host, several, a master known as loopback, a variable."""

from __future__ import annotations

import socket

import psutil
import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from distcore.base.linux import Host
from distcore.bootstrap import addresses
from distcore.bootstrap.addresses import listening_address

A, B = Host("a", 1), Host("b", 1)


def test_one_host_is_loopback() -> None:
    assert listening_address(0, [A, A], ["10.0.0.1", "10.0.0.1"]) is None


def test_several_hosts_use_the_way_to_the_master() -> None:
    assert listening_address(1, [A, B], ["127.0.1.1", "10.0.0.2"]) == "10.0.0.2"


def test_a_master_known_as_loopback_uses_the_way_to_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"10.0.0.2": "10.0.0.1"}
    monkeypatch.setattr(addresses, "address_towards", ways.get)
    assert listening_address(0, [A, B], ["127.0.1.1", "10.0.0.2"]) == "10.0.0.1"


def test_containers_of_one_machine_are_several_hosts() -> None:
    hosts = [Host("a", 1), Host("a", 2)]
    assert listening_address(0, hosts, ["10.0.0.1", None]) == "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", None), ("::1", "::1"), ("nosuch.invalid", None)],
)
def test_the_way_to_a_host(host: str, expected: str | None) -> None:
    found = addresses.address_towards(host)
    if host == "localhost":
        assert found is not None
        assert addresses.is_loopback(found)
    elif not (host == "::1" and found is None):
        assert found == expected


def test_the_tcp_stores_host_is_found_below_prefixes() -> None:
    store = TCPStore("localhost", 0, None, True, wait_for_workers=False)
    below = PrefixStore("a/", PrefixStore("b", store))
    assert addresses.store_host(below) == "localhost"
    assert addresses.store_host(PrefixStore("x", HashStore())) is None


def test_the_interface_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTCORE_SOCKET_IFNAME", "nosuch0, lo")
    assert addresses.interface_address() == "127.0.0.1"
    assert listening_address(0, [A, A], [None, None]) == "127.0.0.1"


@pytest.mark.parametrize("without", [None, socket.AF_INET])
def test_the_address_of_each_interface_is_what_psutil_says(
    without: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rank psutil may be a module of the program's, so that the kernel is asked there."""
    if without is not None:
        monkeypatch.setattr(addresses, "_SIOCGIFADDR", 0)  # as where an interface has no IPv4
    for name, rows in psutil.net_if_addrs().items():
        known = [
            row.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for row in rows
            if row.family == family != without and not row.address.startswith("fe80:")
        ]
        monkeypatch.setenv("DISTCORE_SOCKET_IFNAME", name)
        if known:
            assert addresses.interface_address() == known[0]
        else:
            with pytest.raises(ValueError, match=f"{name}.* names no interface with an address"):
                addresses.interface_address()
