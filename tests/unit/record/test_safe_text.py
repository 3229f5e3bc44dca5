"""Nothing a rank says may move the cursor, retitle the terminal or forge another line."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from distdebug.record.safe_text import Defused, clean, clean_line, endpoint, port_of, whole_number


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b]0;x\x07\x1b[2J", "\\x1b]0;x\\x07\\x1b[2J"),
        ("a\nrank 3 died", "a\\x0arank 3 died"),
        ("a\rb\x00\x7f\x9b", "a\\x0db\\x00\\x7f\\x9b"),
        ("\u202eabc\u2066\u200b\ufeff", "\\u202eabc\\u2066\\u200b\\ufeff"),
        ("\u2028\U000e0041", "\\u2028\\U000e0041"),
        ("\udc80", "\\udc80"),
        ("tab\tstays, grüße and 日本語 too", "tab\tstays, grüße and 日本語 too"),
    ],
)
def test_hostile_text_becomes_visible(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


def test_newlines_stay_where_allowed() -> None:
    assert clean("a\n\x1bb\n", newlines=True) == "a\n\\x1bb\n"


def test_long_lines_are_cut_each() -> None:
    assert clean("x" * 50, 10) == "x" * 9 + "…"
    assert clean("x" * 10, 10) == "x" * 10
    assert clean("\x1b" * 50, 10) == "\\x1b\\x1b\\…"
    assert clean("x" * 50 + "\nshort", 10, newlines=True) == "x" * 9 + "…\nshort"


def test_colours_of_output_stay_only_on_a_terminal() -> None:
    line = "\x1b[31mred\x1b[0m \x1b[1mbold\x1b[2J"
    assert clean_line(line, colour=False) == "red bold\\x1b[2J"
    assert clean_line(line, colour=True) == "\x1b[31mred\x1b[0m \x1b[1mbold\\x1b[2J\x1b[0m"
    assert clean_line("\x1b[31mred\x1b[0m", colour=True) == "\x1b[31mred\x1b[0m"
    assert clean_line("plain", colour=True) == "plain"


def test_a_coloured_line_is_cut_by_its_visible_length() -> None:
    assert clean_line("\x1b[31m" + "x" * 20, 5, colour=True) == "\x1b[31mxxxx…\x1b[0m"


def written(*pieces: str) -> str:
    stream = io.StringIO()
    defused = Defused(stream)
    for piece in pieces:
        defused.write(piece)
    return stream.getvalue()


def obeyed(text: str) -> list[str]:
    """The lines that GitHub's runner takes for commands (`ActionCommand.TryParseV2`, `TryParse`),
    and Azure's and TeamCity's."""
    return [
        line
        for line in re.split("\r\n|\r|\n", text)
        if line.strip().startswith("::") or re.search(r"##(vso|teamcity)?\[", line)
    ]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["::stop-commands::x\n"], ":\\x3astop-commands::x\n"),
        (["a\n  ::error::x\n"], "a\n  :\\x3aerror::x\n"),
        ([":", ":error::x"], ":\\x3aerror::x"),
        (["50 %\r::error::x"], "50 %\r:\\x3aerror::x"),
        (["a ##[add-mask]x"], "a ##\\x5badd-mask]x"),
        (["##v", "so[task.setvariable]x"], "##vso\\x5btask.setvariable]x"),
    ],
)
def test_what_would_be_a_command(pieces: list[str], shown: str) -> None:
    assert obeyed("".join(pieces))
    assert written(*pieces) == shown


@pytest.mark.parametrize(
    "text",
    ["std::vector\n", "a ::error::x\n", "# [x]\n", ": :\n", "[rank 0] ::error::x\n", "## a [b]\n"],
)
def test_what_would_be_none_stays_as_it_is(text: str) -> None:
    assert not obeyed(text)
    assert written(text) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(st.text(st.sampled_from(":# \n\r\t[vsox\u2028\xa0"), max_size=70), max_size=8))
@example([" " * 200, "::x"])
def test_however_it_is_cut(pieces: list[str]) -> None:
    assert not obeyed(written(*pieces))
    assert written(*pieces) == written("".join(pieces))


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("999999999", 999_999_999)])
def test_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text", [None, "", "²", "1²", "٣", "-1", "+1", " 1", "1\n", "1.0", "0x1", "1_0", "9" * 5000]
)
def test_no_number(text: str | None) -> None:
    assert whole_number(text) is None


def test_the_digits_are_counted() -> None:
    assert whole_number("12345", most_digits=5) == 12_345
    assert whole_number("123456", most_digits=5) is None


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
