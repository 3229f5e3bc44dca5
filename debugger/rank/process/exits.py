"""Sees how a rank's program ends: the uncaught exception, the exit status, the end.

The operating system reports only a number. What the program died of, and on which line, only the
process itself can tell, and it must do so before its parents and peers react.
"""

from __future__ import annotations

import contextlib
import multiprocessing.popen_fork
import multiprocessing.process
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import Any, NoReturn

from distcore.base.wrapping import around

from ...errors.in_ranks import FindingRaised
from ...hook.loading import when_imported
from ...record.layout import Phase
from ...record.notes import CaughtExceptionNote, ExitNote, ThreadExceptionNote
from ...record.wording import FINDING_MARK
from ..log import rank_log
from ..log.rank_log import at_exit, is_interruption, report_own_fault
from ..record import call_site, lost_connections
from ..record.exception_text import text_of
from ..record.recorder import Recorder
from ..torch_private.probe import before
from .exceptions import Exceptions
from .verdict import VerdictWatch

_MOST_CAUGHT = 20
_MOST_INTERRUPTIONS = 20
_C_LONG = 1 << 63
PostMortem = Callable[[BaseException, Callable[[], None]], None]
"""Called with an error before the process ends with it, and what puts it on record."""


@dataclass(eq=False, repr=False)
class Exits:
    """The ends of this process."""

    _recorder: Recorder
    _exceptions: Exceptions
    _verdict: VerdictWatch
    _post_mortem: PostMortem | None
    _exit_code: int = 0
    _sites: set[int] = field(default_factory=set)
    _caught: int = 0
    _hook: Callable[..., None] | None = None
    _may_leave: bool = False

    def observe(self) -> None:
        """Puts the end of this process on record, from now on."""
        self._wrap_excepthook()
        self._wrap_thread_excepthook()
        self._wrap_unraisablehook()
        self._wrap_process_run()
        self._wrap_terminate()
        self._wrap_sys_exit()
        self._wrap_os_exit()
        _observe_unittest(self.caught)
        at_exit(self._at_exit)

    def caught(self, error: BaseException) -> None:
        """A test runner has caught this error of the program's, and will most likely end the
        process with another status than 0 for it: then that is what it ended of."""
        if self._recorder.writer.detached or self._caught >= _MOST_CAUGHT:
            return
        self._caught += 1
        with contextlib.suppress(Exception):
            self._exceptions.record(error, CaughtExceptionNote)

    @property
    def failed(self) -> bool:
        """Whether the process ends with another status than 0."""
        return self._exit_code != 0

    def group_made(self) -> None:
        """The process has peers from now on, who see it leave: by a backend that says so at its
        end, maybe long before the program's own handlers have come to theirs. That it leaves is on
        record before that; handlers run in the reverse of their order."""
        if not self._may_leave:
            self._may_leave = True
            at_exit(lambda: self._recorder.writer.phase(Phase.EXITING, self._exit_code))

    def _at_exit(self) -> None:
        """Runs after the program's own handlers, since it was registered before them.

        After a verdict the backend's destructor would wait for the very call that can never end, so
        the process leaves at once.
        """
        with contextlib.suppress(Exception):
            self._look_back()
        # `raise SystemExit(1)` tells its status to nobody in this process. Where a test has failed
        # it is not 0, so it is waited for.
        unknown = self._caught and not self._exit_code
        self._recorder.writer.phase(Phase.EXITING if unknown else Phase.ENDED, self._exit_code)
        if self._verdict.was_raised:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(self._exit_code or int(self._caught > 0))

    def _look_back(self) -> None:
        """Looks for what the process may have ended of, where no hook was told: it counts if its
        status is not 0. A program may have put a hook in place of ours (rich does); the interpreter
        keeps the uncaught exception for all of them. And it may have swallowed a lost connection,
        and said `raise SystemExit(1)`."""
        if self._exit_code or self._recorder.writer.detached:
            return
        error = self._uncaught()
        if error is not None:
            self.caught(self._revealed(error))
        elif self._exceptions.record_lost_call(CaughtExceptionNote):
            self._caught += 1

    def _uncaught(self) -> BaseException | None:
        """Returns the exception that a hook of the program's was given in place of ours."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        ours = sys.excepthook is self._hook
        return error if isinstance(error, BaseException) and not ours else None

    def _wrap_excepthook(self) -> None:
        original = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            try:
                error = self._ending(error, 1)
            except Exception as fault:
                report_own_fault("putting an exception on record", fault)
            if isinstance(error, FindingRaised):
                error.__suppress_context__ = True
                kind, trace = type(error), _to_users_line(error)
            elif isinstance(error, KeyboardInterrupt):
                names = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
                if names and names[-1].startswith(tuple(call_site.DIRECTORIES)):
                    trace = _to_users_line(error)
            original(kind, error, trace)

        self._hook = sys.excepthook = hook

    def _wrap_thread_excepthook(self) -> None:
        original = threading.excepthook

        def hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
                self._exceptions.record(args.exc_value, ThreadExceptionNote)
            original(args)

        threading.excepthook = hook

    def _wrap_unraisablehook(self) -> None:
        """Records lost calls in the program's exit handlers. An error that one of them lets out
        does not change the status. Where its last call failed so, since the peer had left, no other
        record would tell of it."""
        original = sys.unraisablehook

        def hook(unraisable: Any) -> None:
            with contextlib.suppress(Exception):
                error = unraisable.exc_value
                ignored = "atexit" in str(unraisable.err_msg) and isinstance(error, Exception)
                if ignored and self._exceptions.nature(error)["communication"]:
                    self._exceptions.record_lost_call()
            original(unraisable)

        sys.unraisablehook = hook

    def _wrap_process_run(self) -> None:
        """multiprocessing catches what its target raises, and never comes to sys.excepthook."""
        process_class: Any = multiprocessing.process.BaseProcess
        original = process_class._bootstrap

        @around(original)
        def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
            run = process.run

            @around(run)
            def observed() -> None:
                try:
                    run()
                except SystemExit as error:
                    cause = error.__context__
                    if error.code and isinstance(cause, Exception):
                        self._ending(cause, 1)
                    elif error.code:
                        self._exceptions.record_lost_call()
                    raise
                except BaseException as error:
                    better = self._ending(error, 1)
                    if better is error:
                        raise
                    raise better from None

            process.run = observed
            status = original(process, *args, **kwargs)
            self._recorder.writer.phase(Phase.ENDED, int(status or 0))
            return status

        process_class._bootstrap = bootstrap

    def _wrap_terminate(self) -> None:
        """Notes children that the program itself ends. A process that ends its own child wants it
        so; multiprocessing ends those that are daemons, too, as the process ends: among them may be
        ranks of a world of their own, which save checkpoints, say."""

        def terminates(child: Any) -> None:
            with contextlib.suppress(Exception):
                from ...record.exits import tell_asked  # most programs end no child

                path = self._recorder.writer.path.parent.parent / "exits.jsonl"
                tell_asked(path, int(child.pid), signal.SIGTERM)

        before(multiprocessing.popen_fork.Popen, "terminate", terminates)

    def _wrap_sys_exit(self) -> None:
        """`except Exception: print_exc(); sys.exit(1)` hides the exception from every hook.

        What `sys.exit` raises may still be caught (argparse, command line tests): it is on record
        only once the interpreter itself asks for the code, because nobody has caught it.
        """
        original, left = sys.exit, self._left

        class Leaving(SystemExit):
            """SystemExit to everybody else."""

            def __reduce__(self) -> tuple[Any, ...]:
                return (SystemExit, self.args)

            @property
            def code(self) -> Any:
                code = _code_of(self)
                if _asked_by_interpreter():
                    with contextlib.suppress(Exception):
                        left(code, self.__context__)
                return code

            @code.setter
            def code(self, value: Any) -> None:
                _CODE.__set__(self, value)

        Leaving.__module__, Leaving.__name__, Leaving.__qualname__ = "builtins", *["SystemExit"] * 2

        def leave(status: Any = None, /) -> Any:
            __tracebackhide__ = True
            if threading.current_thread() is threading.main_thread():
                self._note_exit(f"sys.exit({status if isinstance(status, int) else ''})")
            args: tuple[Any, ...] = ()
            try:
                original(status)
            except SystemExit as plain:
                args = plain.args
            raise Leaving(*args)

        leave.__module__, leave.__name__, leave.__qualname__ = "sys", "exit", "exit"  # for pickle
        sys.exit = leave

    def left_by(self, error: SystemExit) -> int:
        """Returns the status with which this process ends, where a program of ours runs it, which
        asks in the interpreter's place."""
        code = _code_of(error)
        self._left(code, error.__context__)
        return _status_of(code)

    def ended(self, error: BaseException | None) -> None:
        """This is a process of multiprocessing's, whose target has returned, or raised this: it
        ends without the interpreter's own end."""
        status = 0
        if isinstance(error, SystemExit):
            status = self.left_by(error)
        elif error is not None:
            status = 1
            self._ending(error, status)
        self._recorder.writer.phase(Phase.ENDED, status)

    def _left(self, code: Any, cause: BaseException | None) -> None:
        """The process ends with this `sys.exit`, called while `cause` was handled."""
        status = _status_of(code)
        if not status:
            return
        trace = cause.__traceback__ if isinstance(cause, Exception) else None
        names = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
        # Not where argparse turns an error of its own into an exit.
        if cause is not None and any(call_site.frame_kind(one) != call_site.OWN for one in names):
            self._ending(cause, status)
        else:
            self._exceptions.record_lost_call()
            self._leaving(status)

    def _wrap_os_exit(self) -> None:
        """os._exit comes past every handler: the line, the status and what is handled, by an except
        clause or by a hook for what nobody has caught, are all that can be kept. The status is not
        always reported by others: mpiexec keeps its ranks' to itself."""
        original = os._exit

        def leave(status: int) -> NoReturn:
            if call_site.frame_kind(sys._getframe(1).f_code.co_filename) != call_site.OWN:
                self._note_exit(f"os._exit({status})")
                with contextlib.suppress(Exception):
                    if not self._recorder.writer.detached:
                        self._left(status, sys.exc_info()[1] or self._uncaught())
                        self._recorder.writer.phase(Phase.ENDED, status & 0xFF)
            original(status)

        leave.__module__, leave.__name__, leave.__qualname__ = "os", "_exit", "_exit"  # for pickle
        os._exit = leave

    def _note_exit(self, message: str) -> None:
        """Put the line on record; once for each, since a program may catch its own SystemExit."""
        with contextlib.suppress(Exception):
            if self._recorder.writer.detached:
                return
            site = self._recorder.site(sys._getframe(2))
            if site and site not in self._sites:
                self._sites.add(site)
                self._recorder.note(ExitNote(), message, site)

    def _ending(self, error: BaseException, status: int) -> BaseException:
        """Put on record that the process ends with this error; what it truly is."""
        error = self._revealed(error)
        if self._post_mortem is not None and not isinstance(error, FindingRaised):
            try:
                self._post_mortem(error, partial(self._exceptions.record, error))
            except FindingRaised as verdict:
                error = verdict  # the run has ended meanwhile
        with rank_log.held():
            self._record_the_last(error)
            self._leaving(status)
        return error

    def _record_the_last(self, error: BaseException) -> None:
        """Put on record what the process ends of. What the handler of a signal raises meanwhile,
        as torch's own does for a worker that was killed, comes too late to end it of that."""
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                return self._exceptions.record(error)
            except Exception as other:
                if not is_interruption(other):
                    raise
        return None

    def _revealed(self, error: BaseException) -> BaseException:
        """The verdict, where a lost connection came out of torch's C++ code because of it, or a
        copy of itself; or the error itself."""
        if not isinstance(error, RuntimeError) or isinstance(error, FindingRaised):
            return error
        if not (lost_connections.is_lost(error) or FINDING_MARK in text_of(error)):
            return error
        better = self._recorder.waits.instead(error)
        return error if better is error else better.with_traceback(error.__traceback__)

    def _leaving(self, status: int) -> None:
        self._exit_code = status
        self._verdict.stand_down()
        self._recorder.writer.phase(Phase.EXITING, status)


