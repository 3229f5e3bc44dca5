"""The blame for an exception that was raised in this tool's code, or in torch's beneath it.

torch refuses a wrong argument with a `raise`, or in C++. What the interpreter itself raises, an
AttributeError or a subscript of something that has none, nobody has meant: in our own files it is
our fault, and in torch's it is where the line uses something of ours.
"""

from __future__ import annotations

import linecache
import opcode
import os
import re
import struct
import sysconfig
from types import FrameType, TracebackType

from ..record.call_site import is_layers
from ..record.exception_text import HANDS_ON, text_of

_STDLIB = tuple(os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib"))
_UNMEANT = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NameError,
    RecursionError,
    TypeError,
    ZeroDivisionError,
    struct.error,
)
_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in opcode.opmap}
_RAISED_AT: dict[type[BaseException], set[int]] = {
    ValueError: {opcode.opmap["UNPACK_SEQUENCE"], opcode.opmap["UNPACK_EX"]},
    RuntimeError: {opcode.opmap["FOR_ITER"]},  # of a dict that has changed meanwhile
}
"""Errors that a backend raises as well, and the instructions at which the interpreter does."""
_OF_CPP = re.compile(r"incompatible (function|constructor) arguments|argument '|must be Tensor")
"""The words of the bindings of torch's C++ code for a wrong argument."""
_OURS = re.compile(r"\b(CheckedGroup|TrackedWork|_distdebug|distdebug\.rank)\b")
_RPC = os.path.join(os.sep, "torch", "distributed", "rpc", "")
_WORD = re.compile(r"[A-Za-z_]\w*")


def is_unmeant(error: BaseException) -> bool:
    """Whether the interpreter has raised it, and no check of anybody's."""
    if not isinstance(error, _UNMEANT) or error.__traceback__ is None:
        return False
    if isinstance(error, TypeError) and _OF_CPP.search(text_of(error)):
        return False
    return _instruction(_innermost(error.__traceback__)) not in _RAISES


def is_of_another_worker(error: BaseException) -> bool:
    """Whether a function that ran on another worker has raised it: torch.distributed.rpc hands it
    to the caller, where it comes out of a call of torch's, and no line of torch's raises it."""
    if error.__traceback__ is None or _OF_CPP.search(text_of(error)):
        return False
    innermost = _innermost(error.__traceback__)
    by_rpc = _RPC in innermost.tb_frame.f_code.co_filename
    return by_rpc and _instruction(innermost) not in _RAISES


def is_own_fault(error: BaseException) -> bool:
    """Whether this tool has made the program fail."""
    unmeant = isinstance(error, _UNMEANT)
    if not (unmeant or type(error) in _RAISED_AT) or error.__traceback__ is None:
        return False
    where = _below_the_library(error.__traceback__)
    if where is None:
        return False
    frame = where.tb_frame
    file = frame.f_code.co_filename
    if is_layers(file):
        if not unmeant:
            return where.tb_next is None and _instruction(where) in _RAISED_AT[type(error)]
        # What the library raised on our behalf is ours, too.
        return is_unmeant(error) or where.tb_next is not None
    if f"{os.sep}torch{os.sep}" not in file or not is_unmeant(error):
        return False
    return bool(_OURS.search(text_of(error))) or _uses_ours(frame, where.tb_lineno)


def _instruction(trace: TracebackType) -> int | None:
    """The code of the one that raised; None where the interpreter does not say."""
    at = trace.tb_frame.f_code.co_code[trace.tb_lasti : trace.tb_lasti + 1]
    return at[0] if at else None


def _innermost(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _below_the_library(trace: TracebackType) -> TracebackType | None:
    """The innermost entry that is none of the standard library's, nor of what only hands on."""
    found = None
    one: TracebackType | None = trace
    while one is not None:
        file = one.tb_frame.f_code.co_filename
        inside = file.startswith(_STDLIB) and f"{os.sep}site-packages{os.sep}" not in file
        inside = inside or HANDS_ON in one.tb_frame.f_code.co_varnames
        if not inside and not file.startswith("<frozen"):
            found = one
        one = one.tb_next
    return found


def _uses_ours(frame: FrameType, line: int) -> bool:
    """Whether this line of torch's names something that the layer has put there."""
    for word in _WORD.findall(linecache.getline(frame.f_code.co_filename, line)):
        code = getattr(frame.f_globals.get(word), "__code__", None)
        if code is not None and is_layers(code.co_filename):
            return True
    return False
