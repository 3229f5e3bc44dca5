"""Ranks on two hosts (nodes of this machine): two on each, with shared memory within a host and TCP
between them; what becomes of a connection that is reset, or on which nothing comes any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.crew import Crew
from tests.support.nodes import SECOND, Nodes, Unavailable
from tests.support.torch_loaded import TorchLoaded

pytestmark = pytest.mark.root
SCRIPT = Path(__file__).parents[1] / "scripts" / "distcore_messages.py"
PORT = 29_500
USER_TIMEOUT_S = 4
BUSY_S = 20.0
"""What a busy machine may take longer: less than the timeouts that nothing here must wait for."""

STRAY = """
import os, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
for words in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"distcore" + bytes(200), os.urandom(100_000)):
    with socket.create_connection((address, port), 5) as stray:
        try:
            stray.sendall(words)
        except ConnectionError:
            pass
silent = [socket.create_connection((address, port), 5) for _ in range(200)]
print("done")
"""


@pytest.fixture
def hosts(make_nodes: Callable[[int], Nodes]) -> Nodes:
    return make_nodes(2)


class Ranks:
    """Makes crews of which ranks 0 and 1 are on host 0, 2 and 3 on host 1."""

    def __init__(self, loaded: TorchLoaded, hosts: Nodes, directory: Path) -> None:
        self._loaded = loaded
        self._hosts = hosts
        self._directory = directory

    def __call__(self, extra: Mapping[str, str] | None = None) -> Crew:
        crew = Crew(self._loaded, self._directory, 4, extra, SCRIPT)
        for rank in range(4):
            crew.ask([rank], "enter", network=self._hosts[rank // 2].network)
        return crew


@pytest.fixture
def ranks(torch_loaded: TorchLoaded, hosts: Nodes, tmp_path: Path) -> Ranks:
    return Ranks(torch_loaded, hosts, tmp_path)


def join(crew: Crew, method: str) -> list[Any]:
    return crew.everyone("join", address="10.213.0.1", port=PORT, method=method)


def listening(hosts: Nodes, host: int) -> set[str]:
    """The addresses that listen there, but for the store's."""
    return {address for address, port in hosts[host].listening() if port != PORT}


def connections(hosts: Nodes, host: int, other: int) -> list[list[str]]:
    """Those over TCP that lead from one host to the other, but for the store's."""
    every = hosts[host].connections(hosts[other].address)
    return [ends for ends in every if not any(end.endswith(f":{PORT}") for end in ends)]


def check_both_sides_are_named(crew: Crew, began_s: float, limit_s: float) -> None:
    """Either side has lost the other: everybody is told of a rank of the other host."""
    for rank in range(4):
        found = crew.answer(rank)
        assert found["kind"] == "PeerLost", found
        assert found["culprit"] in ((2, 3) if rank < 2 else (0, 1)), (rank, found)
        assert f"rank {found['culprit']} was lost in all_reduce" in found["text"]
        assert found["at_s"] - began_s < limit_s, found


def test_two_hosts(hosts: Nodes, ranks: Ranks) -> None:
    """Right results, strangers that change nothing, and a reset that everybody knows of at once."""
    with ranks() as crew:
        endpoints = [one["endpoint"] for one in join(crew, "env")]
        # The interfaces that reach the master, and no other.
        assert [one[0] for one in endpoints] == ["10.213.0.1"] * 2 + ["10.213.0.2"] * 2
        assert [listening(hosts, host) for host in (0, 1)] == [{"10.213.0.1"}, {"10.213.0.2"}]
        links = connections(hosts, 0, 1)
        assert len(links) == 4
        assert not connections(hosts, 0, 0)
        for elements in (3, 100_000):
            crew.everyone("exchange", elements=elements)
        crew.tell(range(4), "all_reduces", count=300, elements=20_000)
        for host, (address, port) in ((0, endpoints[3]), (1, endpoints[0])):
            assert hosts[host].python(STRAY, address, str(port)) == "done\n"
        assert [crew.answer(rank)["kind"] for rank in range(4)] == [""] * 4
        crew.tell(range(4), "reduce_until_error")
        time.sleep(0.3)  # not for order: any moment will do
        began_s = time.monotonic()
        try:
            hosts[0].reset(links[0])
        except Unavailable as reason:
            pytest.skip(str(reason))
        for rank in range(4):
            found = crew.answer(rank)
            assert found["kind"] == "PeerLost", found
            assert "was lost in all_reduce(sum, float32[200000])" in found["text"]
            assert found["at_s"] - began_s < 1 + BUSY_S, found


