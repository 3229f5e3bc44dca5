"""The host of the store in which torchrun's nodes meet, as its endpoint says it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distdebug.rank.torch_private.rendezvous import _host_of


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("node0:29400", "node0"),
        ("node0", "node0"),  # c10d has a port of its own
        ("10.0.0.1", "10.0.0.1"),
        ("[fd00::1]:29400", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        (" node0:29400 ", "node0"),
        ("", "localhost"),
        (":29400", "localhost"),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str) -> None:
    params = SimpleNamespace(endpoint=endpoint, backend="c10d", get=lambda _name, default: default)
    assert _host_of(params) == host


def test_nodes_that_meet_in_a_file_have_no_host() -> None:
    """Each would take itself for the host."""
    params = SimpleNamespace(endpoint="/shared/x", backend="c10d", get=lambda *_: "file")
    assert _host_of(params) == ""
