"""Puts an exception on record: where the user's own code raised it, what it came of, and whose
fault it is.

`asyncio.TaskGroup` and its like raise a group, whose own text and line say nothing of what went
wrong; trainers wrap what their loop raises in an error of their own.

torch refuses a wrong argument with a `raise`, or in C++. What the interpreter itself raises, an
AttributeError or a subscript of something that has none, nobody has meant: in our own files it is
our fault, and in torch's it is where the line uses something of ours.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import opcode
import os
import re
import struct
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import getpid
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

from ...errors.in_ranks import FindingRaised
from ...record.layout import CallSite
from ...record.notes import (
    ExceptionNote,
    FindingRaisedNote,
    InterruptedNote,
    Nature,
    RaisedNote,
    UnwindingNote,
)
from ...record.wording import at_site
from ..group import outstanding
from ..record import call_site, lost_connections, waiting
from ..record.call_site import is_layers
from ..record.exception_text import HANDS_ON, name_of, stack_of, text_of, titled
from ..record.lost_connections import is_lost
from ..record.recorder import ORDINARY, OwnFinding, Recorder

_WAITED_IN = waiting.__file__
_RENDEZVOUS = "_distdebug_rendezvous"
_RECORDED = "_distdebug_recorded"
_GUARDS = tuple(f"agreement/{name}" for name in ("collectives", "messages"))
ISSUED_IN = frozenset(
    f"{call_site.DIRECTORIES[0]}{name}.py" for name in ("group/checked_group", *_GUARDS)
)
"""The files in which a call enters the backend: at DETAIL, once its ranks have agreed on it."""
_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)

Explain = Callable[[BaseException, int], bool]
"""Puts on record what an error that was raised at this line is about; False where it is of another
kind."""


class Exceptions:
    """The exceptions of this process. `explain`: functions that know more of some errors than these
    say."""

    def __init__(self, recorder: Recorder, explain: Sequence[Explain]) -> None:
        self._recorder = recorder
        self._explain = tuple(explain)
        self._unmarked: set[int] = set()

    def record(self, error: BaseException, kind: type[RaisedNote] = ExceptionNote) -> None:
        """Put an exception on record, once, as a note of this kind. Where the handler of a signal
        raises meanwhile, the exception is not on record yet, and may be put there again."""
        if self._is_known(error):
            return
        try:
            self._put(error, kind)
        except BaseException:
            self._unmarked.discard(id(error))
            with contextlib.suppress(AttributeError):
                delattr(error, _RECORDED)
            raise

    def _put(self, error: BaseException, kind: type[RaisedNote]) -> None:
        recorder, group = self._recorder, error
        error = leaf_of(group)
        before = list(came_of(error))
        if any(self._is_finding(one) for one in (error, *before)):
            return
        if isinstance(error, KeyboardInterrupt):
            kind = InterruptedNote
        site = users_site(recorder, error)
        if any(explained(error, site) for explained in self._explain):
            return
        message, nature = titled(error), self.nature(error)
        failures = failures_of(error)
        if failures:
            message = name_of(error)  # its own text begins with the first one's stack
        if error is not group:
            message += f" (in {name_of(group)})"
        lost = None
        if not (nature.get("own_fault") or nature["communication"] or nature["invalid_argument"]):
            lost = next((one for one in before if self.nature(one)["communication"]), None)
        cause = lost or (None if nature["communication"] else error.__cause__)
        cause = cause or next(iter(failures.values()), None)
        if cause is not None:
            at_line = at_site(_users_line(cause)) if cause.__traceback__ is not None else ""
            message += f", caused by {titled(cause)}{at_line}"
        if lost is not None:
            nature["communication"] = True
            nature["address_in_use"] |= self.nature(lost)["address_in_use"]
        failed_at = (getattr(one, _RENDEZVOUS, None) for one in (error, *before))
        note = kind(
            type=name_of(error),
            stack=stack_of(error),
            thread=threading.current_thread().name,
            thread_slot=recorder.writer.thread().index,
            daemon=threading.current_thread().daemon,
            link=lost_connections.named_by(lost or error),
            rendezvous=next(filter(None, failed_at), None),
            failed=tuple(sorted(failures)) or None,
            **nature,
        )
        recorder.note(note, message, site)

    def _is_finding(self, error: BaseException) -> bool:
        """Put on record what the error says, if it is a finding: the run's verdict, or one of this
        rank's own."""
        if isinstance(error, FindingRaised):
            self._recorder.note(FindingRaisedNote(), error.kind)
            return True
        finding = getattr(error, "finding", None)
        if isinstance(finding, OwnFinding):
            finding.put_on_record(self._recorder, users_site(self._recorder, error))
            self._recorder.note(FindingRaisedNote(), finding.kind)
            return True
        return False

    def record_lost_call(self, kind: type[RaisedNote] = ExceptionNote) -> bool:
        """The process ends, and says no other reason: whether the last call that it made has lost
        its communication, which the program has swallowed."""
        recorder = self._recorder
        # DDP hears of a failure from the call's future, before the call counts as complete.
        for number, handle in list(outstanding.works.items()):
            error = outstanding.failure_of(handle.work)
            if error is not None:
                recorder.failed(number, error)
        lost, recorder.lost_call = recorder.lost_call, None
        if lost is None or lost.calls != recorder.writer.calls:
            return False
        made = recorder.writer.call_at(lost.number)
        note = kind(
            type=lost.type,
            link=lost.link,
            own_fault=False,
            invalid_argument=False,
            communication=True,
            address_in_use=False,
        )
        recorder.note(note, lost.message, made[1] if made is not None else 0)
        return True

    def _is_known(self, error: BaseException) -> bool:
        """Whether this one was recorded before; from now on it was. By a mark on itself: the number
        of one that was freed is given to the next, and to hold it would keep what its frames hold.
        A copy, and one that another process has pickled, has the mark of the other."""
        mark = (getpid(), id(error))
        if getattr(error, _RECORDED, None) == mark or id(error) in self._unmarked:
            return True
        try:
            setattr(error, _RECORDED, mark)
        except Exception:  # a class that keeps its attributes to itself
            self._unmarked.add(id(error))
        return False

    def nature(self, error: BaseException) -> Nature:
        """Whether torch.distributed raised it, for a wrong argument or for lost communication."""
        summary = traceback.extract_tb(error.__traceback__)
        innermost = summary[-1].filename if summary else ""
        inside = call_site.is_distributed(innermost)
        lost = lost_connections.is_lost(error)
        if is_own_fault(error):
            nature: Nature = {
                "invalid_argument": False,
                "communication": False,
                "address_in_use": False,
            }
            return {"own_fault": True, **nature}
        refused = isinstance(error, (ValueError, TypeError, IndexError))
        unsaid = is_unmeant(error) or is_of_another_worker(error)
        wrong_argument = inside and refused and not unsaid
        if isinstance(error, AssertionError) and innermost.endswith("distributed_c10d.py"):
            wrong_argument = True  # torch asserts that a backend's name is known
        if innermost in ISSUED_IN and isinstance(error, RuntimeError) and not lost:
            wrong_argument = True  # the backend refused the call at once
        if isinstance(error, RuntimeError) and lost_connections.is_late_refusal(error):
            wrong_argument = True
        communication = (
            isinstance(error, (RuntimeError, ConnectionError, TimeoutError))
            and not wrong_argument
            and (innermost == _WAITED_IN or (lost and (inside or call_site.is_torch(innermost))))
        )
        return {
            "invalid_argument": wrong_argument,
            "communication": communication,
            "address_in_use": bool(_ADDRESS_IN_USE.search(text_of(error))),
        }


