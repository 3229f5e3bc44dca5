"""The text of an exception, also of one that cannot say it: a `__str__` is the program's own
code."""

from __future__ import annotations

import traceback
from typing import Any

from ...record.wording import shortened
from . import call_site

_MOST_FRAMES = 30
_MOST_TITLE = 1900
"""A record keeps 4,000 characters: of an exception, and of its cause."""
_MOST_TEXT = 1 << 16
"""A text may be a tensor's, or a file's: it is searched several times, and the GIL is held then."""
_NAME: Any = vars(type)["__name__"]
HANDS_ON = "__tracebackhide__"
"""A local variable of functions of ours that make the program's own call for it: what is raised
there is the program's."""


def text_of(error: BaseException) -> str:
    """`str(error)`, of which the beginning is enough, or that it raised."""
    try:
        return str(error)[:_MOST_TEXT]
    except (Exception, SystemExit) as fault:
        return f"<its __str__ raised {name_of(fault)}>"


def name_of(error: BaseException) -> str:
    """The name of its type, whatever that type makes of being asked."""
    return str(_NAME.__get__(type(error)))


def titled(error: BaseException) -> str:
    """The type and the text, as Python prints them at the end of a traceback."""
    return shortened(f"{name_of(error)}: {text_of(error)}".rstrip(": "), _MOST_TITLE)


def stack_of(error: BaseException) -> tuple[str, ...]:
    """The innermost frames of its traceback, outermost first: `file:line in function`. Those of
    this layer, which only hand a call on, are left out, unless they raised it themselves; so are
    functions around others (`distcore.base.wrapping`), which `warnings` does not count either."""
    rows = traceback.extract_tb(error.__traceback__)
    rows[:] = [row for row in rows if not row.filename.endswith("importlib._bootstrap>")] or rows
    theirs = [row for row in rows[:-1] if not call_site.is_layers(row.filename)] + rows[-1:]
    return tuple(f"{row.filename}:{row.lineno} in {row.name}" for row in theirs[-_MOST_FRAMES:])
