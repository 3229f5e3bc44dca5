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
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from ...record.layout import Phase
from ...record.wording import FINDING_MARK
from ..agreement import collectives, deferred_work
from ..ddp import unused_parameters
from ..group import checked_group
from ..log import rank_log
from ..record import call_site, waiting
from ..record.errors import FindingRaised
from ..record.exception_text import text_of, titled
from ..record.findings import OwnFinding
from ..record.recorder import Recorder
from . import blame, lost_connections
from .verdict import stand_down, verdict_was_raised

_RENDEZVOUS = "_distdebug_rendezvous"
_ADDRESS_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_ISSUED_IN = frozenset({checked_group.__file__, collectives.__file__, deferred_work.__file__})
_WAITED_IN = waiting.__file__
_recorded: set[int] = set()
_exit_sites: set[int] = set()


def observe(recorder: Recorder) -> None:
    """From now on the end of this process is put on record."""
    _wrap_excepthook(recorder)
    _wrap_thread_excepthook(recorder)
    _wrap_process_run(recorder)
    _wrap_sys_exit(recorder)
    _wrap_os_exit(recorder)
    atexit.register(_at_exit, recorder)


_exit_code = 0


def failed() -> bool:
    """Whether the process ends with another status than 0."""
    return _exit_code != 0


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
            kind, trace = type(error), _to_users_line(error)
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
    """`except Exception: print_exc(); sys.exit(1)` hides the exception from every hook.

    What `sys.exit` raises may still be caught (argparse, command line tests): it is on record only
    once the interpreter itself asks for the code, because nobody has caught it.
    """
    original = sys.exit

    class Leaving(SystemExit):
        """SystemExit to everybody else."""

        def __reduce__(self) -> tuple[Any, ...]:
            return (SystemExit, self.args)

        @property
        def code(self) -> Any:
            code = _code_of(self)
            if _asked_by_interpreter():
                with contextlib.suppress(Exception):
                    _left(recorder, code, self.__context__)
            return code

        @code.setter
        def code(self, value: Any) -> None:
            _CODE.__set__(self, value)

    Leaving.__module__, Leaving.__name__, Leaving.__qualname__ = "builtins", *["SystemExit"] * 2

    def leave(status: Any = None, /) -> Any:
        if threading.current_thread() is threading.main_thread():
            _note_exit(recorder, f"sys.exit({status if isinstance(status, int) else ''})")
        args: tuple[Any, ...] = ()
        try:
            original(status)
        except SystemExit as plain:
            args = plain.args
        raise Leaving(*args)

    leave.__module__, leave.__name__, leave.__qualname__ = "sys", "exit", "exit"  # for pickle
    sys.exit = leave


_CODE: Any = SystemExit.code


def _code_of(error: SystemExit) -> Any:
    return _CODE.__get__(error)


def _asked_by_interpreter() -> bool:
    """Whether no Python function is below the getter: the program's last one has ended."""
    try:
        sys._getframe(2)
    except ValueError:
        return True
    return False


def _left(recorder: Recorder, code: Any, cause: BaseException | None) -> None:
    """The process ends with this `sys.exit`, called while `cause` was handled."""
    if code is None or code == 0:
        return
    # Of a number, its lowest eight bits are the status: sys.exit(256) is a success.
    status = code & 0xFF if isinstance(code, int) else 1
    if not status:
        return
    if isinstance(cause, Exception) and _came_through_users_code(cause):
        _ending(recorder, cause, status)
    else:
        _leaving(recorder, status)


def _came_through_users_code(error: BaseException) -> bool:
    """Not where argparse turns an error of its own into an exit."""
    trace = error.__traceback__
    while trace is not None:
        if call_site.frame_kind(trace.tb_frame.f_code.co_filename) != call_site.OWN:
            return True
        trace = trace.tb_next
    return False


def _wrap_os_exit(recorder: Recorder) -> None:
    """os._exit comes past every handler: the line and the status are all that can be kept. The
    status is not always told by others: mpiexec keeps its ranks' to itself."""
    original = os._exit

    def leave(status: int) -> NoReturn:
        if call_site.frame_kind(sys._getframe(1).f_code.co_filename) != call_site.OWN:
            _note_exit(recorder, f"os._exit({status})")
            with contextlib.suppress(Exception):
                if not recorder.writer.detached:
                    recorder.writer.phase(Phase.ENDED, status & 0xFF)
        original(status)

    leave.__module__, leave.__name__, leave.__qualname__ = "os", "_exit", "_exit"  # for pickle
    os._exit = leave