def failed_to_join(error: BaseException, address: str) -> None:
    """The rendezvous at this address ended with the error, which will say so on record."""
    with contextlib.suppress(AttributeError):
        setattr(error, _RENDEZVOUS, address)


def users_site(recorder: Recorder, error: BaseException) -> int:
    """The innermost line of the user's own code on the traceback."""
    site = _users_line(error)
    if site is None:
        return recorder.site(sys._getframe(1))
    return recorder.site_at(site.file, site.line, site.function, site.through)


def _users_line(error: BaseException) -> CallSite | None:
    best, best_kind, library = None, -1, None
    trace = error.__traceback__
    while trace is not None:
        kind = call_site.frame_kind(trace.tb_frame.f_code.co_filename)
        if kind >= best_kind and kind != call_site.OWN:
            best, best_kind, library = trace, kind, None
        elif kind == call_site.LIBRARY:
            library = trace
        trace = trace.tb_next
    if best is None:
        return None
    code = best.tb_frame.f_code
    by = ""
    if library is not None:
        by = call_site.through(library.tb_frame.f_code.co_filename, library.tb_lineno)
    return CallSite(code.co_filename, best.tb_lineno, code.co_name, by)


_MOST = 100
"""The most exceptions of one chain, and of all groups together: a program may raise thousands."""


