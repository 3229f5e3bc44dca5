"""The conformance suite for transports, run on ours, and on some that break their promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from distcore.transports.base import Receive, Send, Transport
from tests.support.conformance import check_transport
from tests.support.meshes import on_meshes
from tests.support.threads_transport import run_ranks

KINDS = ("tcp", "shm")


def maker(kind: str, wrap: Callable[[Any], Any] = lambda net: net, **options: bool) -> Any:
    def make(size: int, body: Callable[[Transport], Any]) -> list[Any]:
        def call(mesh: Any) -> Any:
            mesh.begin("check()")
            found = body(wrap(mesh))
            mesh.end()
            return found

        return on_meshes(size, kind, call, **options)

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", [False, True])
def test_mesh(kind: str, checked: bool) -> None:
    check_transport(maker(kind, checked=checked))


def test_threads() -> None:
    check_transport(run_ranks, failures=False)


class Wrong(Transport):
    """Breaks a promise of the transport below it."""

    def __init__(self, below: Transport) -> None:
        self.below = below
        self.rank, self.size = below.rank, below.size

    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        self.below.exchange(sends, receives)


class Flips(Wrong):
    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        self.below.exchange(sends, receives)
        for receive in receives:
            if receive.consume is None and len(receive.into) > 60_000:
                receive.into[60_000] ^= 1


class Hoards(Wrong):
    """Hands a message on as one piece."""

    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        parts = [memoryview(bytearray(len(receive.into))) for receive in receives]
        whole = [Receive(one.peer, part) for one, part in zip(receives, parts, strict=True)]
        self.below.exchange(sends, whole)
        for receive, part in zip(receives, parts, strict=True):
            if receive.consume is None:
                receive.into[:] = part
            elif len(part):
                receive.consume(part, 0)


class Skips(Wrong):
    """Does not count steps without messages."""

    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        if sends or receives:
            self.below.exchange(sends, receives)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (Flips, "from rank 1 to rank 0 came out wrong"),
        (Hoards, "were handed on in pieces at [0]"),
        (Skips, "raised CallMismatch"),
    ],
)
def test_broken_promises_are_found(broken: type[Wrong], text: str) -> None:
    with pytest.raises(AssertionError) as found:
        check_transport(maker("tcp", broken))
    assert text in str(found.value)
