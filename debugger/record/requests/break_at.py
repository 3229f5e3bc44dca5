"""The values of `--break`: `train.py:42@2` and `all_reduce#12@2`, read alike outside and in
ranks."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass

from ..ops import OP_CODES

_CALL = re.compile(r"([A-Za-z]\w*)#(\d{1,18})(?:@(\d{1,9}))?")
_LINE = re.compile(r"(.+):(\d{1,9})(?:@(\d{1,9}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BreakAt:
    """A line, or the call of an op with a sequence number in any group (of a message: in its
    channel). `rank` None: on every rank that comes there."""

    file: str = ""
    line: int = 0
    op: str = ""
    seq: int = 0
    rank: int | None = None

    def __str__(self) -> str:
        where = f"{self.op}#{self.seq}" if self.op else f"{self.file}:{self.line}"
        return where if self.rank is None else f"{where}@{self.rank}"


def parse(text: str) -> BreakAt:
    """Raises ValueError with one sentence."""
    call = _CALL.fullmatch(text)
    if call:
        op = call[1]
        if op not in OP_CODES:
            near = difflib.get_close_matches(op, OP_CODES, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"--break {text}: there is no operation {op}{meant}")
        return BreakAt(op=op, seq=int(call[2]), rank=_rank(call[3]))
    line = _LINE.fullmatch(text)
    if line:
        if int(line[2]) < 1:
            raise ValueError(f"--break {text}: lines count from 1")
        return BreakAt(file=line[1], line=int(line[2]), rank=_rank(line[3]))
    raise ValueError(
        f"--break {text}: write FILE:LINE or OP#SEQ, such as train.py:42 or all_reduce#12, "
        "with @RANK behind it for one rank only"
    )


def _rank(text: str | None) -> int | None:
    return None if text is None else int(text)


def lines_with_code(source: str, file: str) -> set[int]:
    """The lines at which Python can stop. Raises SyntaxError and ValueError for what is no
    program."""
    found: set[int] = set()
    waiting = [compile(source, file, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        # The first instructions of a code object are its preparation, on no line that runs.
        found.update(line for _, _, line in code.co_lines() if line)
        waiting += [one for one in code.co_consts if isinstance(one, type(code))]
    return found


def canonical(file: str) -> str:
    """The name by which one file is known."""
    return os.path.normcase(os.path.abspath(file))