def leaf_of(error: BaseException) -> BaseException:
    """The exception in a group that says most: a finding, else the first that is no lost
    connection, else the first. Any other exception is its own leaf."""
    leaves = list(_leaves(error))
    for wanted in (
        lambda one: isinstance(one, FindingRaised) or hasattr(one, "finding"),
        lambda one: not is_lost(one),
    ):
        if found := next(filter(wanted, leaves), None):
            return found
    return leaves[0] if leaves else error


def came_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions for which this one was raised, or while they were handled, nearest first.
    `from None` hides them from the reader, not from the record."""
    seen = {id(error)}
    while len(seen) < _MOST:
        before = error.__cause__ or error.__context__
        if before is None or id(before) in seen:
            return
        seen.add(id(before))
        error = before
        yield leaf_of(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """By their shape: Python 3.10 has no groups of its own, but a package that brings them."""
    waiting, left = [error], _MOST
    while waiting and left:
        left -= 1
        one = waiting.pop()
        inner = getattr(one, "exceptions", None)
        if isinstance(inner, tuple) and inner and all(isinstance(x, BaseException) for x in inner):
            waiting.extend(reversed(inner[:_MOST]))
        else:
            yield one


def failures_of(error: BaseException) -> Mapping[int, BaseException]:
    """Returns the exceptions of the ranks that failed in a checkpoint of
    torch.distributed.checkpoint, by their numbers in its group; nothing, if the error is no such
    exception. It gathers what any rank raised, and has all ranks raise one exception, the right
    ones as well as the wrong one. The module is the program's to import.
    """
    module = sys.modules.get("torch.distributed.checkpoint.api")
    gathered = getattr(module, "CheckpointException", None)
    if gathered is None or not isinstance(error, gathered):
        return {}
    failures: Any = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return {}
    return {
        rank: pair[0]
        for rank, pair in failures.items()
        if isinstance(rank, int) and isinstance(pair, tuple) and isinstance(pair[0], BaseException)
    }


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


_MOST_NOTES = 64
_EXITS = ("sys.exit", "os._exit", "exit")


def note_cleanup_calls(recorder: Recorder, exceptions: Exceptions) -> Callable[[int, bool], None]:
    """Returns what a group calls with a call's number (or, with True, when it is destroyed) while
    an exception is handled: noted once for each exception.

    `finally: dist.barrier()`, `finally: dist.destroy_process_group()` and `except Exception:
    dist.barrier(); raise` run before Python tells anybody of the exception, and to the other ranks
    look like a call that does not fit, or like an early end.
    """
    noted: set[tuple[int, int]] = set()

    def look(number: int, destroys: bool) -> None:
        with contextlib.suppress(Exception):
            error = sys.exc_info()[1]
            if not isinstance(error, Exception) or isinstance(error, ORDINARY):
                return
            key = (id(error), id(error.__traceback__))
            cleanup = _in_cleanup(sys._getframe(2), error)
            if key in noted or len(noted) >= _MOST_NOTES or not (cleanup or destroys):
                return
            noted.add(key)
            note = UnwindingNote(
                type=name_of(error),
                stack=stack_of(error),
                call=number,
                destroys=destroys,
                **exceptions.nature(error),
            )
            recorder.note(note, titled(error), users_site(recorder, error))

    return look


def _in_cleanup(frame: FrameType | None, error: BaseException) -> bool:
    """Whether the exception goes on after what runs now: a `finally`, the end of a `with`, or an
    `except` that raises or exits at its end."""
    passed = {id(frame) for frame, _ in walk_tb(error.__traceback__)}
    while frame is not None:
        name = frame.f_code.co_filename
        if id(frame) in passed and call_site.frame_kind(name) != call_site.OWN:
            return any(frame.f_lineno in span for span in _cleanups(name))
        frame = frame.f_back
    return False


@functools.cache
def _cleanups(filename: str) -> list[range]:
    """The lines of a file's `finally` blocks, `with` statements' heads and handlers that fail."""
    found = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse("".join(linecache.getlines(filename)))):
            body = getattr(node, "finalbody", None)
            if body:
                found.append(range(body[0].lineno, (body[-1].end_lineno or 0) + 1))
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                found.append(range(node.lineno, node.body[0].lineno))
            elif isinstance(node, ast.ExceptHandler) and _fails(node):
                found.append(range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1))
    return found


def _fails(handler: ast.ExceptHandler) -> bool:
    """Whether there is no way out of it but to raise, or to end with a status that is not 0."""
    if any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler)):
        return False
    last = handler.body[-1]
    if isinstance(last, ast.Raise):
        return True
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    if ast.unparse(last.value.func) not in _EXITS or not last.value.args:
        return False
    status = last.value.args[0]
    return not (isinstance(status, ast.Constant) and status.value in (0, None))