def _to_users_line(error: BaseException) -> TracebackType | None:
    """Cut the traceback of a verdict, or of Ctrl-C in a call, behind the user's own line: what lies
    below did no wrong."""
    last, place = None, None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        here = code.co_filename, code.co_name, trace.tb_lineno
        # An injected fault happens in a frame in the likeness of the user's that called us.
        if call_site.frame_kind(code.co_filename) != call_site.OWN and here != place:
            last, place = trace, here
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    return error.__traceback__


_CODE: Any = SystemExit.code


def _code_of(error: SystemExit) -> Any:
    return _CODE.__get__(error)


def _status_of(code: Any) -> int:
    """Returns what the interpreter makes of the argument of `sys.exit`. Of a number its lowest
    eight bits are the status: sys.exit(256) is a success. One that no C program could be given is
    -1."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if -_C_LONG <= code < _C_LONG else 0xFF


def _asked_by_interpreter() -> bool:
    """Whether no Python function is below the getter: the program's last one has ended."""
    try:
        sys._getframe(2)
    except ValueError:
        return True
    return False


def _observe_unittest(caught: Callable[[BaseException], None]) -> None:
    """Calls `caught` with each error that makes a test fail: unittest keeps what a test raised to
    itself, and ends the rank with status 1 for it. (pytest's is reported by the plugin.)"""

    def tell(position: int, _: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            error = (*args, *kwargs.values())[position]
            if error is not None:
                caught(error[1])

    def watch(module: Any) -> None:
        # (test, error), (test, error), (test, subtest, error or None for one that has passed)
        for name, position in {"addError": 1, "addFailure": 1, "addSubTest": 2}.items():
            before(module.TestResult, name, partial(tell, position))

    when_imported("unittest.result", watch)
