"""One way to read `HOST:PORT`, with texts that others have written."""

from __future__ import annotations

import pytest

from distdebug.record.safe_text.endpoints import endpoint, port_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node0:29400", ("node0", 29400)),
        ("[fd00::1]:29400", ("fd00::1", 29400)),
        ("fd00::1:29400", ("fd00::1", 29400)),  # torchrun's MASTER_ADDR has no brackets
        ("node0", ("", None)),
        ("node0:", ("node0", None)),
        (":29400", ("", 29400)),
        ("", ("", None)),
    ],
)
def test_an_endpoint(text: str, found: tuple[str, int | None]) -> None:
    assert endpoint(text) == found


@pytest.mark.parametrize(
    "text", ["", None, "0", "65536", "-1", "+1", "1.0", " 1", "http", "²", "१२", "9" * 5000]
)
def test_what_is_no_port(text: str | None) -> None:
    assert port_of(text) is None


@pytest.mark.parametrize("text", ["1", "65535"])
def test_a_port(text: str) -> None:
    assert port_of(text) == int(text)
