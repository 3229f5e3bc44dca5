"""What an exception says of itself: its class is the program's own code, and may do anything."""

from __future__ import annotations

import sys
import time

from distcore.base.wrapping import around
from distdebug.rank.process.exits import _status_of
from distdebug.rank.record.exception_text import name_of, stack_of, text_of, titled


class Leaves(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class Nameless(type):
    @property
    def __name__(cls) -> str:
        raise ValueError("nobody asks me")


class Odd(Exception, metaclass=Nameless):
    pass


class Long(Exception):
    def __str__(self) -> str:
        return "connection " * 10_000_000


def test_one_that_ends_the_process_instead() -> None:
    assert titled(Leaves()) == "Leaves: <its __str__ raised SystemExit>"


def test_one_whose_class_has_no_name_to_tell() -> None:
    assert titled(Odd("x")) == "Odd: x"


def test_a_text_of_a_hundred_megabytes_is_cut_before_it_is_searched() -> None:
    began_s = time.monotonic()
    assert len(text_of(Long())) < 100_000
    assert time.monotonic() - began_s < 20


def test_others_are_told_whole() -> None:
    assert (name_of(KeyError("a")), titled(ValueError("b\nc"))) == ("KeyError", "ValueError: b\nc")
    assert titled(ValueError()) == "ValueError"


def test_what_sys_exit_makes_of_its_argument() -> None:
    given = [None, 0, 256, 257, -1, True, 2**40, 2**70, -(2**63), 0.0, "x", ()]
    statuses = [0, 0, 0, 1, 255, 1, 0, 255, 0, 1, 1, 1]
    assert [_status_of(one) for one in given] == statuses


def test_functions_around_others_are_no_places_of_an_exception() -> None:
    def joins() -> int:
        return int("refused")  # as code in C raises, without a frame

    wrapped = around(joins)(joins)
    try:
        wrapped()
    except ValueError as error:
        (place,) = stack_of(error)
    assert place.endswith("in test_functions_around_others_are_no_places_of_an_exception")