@pytest.mark.long
def test_the_interface_is_chosen(hosts: Nodes, ranks: Ranks) -> None:
    with ranks({"DISTCORE_SOCKET_IFNAME": f"none,{SECOND}"}) as crew:
        endpoints = [one["endpoint"][0] for one in join(crew, "tcp")]
        assert endpoints == ["10.214.0.1"] * 2 + ["10.214.0.2"] * 2
        assert [listening(hosts, host) for host in (0, 1)] == [{"10.214.0.1"}, {"10.214.0.2"}]
        crew.everyone("exchange", elements=1000)
        hosts[1].unplug()  # no matter: the store was only needed to begin with
        crew.everyone("exchange", elements=1000)


@pytest.mark.long
@pytest.mark.parametrize("how", ["unplugged", "link down"])
def test_a_link_on_which_nothing_comes_any_more(hosts: Nodes, ranks: Ranks, how: str) -> None:
    """Nobody is told: each side finds out by itself."""
    extra = {"DISTCORE_TCP_USER_TIMEOUT_S": str(USER_TIMEOUT_S)}
    with ranks(extra) as crew:
        join(crew, "tcp")
        crew.everyone("exchange", elements=1000)
        crew.tell(range(4), "reduce_until_error")
        time.sleep(0.5)  # not for order: any moment will do
        began_s = time.monotonic()
        if how == "unplugged":
            hosts[1].unplug()
        else:
            hosts[1].take_down()
        check_both_sides_are_named(crew, began_s, USER_TIMEOUT_S + 1 + BUSY_S)


@pytest.mark.long
def test_messages_over_a_link_on_which_nothing_comes_any_more(hosts: Nodes, ranks: Ranks) -> None:
    extra = {"DISTCORE_TCP_USER_TIMEOUT_S": str(USER_TIMEOUT_S)}
    with ranks(extra) as crew:
        join(crew, "env")
        crew.everyone("exchange", elements=10)
        crew.tell([0], "receive", src=2)
        crew.tell([3], "receive", src=1)
        time.sleep(0.3)  # not for order: any moment will do
        began_s = time.monotonic()
        hosts[0].unplug()
        for rank, culprit in ((0, 2), (3, 1)):
            found = crew.answer(rank)
            assert (found["kind"], found["culprit"]) == ("PeerLost", culprit), found
            assert found["at_s"] - began_s < USER_TIMEOUT_S + 1 + BUSY_S


@pytest.mark.long
def test_a_short_interruption(hosts: Nodes, ranks: Ranks) -> None:
    """The twin: the link comes back in time, and nobody has noticed."""
    with ranks() as crew:
        join(crew, "env")
        hosts[1].unplug()
        crew.tell(range(4), "all_reduces", count=3)
        time.sleep(2)  # the length of the interruption
        hosts[1].plug_in()
        assert [crew.answer(rank)["kind"] for rank in range(4)] == [""] * 4


@pytest.mark.long
def test_a_rank_that_comes_late(hosts: Nodes, ranks: Ranks) -> None:
    """Its host answers, but has no room for what is sent to it: it is not out of reach."""
    extra = {"DISTCORE_TCP_USER_TIMEOUT_S": "2"}
    with ranks(extra) as crew:
        join(crew, "env")
        crew.tell([0, 1, 3], "broadcast", elements=5_000_000)
        time.sleep(6)  # how late it is
        crew.tell([2], "broadcast", elements=5_000_000)
        assert [crew.answer(rank)["kind"] for rank in range(4)] == [""] * 4
