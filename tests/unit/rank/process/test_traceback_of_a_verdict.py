"""The traceback by which a rank is ended stops at the user's own line."""

from __future__ import annotations

import sys
from traceback import walk_tb

import pytest

from distdebug.rank.inject.call import at_users_line
from distdebug.rank.process.exits import _to_users_line


def step() -> None:
    at_users_line(sys._getframe(), "int('x')", {})


def inner() -> None:
    raise ValueError


@pytest.mark.parametrize("called", [step, inner], ids=["at an injected fault", "of the program"])
def test_each_frame_of_the_program_is_in_it_once(called: object) -> None:
    assert callable(called)
    with pytest.raises(ValueError) as raised:
        called()
    names = [frame.f_code.co_name for frame, _ in walk_tb(_to_users_line(raised.value))]
    assert names[-2:] == ["test_each_frame_of_the_program_is_in_it_once", called.__name__]
