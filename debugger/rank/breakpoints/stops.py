"""Stops a rank at a breakpoint: its prompt waits on a socket, and the record says that it stands.

By `breakpoint()`, `torch.distributed.breakpoint()`, `distdebug.breakpoint()`, `--break` and
`--pdb`; and on demand, while it runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from os import getpid
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ...record.layout import Activity
from ...record.ops import OP_CODES
from ...record.requests import breakpoints as standing
from ...record.requests import supervision
from ...record.requests.breakpoints import BreakAt, Stop
from ...record.requests.supervision import is_live
from ...record.safe_text import whole_number
from ...record.wording import printable
from ...system import proc
from ..limits import ARM_AFTER_S, SELDOM_S
from ..log.rank_log import at_exit, report_own_fault, say
from ..process.exceptions import users_site
from ..process.main_thread import MainThread
from ..record import call_site
from ..record.recorder import GroupRecord, Known, Recorder
from . import BREAK, LookOnce, editors
from .console import Console
from .editors import Editors

if TYPE_CHECKING:
    from .prompt import RankPdb

DEBUGGER = "DISTDEBUG_DEBUGGER"
_CLAIM = "post-mortem"


class Breakpoints:
    """The breakpoints of this process. One thread at a time is at the prompt; the others wait for
    their turn."""

    def __init__(
        self,
        recorder: Recorder,
        directory: Path,
        main_thread: MainThread,
        owner: int,
        look_once: LookOnce,
    ) -> None:
        """`owner`: the process that is a rank, which may be a parent. `look_once(look)` has each
        call of a group looked at, until it is called with None."""
        self._recorder = recorder
        self.directory = directory
        self.main_thread = main_thread
        self._supervised = is_live(directory)
        self.owner = owner
        self._turn = threading.Lock()
        self._local = threading.local()
        self._console = Console(self._look)
        self._editors = Editors()
        self._looked_s = 0.0
        self.places = BreakPlaces.from_environment()
        self.on_demand = OnDemand(self, look_once)

    def observe(self) -> None:
        """From now on this process stops at breakpoints."""
        self.trace()
        self.main_thread.on_return(self.on_demand.trace_from)
        at_exit(self.end)

    def adopt(self) -> None:
        """This process was forked, and is a rank of its own now."""
        self.owner = getpid()
        self._turn = threading.Lock()  # the parent's may be that of a thread that was not forked
        own: RankPdb | None = getattr(self._local, "pdb", None)
        if own is not None:
            own.prompt = f"({self._prompt()}) "
        self.on_demand.begin()

    # -- ways to stop --------------------------------------------------------------------------

    def stop(self, frame: FrameType) -> None:
        """Stop at this frame, now. Must be the caller's last act."""
        if self._passes():
            return
        if os.environ.get(DEBUGGER) == editors.DEBUGPY and self._await_editor(frame):
            return
        self._pdb().stop_at(frame)

    def post_mortem(self, error: BaseException, record: Callable[[], None]) -> None:
        """Show the prompt where this uncaught exception was raised, then `record` it: on the first
        rank that comes here. The others wait for that, so that theirs come later."""
        if error.__traceback__ is None or not isinstance(error, Exception) or self._passes():
            return
        claim = self.directory / supervision.FOLDER / _CLAIM
        try:
            claim.parent.mkdir(mode=0o700, exist_ok=True)
            os.symlink(str(getpid()), claim)  # whole from the beginning, unlike a file
        except FileExistsError:
            site = users_site(self._recorder, error)
            with (
                contextlib.suppress(OSError),  # the link has gone
                self._recorder.waiting_in(Activity.PAUSED, {"op": _CLAIM}, site),
            ):
                while proc.exists(os.readlink(claim)):
                    self._look()
                    time.sleep(0.05)
            return
        try:
            self._local.error = error
            self._pdb().post_mortem(error.__traceback__)
            record()
        finally:
            claim.unlink(missing_ok=True)

    def trace(self) -> None:
        """Stop at the lines of `--break`, in this thread and in those that begin from now on."""
        lines = self.places.lines_on(self._rank())
        if not lines:
            return
        for file, line in lines:
            self._pdb().set_break(file, line)
        threading.settrace(self._trace_thread)
        self._pdb().watch(sys._getframe(1))

    def _trace_thread(self, frame: FrameType, event: str, arg: Any) -> Any:
        own = self._pdb()
        sys.settrace(own.only_files)
        return own.only_files(frame, event, arg)

    def end(self) -> None:
        """Ends the prompts with the process."""
        if getpid() == self.owner:
            self._console.end(f"{self._prompt()} has ended")

    def allow(self) -> None:
        """Forgets that the prompt was left before, since a stop is asked for."""
        self._console.left = False

    def trace_again(self, frame: FrameType) -> None:
        """Back to the lines of `--break` alone."""
        own = self._pdb()
        if own.breaks and not self._console.left:
            own.watch(frame)

    def before_calls(self, record: GroupRecord) -> Callable[..., None] | None:
        """Returns what looks at each call of a group for `--break OP#SEQ`; None where none is asked
        for."""
        calls = self.places.calls_on(record.ranks[record.group_rank])
        if not calls:
            return None

        def before(_method: str, _args: tuple[Any, ...], known: Known, seq: int) -> None:
            number = seq if known.channel is None else known.channel.issued - 1
            if (known.op_code, number) in calls:
                frame = sys._getframe(1)
                self.stop(call_site.find(frame) or frame)

        return before

    # -- at the prompt -------------------------------------------------------------------------

    def _passes(self) -> bool:
        """Whether a breakpoint is none now."""
        if getpid() != self.owner:
            if not getattr(self._local, "told", False):
                self._local.told = True
                say(f"a child of {self._prompt()} passes over its breakpoints: it is no rank")
            return True
        return self._console.left or getattr(self._local, "shown", False)

    def _pdb(self) -> RankPdb:
        own: RankPdb | None = getattr(self._local, "pdb", None)
        if own is None:
            # Not before the first stop: from Python 3.13 on pdb brings readline with it, sets its
            # completer, and has it taken back when the process ends.
            from .prompt import RankPdb

            prompt = f"({self._prompt()}) "
            own = self._local.pdb = RankPdb(
                self._console,
                prompt,
                self._shown,
                lambda file, line: self.places.on_rank(file, line, self._rank()),
            )
        return own

    def _rank(self) -> int | None:
        rank = self._recorder.writer.rank
        if rank >= 0:
            return rank
        return whole_number(os.environ.get("RANK"))

    def _prompt(self) -> str:
        rank = self._rank()
        return f"process {getpid()}" if rank is None else f"rank {rank}"

    @contextlib.contextmanager
    def _shown(self, frame: FrameType | None, trace: Any) -> Iterator[bool]:
        """Whether the prompt is to be shown, at this frame or traceback; while it is, the record
        and the run directory say so."""
        if self._passes():
            yield False
            return
        self._local.shown = True
        try:
            with self._at_turn():
                if self._console.left:  # meanwhile, at the prompt of another thread
                    yield False
                    return
                self.on_demand.fulfilled()
                file, line, function = _place(frame, trace)
                site = self._recorder.site_at(file, line, function)
                here = Stop(self._rank(), getpid(), file, line, function, *self._why())
                with (
                    self._recorder.waiting_in(Activity.PAUSED, {"op": "breakpoint"}, site),
                    self._announced(here),
                ):
                    yield not self._console.left
        finally:
            self._local.shown = False

    def _why(self, address: str = "") -> tuple[str, str]:
        error = getattr(self._local, "error", None)
        why = standing.BREAKPOINT if error is None else f"{type(error).__name__}: {error}"
        return printable(why, 200), address

    @contextlib.contextmanager
    def _at_turn(self) -> Iterator[None]:
        while not self._turn.acquire(timeout=0.2):
            self._look()
        try:
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _announced(self, here: Stop) -> Iterator[None]:
        console = self._console
        try:
            console.open(standing.listen(self.directory, here))
            standing.announce(self.directory, here)
        except OSError as error:
            report_own_fault("stopping at breakpoints", error)
            console.left = True
        else:
            self._tell(here)
        ended = ""
        try:
            yield
        except BaseException as error:
            ended = f"{here.who} is ended: {type(error).__name__}: {error}"
            raise
        finally:
            console.shut()
            standing.withdraw(self.directory, here)
            if ended:
                console.end(ended)
            elif console.left:
                console.end(f"{here.who} goes on, and stops at no further breakpoint")
            elif here.why != standing.BREAKPOINT:
                console.end(f"{here.who} goes on to its end")
            elif console.going:
                console.go(f"{here.who} goes on")

    def _tell(self, here: Stop) -> None:
        """Prints how to come to the prompt, where no supervisor says it."""
        if not self._supervised:
            say(here.notice(str(self.directory)))

    def _look(self) -> None:
        """Called between waits: raises the verdict of the run; without a supervisor that was there
        before, nobody may come any more."""
        self._recorder.waits.check()
        now_s = time.monotonic()
        if self._supervised and now_s - self._looked_s >= SELDOM_S:
            self._looked_s = now_s
            if not is_live(self.directory):
                self._console.left = True

    # -- editors -------------------------------------------------------------------------------

    def _await_editor(self, frame: FrameType) -> bool:
        """Let an editor stop here; False, having said why, where that cannot be."""
        file, line, function = _place(frame, None)
        site = self._recorder.site_at(file, line, function)

        @contextlib.contextmanager
        def announced(address: str) -> Iterator[None]:
            here = Stop(self._rank(), getpid(), file, line, function, *self._why(address))
            with self._recorder.waiting_in(Activity.PAUSED, {"op": "breakpoint"}, site):
                standing.announce(self.directory, here)
                self._tell(here)
                try:
                    yield
                finally:
                    standing.withdraw(self.directory, here)

        self.on_demand.fulfilled()
        try:
            self._editors.stop(announced, self._look, frame)
        except ImportError:
            say(editors.MISSING)
            return False
        except RuntimeError as error:
            if str(error) != editors.UNGUARDED:
                raise
            say(editors.UNGUARDED)
            return False
        return True


