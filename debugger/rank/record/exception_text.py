"""What an exception says, also one that cannot say it: a `__str__` is the program's own code."""

from __future__ import annotations

import traceback

_MOST_FRAMES = 30
HANDS_ON = "__tracebackhide__"
"""A local variable of functions of ours that make the program's own call for it: what is raised
there is the program's."""


def text_of(error: BaseException) -> str:
    """`str(error)`, or that it raised."""
    try:
        return str(error)
    except Exception as fault:
        return f"<its __str__ raised {type(fault).__name__}>"


def titled(error: BaseException) -> str:
    """The type and the text, as Python prints them at the end of a traceback."""
    return f"{type(error).__name__}: {text_of(error)}".rstrip(": ")


def stack_of(error: BaseException) -> tuple[str, ...]:
    """The innermost frames of its traceback, outermost first: `file:line in function`."""
    rows = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return tuple(f"{row.filename}:{row.lineno} in {row.name}" for row in rows)
