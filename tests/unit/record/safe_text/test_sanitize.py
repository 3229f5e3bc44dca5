"""Nothing a rank says may move the cursor, retitle the terminal or forge another line."""

from __future__ import annotations

import pytest

from distdebug.record.safe_text.sanitize import clean, clean_line


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