def _note_exit(recorder: Recorder, message: str) -> None:
    """Put the line on record; once for each, since a program may catch its own SystemExit."""
    with contextlib.suppress(Exception):
        if recorder.writer.detached:
            return
        site = recorder.site(sys._getframe(2))
        if site and site not in _exit_sites:
            _exit_sites.add(site)
            recorder.note("exit", message, site)


_post_mortem: Callable[[BaseException, Callable[[], None]], None] | None = None


def set_post_mortem(show: Callable[[BaseException, Callable[[], None]], None]) -> None:
    """`show(error, record)` is called before the process ends with an error; `record` may be called
    from there."""
    global _post_mortem
    _post_mortem = show


def _ending(recorder: Recorder, error: BaseException, status: int) -> BaseException:
    """Put on record that the process ends with this error; what it truly is."""
    error = _revealed(error)
    if _post_mortem is not None and not isinstance(error, FindingRaised):
        try:
            _post_mortem(error, partial(record, recorder, error))
        except FindingRaised as verdict:
            error = verdict  # the run has ended meanwhile
    with rank_log.held():
        record(recorder, error)
        _leaving(recorder, status)
    return error


def _revealed(error: BaseException) -> BaseException:
    """The verdict, where a lost connection came out of torch's C++ code because of it, or a copy
    of itself; or the error itself."""
    if not isinstance(error, RuntimeError) or isinstance(error, FindingRaised):
        return error
    if not (lost_connections.is_lost(error) or FINDING_MARK in text_of(error)):
        return error
    better = waiting.instead(error)
    return error if better is error else better.with_traceback(error.__traceback__)


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
    site = users_site(recorder, error)
    finding = getattr(error, "finding", None)
    if isinstance(finding, OwnFinding):
        finding.put_on_record(recorder, site)
        recorder.note("finding_raised", finding.kind)
        return
    if unused_parameters.tell(recorder, error, site):
        return
    message = titled(error)
    recorder.note(
        kind,
        message,
        site,
        type=type(error).__name__,
        stack=[f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in summary[-30:]],
        thread=threading.current_thread().name,
        thread_slot=recorder.writer.thread().index,
        **nature(error),
        **lost_connections.named_by(error),
        **_rendezvous_of(error),
    )


def failed_to_join(error: BaseException, address: str) -> None:
    """The rendezvous at this address ended with the error, which will say so on record."""
    with contextlib.suppress(AttributeError):
        setattr(error, _RENDEZVOUS, address)


def _rendezvous_of(error: BaseException) -> dict[str, str]:
    address = getattr(error, _RENDEZVOUS, "")
    return {"rendezvous": address} if address else {}


def nature(error: BaseException) -> dict[str, bool]:
    """Whether torch.distributed raised it, for a wrong argument or for lost communication."""
    summary = traceback.extract_tb(error.__traceback__)
    innermost = summary[-1].filename if summary else ""
    inside = call_site.is_distributed(innermost)
    text = text_of(error)
    lost = lost_connections.is_lost(error)
    if blame.is_own_fault(error):
        return {
            "own_fault": True,
            "invalid_argument": False,
            "communication": False,
            "address_in_use": False,
        }
    refused = isinstance(error, (ValueError, TypeError, IndexError)) and not blame.is_unmeant(error)
    wrong_argument = inside and refused
    if isinstance(error, AssertionError) and innermost.endswith("distributed_c10d.py"):
        wrong_argument = True  # torch asserts that a backend's name is known
    if innermost in _ISSUED_IN and isinstance(error, RuntimeError) and not lost:
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


def users_site(recorder: Recorder, error: BaseException) -> int:
    """The innermost line of the user's own code on the traceback."""
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
        return recorder.site(sys._getframe(1))
    code = best.tb_frame.f_code
    by = ""
    if library is not None:
        by = call_site.through(library.tb_frame.f_code.co_filename, library.tb_lineno)
    return recorder.site_at(code.co_filename, best.tb_lineno, code.co_name, by)
