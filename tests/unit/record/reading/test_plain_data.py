"""Dataclasses made of plain data: as they were, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from enum import Enum
from typing import Any

import pytest

from distdebug.record.reading.plain_data import WRONG, made_of


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    name: str
    count: int = 0


@dataclass(frozen=True)
class Outer:
    inner: Inner
    ratio: float
    colour: Colour = Colour.RED
    ranks: tuple[int, ...] = ()
    rows: Sequence[Inner] = ()
    by_rank: Mapping[int, str] | None = None
    sure: bool = False


WHOLE = Outer(Inner("a", 2), 0.5, Colour.RED, (1, 2), (Inner("b"),), {3: "c"}, True)


@pytest.mark.parametrize("as_plain", [asdict, astuple])
@pytest.mark.parametrize("given", [WHOLE, Outer(Inner(""), 1.0)])
def test_what_was_written_is_read(given: Outer, as_plain: Any) -> None:
    assert made_of(Outer, json.loads(json.dumps(as_plain(given))), 10) == given


def test_what_has_a_default_may_be_missing_and_texts_are_harmless_and_short() -> None:
    assert made_of(Outer, [["a\x1b[2J"], 1], 20) == Outer(Inner("a\\x1b[2J"), 1.0)
    assert made_of(Inner, {"name": "x" * 50}, 10).name == "x" * 9 + "…"
    assert made_of(Outer, [["a"], 1, "red", [1, 2, 3]], 10, 2).ranks == (1, 2)


@pytest.mark.parametrize(
    "data",
    [
        *(
            None,
            3,
            "text",
            [],
            {},
            [["a"], 10**400],
            ["a", 1.0],
            [{"a": 1}, 1.0],
            [["a"]],
            [["a"], 1.0, "green"],
        ),
        *([["a"], "1.0"], [["a"], float("nan")], [["a", 1 << 70], 1.0], [["a", True], 1.0]),
        *([["a", "1"], 1.0], [[1], 1.0], [["a"], 1.0, "red", 3], [["a"], 1.0, "red", "12"]),
        *([["a"], 1.0, "red", [], [], {"x": "c"}], [["a"], 1.0, "red", [], [], None, 1]),
        *([["a", 1, 2], 1.0], {"inner": {"name": "a", "more": 1}, "ratio": 1.0}),
    ],
)
def test_all_else_is_refused(data: Any) -> None:
    with pytest.raises(WRONG):
        made_of(Outer, data, 10)