class OnDemand:
    """Stops the process because somebody asks for it: at its next line, or before its next call.

    The heartbeat sees the request. From then on the main thread traces the user's lines, beginning
    with its next bytecode (nothing that it waits in is interrupted), and the next call of every
    group is looked at, whichever thread makes it; the first that comes is the one. Until somebody
    asks, and after that, none of this costs anything. A main thread that another traces (coverage,
    an editor) stays that one's: there only calls are looked at.
    """

    def __init__(self, of: Breakpoints, look_once: LookOnce) -> None:
        self._of = of
        self._look_once = look_once
        self.begin()

    def begin(self) -> None:
        """Begins with no request; also in a forked child, which may be asked itself."""
        self._asked_s, self._armed = 0.0, False
        self._one = threading.Lock()

    def look(self) -> None:
        """Called with every heartbeat."""
        of = self._of
        if getpid() != of.owner:
            supervision.withdraw_request(of.directory, getpid())  # it passes over breakpoints
        elif not supervision.is_asked(of.directory, of.owner):
            if self._armed or self._asked_s:
                self._end()
        elif not self._asked_s:
            self._asked_s = time.monotonic()
        elif time.monotonic() - self._asked_s >= ARM_AFTER_S:
            with self._one:  # by now it may have been fulfilled
                if not self._armed and supervision.is_asked(of.directory, of.owner):
                    self._armed = True
                    of.allow()
                    self._look_once(self._before_call)
            of.main_thread.at_next_bytecode()  # each time: it may have been traced by another

    def fulfilled(self) -> None:
        """The process stands, for whatever reason."""
        if supervision.withdraw_request(self._of.directory, self._of.owner) or self._asked_s:
            self._end()

    def _end(self) -> None:
        with self._one:
            self._armed, self._asked_s = False, 0.0
            self._look_once(None)

    def _first(self) -> bool:
        """Whether this thread is the one to stop. The request is taken away here, so that nobody
        can take it back, and be told so, who comes later."""
        if getpid() != self._of.owner:
            self._armed = False  # the lock may be that of a thread that was not forked
            return False
        with self._one:
            armed, self._armed = self._armed, False
        return armed and supervision.withdraw_request(self._of.directory, self._of.owner)

    def _before_call(self) -> None:
        frame = call_site.find(sys._getframe(1))
        if frame is not None and self._first():
            self._of.stop(frame)

    # -- in the main thread --------------------------------------------------------------------

    def trace_from(self, frame: FrameType | None) -> None:
        """The main thread is asked to look at its lines, beginning in this frame."""
        tracing = sys.gettrace()
        if not self._armed or tracing == self._trace:
            return
        if tracing is not None and not _is_ours(tracing):
            return
        while frame is not None:
            if call_site.frame_kind(frame.f_code.co_filename) == call_site.USER:
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self._armed:
            if call_site.frame_kind(frame.f_code.co_filename) != call_site.USER:
                return None
            if event != "line":
                return self._trace
            if self._first():
                self._of.stop(frame)  # from here on the prompt decides who traces the frame
                return None
        # Ends the tracing: the request was taken back, or another thread has stopped.
        if sys.gettrace() == self._trace:
            sys.settrace(None)
        found: FrameType | None = frame
        while found is not None:
            if found.f_trace == self._trace:
                found.f_trace = None
            found = found.f_back
        self._of.trace_again(frame)
        resumed = frame.f_trace
        return resumed(frame, event, arg) if resumed is not None and event == "line" else None


