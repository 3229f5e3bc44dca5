"""Puts on record how a rank's program ends: the uncaught exception, the exit status, the end.

The operating system tells only a number. What the program died of, and on which line, only the
process itself can tell, and it must do so before its parents and peers react.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.process
import os
import re
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from ..record.layout import Phase
from . import call_site, checked_group, waiting
from .recorder import Recorder
from .verdict import FindingRaised, revealed, stand_down, verdict_was_raised

_COMMUNICATION = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|timed? ?out|broken pipe|"
    r"socket|connectFullMesh|watchdog|recvvalue|sendbytes|"
    r"mismatch between collectives",
    re.IGNORECASE,
)
_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_ISSUED_IN = checked_group.__file__
_WAITED_IN = waiting.__file__
_recorded: set[int] = set()


def observe(recorder: Recorder) -> None:
    """From now on the end of this process is put on record."""
    _wrap_excepthook(recorder)
    _wrap_thread_excepthook(recorder)
    _wrap_process_run(recorder)
    _wrap_sys_exit(recorder)
    atexit.register(_at_exit, recorder)


_exit_code = 0


def _at_exit(recorder: Recorder) -> None:
    """Runs after the program's own handlers, since it was registered before them.

    After a verdict the backend's destructor would wait for the very call that can never end, so
    the process leaves at once.
    """
    recorder.writer.phase(Phase.ENDED, _exit_code)
    if verdict_was_raised():
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(_exit_code)


def _wrap_excepthook(recorder: Recorder) -> None:
    original = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error = _ending(recorder, error, 1)
        if isinstance(error, FindingRaised):
            kind, trace = FindingRaised, _to_users_line(error)
        original(kind, error, trace)

    sys.excepthook = hook


def _to_users_line(error: FindingRaised) -> TracebackType | None:
    """Cut the traceback of a verdict behind the user's own line: what lies below did no wrong."""
    error.__suppress_context__ = True
    last = None
    trace = error.__traceback__
    while trace is not None:
        if call_site.frame_kind(trace.tb_frame.f_code.co_filename) != call_site.OWN:
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    return error.__traceback__


def _wrap_thread_excepthook(recorder: Recorder) -> None:
    original = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            record(recorder, args.exc_value, kind="thread_exception")
        original(args)

    threading.excepthook = hook


def _wrap_process_run(recorder: Recorder) -> None:
    """multiprocessing catches what its target raises, and never comes to sys.excepthook."""
    process_class: Any = multiprocessing.process.BaseProcess
    original = process_class._bootstrap

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self.run

        def observed() -> None:
            try:
                run()
            except SystemExit as error:
                cause = error.__context__
                if error.code and isinstance(cause, Exception):
                    _ending(recorder, cause, 1)
                raise
            except BaseException as error:
                better = _ending(recorder, error, 1)
                if better is error:
                    raise
                raise better from None

        self.run = observed
        status = original(self, *args, **kwargs)
        recorder.writer.phase(Phase.ENDED, int(status or 0))
        return status

    process_class._bootstrap = bootstrap


def _wrap_sys_exit(recorder: Recorder) -> None:
    """`except Exception: print_exc(); sys.exit(1)` hides the exception from every hook."""
    original = sys.exit

    def leave(status: Any = None, /) -> Any:
        error = sys.exc_info()[1]
        if status not in (None, 0):
            code = status if isinstance(status, int) else 1
            if isinstance(error, Exception):
                _ending(recorder, error, code)
            elif threading.current_thread() is threading.main_thread():
                _leaving(recorder, code)
        original(status)

    sys.exit = leave


def _ending(recorder: Recorder, error: BaseException, status: int) -> BaseException:
    """Put on record that the process ends with this error; what it truly is."""
    error = revealed(error)
    record(recorder, error)
    _leaving(recorder, status)
    return error


def _leaving(recorder: Recorder, status: int) -> None:
    global _exit_code
    _exit_code = status
    stand_down()
    recorder.writer.phase(Phase.EXITING, status)


def record(recorder: Recorder, error: BaseException, kind: str = "exception") -> None:
    """Put an exception on record, once."""
    if id(error) in _recorded:
        return
    _recorded.add(id(error))
    if isinstance(error, FindingRaised):
        recorder.note("finding_raised", error.kind)
        return
    if isinstance(error, KeyboardInterrupt):
        kind = "interrupted"
    summary = traceback.extract_tb(error.__traceback__)
    site = _user_site(recorder, error)
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    recorder.note(
        kind,
        message,
        site,
        type=type(error).__name__,
        stack=[f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in summary[-30:]],
        thread=threading.current_thread().name,
        thread_slot=recorder.writer.thread().index,
        **_nature(error, summary),
    )


def _nature(error: BaseException, summary: traceback.StackSummary) -> dict[str, bool]:
    """Whether torch.distributed raised it, for a wrong argument or for lost communication."""
    innermost = summary[-1].filename if summary else ""
    inside = call_site.is_distributed(innermost)
    text = str(error)
    lost = bool(_COMMUNICATION.search(text))
    wrong_argument = inside and isinstance(error, (ValueError, TypeError, IndexError))
    if innermost == _ISSUED_IN and isinstance(error, RuntimeError) and not lost:
        wrong_argument = True  # the backend refused the call at once
    communication = (
        isinstance(error, (RuntimeError, ConnectionError, TimeoutError))
        and not wrong_argument
        and (innermost == _WAITED_IN or (lost and (inside or call_site.is_torch(innermost))))
    )
    return {
        "invalid_argument": wrong_argument,
        "communication": communication,
        "address_in_use": bool(_ADDRESS_IN_USE.search(text)),
    }


def _user_site(recorder: Recorder, error: BaseException) -> int:
    """The innermost line of the user's own code on the traceback."""
    best, best_kind = None, -1
    trace = error.__traceback__
    while trace is not None:
        kind = call_site.frame_kind(trace.tb_frame.f_code.co_filename)
        if kind >= best_kind and kind != call_site.OWN:
            best, best_kind = trace, kind
        trace = trace.tb_next
    if best is None:
        return recorder.site(sys._getframe(1))
    code = best.tb_frame.f_code
    return recorder.site_at(code.co_filename, best.tb_lineno, code.co_name)
