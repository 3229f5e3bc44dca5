"""Long texts keep what they begin and end with."""

from __future__ import annotations

from distdebug.rank.record.exception_text import titled
from distdebug.record.wording import MOST_TEXT, printable

LONG = "RuntimeError: one of these reasons: " + "a reason, " * 1000 + "the parameter is head.bias"


def test_a_text_is_cut_in_its_middle() -> None:
    cut = printable(LONG)
    assert len(cut) == MOST_TEXT
    assert cut.startswith("RuntimeError: one of")
    assert cut.endswith("head.bias")
    assert cut.count("...") == 1


def test_one_that_fits_is_left_alone() -> None:
    text = "x" * MOST_TEXT
    assert printable(text) == text
    assert printable("four", 4) == "four"


def test_of_an_exception_and_its_cause_a_record_has_both_ends() -> None:
    text = titled(ValueError(LONG))
    assert len(text) < 2000
    assert text.startswith("ValueError: RuntimeError: one of")
    assert text.endswith("head.bias")