def _is_ours(trace: Any) -> bool:
    """Whether this trace function is that of a prompt."""
    prompt = sys.modules.get(f"{__package__}.prompt")
    return prompt is not None and isinstance(getattr(trace, "__self__", None), prompt.RankPdb)


def _place(frame: FrameType | None, trace: TracebackType | None) -> tuple[str, int, str]:
    """The line at which the prompt is."""
    if frame is not None:
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    best = trace
    while trace is not None:
        if call_site.frame_kind(trace.tb_frame.f_code.co_filename) == call_site.USER:
            best = trace
        trace = trace.tb_next
    if best is None:
        return "?", 0, "?"
    code = best.tb_frame.f_code
    return code.co_filename, best.tb_lineno, code.co_name


class BreakPlaces:
    """Places as they were given, by what they are about."""

    def __init__(self, places: Sequence[BreakAt]) -> None:
        self._calls = [one for one in places if one.op]
        self._lines = [
            (standing.canonical_file(one.file), one.line, one.rank) for one in places if one.file
        ]

    @classmethod
    def from_environment(cls) -> BreakPlaces:
        """Reads what the command line said. What cannot be read was not written by it."""
        found = []
        for text in filter(None, os.environ.get(BREAK, "").split("\n")):
            with contextlib.suppress(ValueError):
                found.append(standing.parse_break(text))
        return cls(found)

    def lines_on(self, rank: int | None) -> list[tuple[str, int]]:
        """(file, line) at which this rank may stop; all of them while it is not known."""
        found = (
            (file, line) for file, line, one in self._lines if None in (rank, one) or one == rank
        )
        return list(dict.fromkeys(found))

    def on_rank(self, file: str, line: int, rank: int | None) -> bool:
        """Whether to stop at this line on this rank, if pdb has a breakpoint there: its user may
        have set it."""
        ranks = [one for *place, one in self._lines if place == [file, line]]
        return not ranks or None in ranks or rank in ranks

    def calls_on(self, rank: int) -> frozenset[tuple[int, int]]:
        """(code of the op, sequence number) of the calls before which this rank stops."""
        return frozenset(
            (OP_CODES[one.op], one.seq) for one in self._calls if one.rank in (None, rank)
        )
