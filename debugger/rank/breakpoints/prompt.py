"""pdb behind a socket: a rank's prompt, which `distdebug attach` shows in another terminal.

Whoever leaves the prompt, by `quit`, the end of the input or a lost connection, lets the rank go
on, and it stops at no further breakpoint. `continue` goes on to the next.
"""

from __future__ import annotations

import bdb
import code
import pdb
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType, FrameType, TracebackType
from typing import Any

from .console import Console

_CONTINUES = -1
"""bdb's `stoplineno` after `continue`."""
_OWN_MODULES = (f"{__package__.split('.')[0]}.*", "distcore.*", "contextlib", "threading")


class RankPdb(pdb.Pdb):
    """pdb, whose prompt ends with the rank going on. One for each thread.

    `stopped(frame, traceback)` holds while the prompt is shown, and tells whether to show it.
    `wanted(file, line)`: whether a breakpoint at this line is one for this rank.
    """

    def __init__(
        self,
        console: Console,
        prompt: str,
        stopped: Callable[[FrameType | None, Any], AbstractContextManager[bool]],
        wanted: Callable[[str, int], bool],
    ) -> None:
        # typeshed wants real files here; pdb reads lines and writes text.
        super().__init__(stdin=console, stdout=console, skip=_OWN_MODULES, nosigint=True)  # type: ignore[arg-type]
        self._console = console
        self._stopped = stopped
        self._wanted = wanted
        self.prompt = prompt
        self._lines: dict[int, tuple[CodeType, frozenset[int]]] = {}
        self.reset()

    # -- beginning and end of a prompt ---------------------------------------------------------

    def stop_at(self, frame: FrameType) -> None:
        """Show the prompt for this frame, now. Must be its caller's last act: with `next` and the
        like tracing is on from here."""
        sys.settrace(None)
        self.reset()
        self._trace_from(frame)
        self.interaction(frame, None)
        if self.stoplineno != _CONTINUES:
            sys.settrace(self.trace_dispatch)

    def post_mortem(self, trace: TracebackType) -> None:
        """Show the prompt for the frame in which an exception was raised."""
        self.reset()
        self.interaction(None, trace)

    def watch(self, frame: FrameType | None) -> None:
        """Stop where there are breakpoints, in this thread, whose innermost frame this is."""
        self.reset()
        self._trace_from(frame)
        self.set_continue()

    def _trace_from(self, frame: FrameType | None) -> None:
        while frame is not None:
            frame.f_trace = self.trace_dispatch
            self.botframe = frame
            frame = frame.f_back

    def only_files(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The trace function of a thread that runs on: looks at functions that have breakpoints."""
        if not self._breaks_within(frame.f_code):
            return None
        if self.botframe is None:
            self.watch(frame)
        return self.trace_dispatch(frame, event, arg)

    def _breaks_within(self, code: CodeType) -> bool:
        lines = self.breaks.get(self.canonic(code.co_filename))
        if not lines:
            return False
        known = self._lines.get(id(code))
        if known is None:
            found = frozenset(line for _, _, line in code.co_lines() if line is not None)
            known = self._lines[id(code)] = (code, found)  # the reference keeps the id its own
        return not known[1].isdisjoint(lines)

    def break_here(self, frame: FrameType) -> bool:
        place = (self.canonic(frame.f_code.co_filename), frame.f_lineno)
        if self._console.left or place not in bdb.Breakpoint.bplist:
            return False  # the prompt of another thread has cleared it
        return super().break_here(frame) and self._wanted(*place)

    def set_continue(self) -> None:
        super().set_continue()
        if self.breaks and not self._console.left:
            sys.settrace(self.only_files)

    def interaction(self, frame: FrameType | None, *trace: Any) -> None:
        """Shows the prompt as pdb does, unless its user has left one before: then goes on."""
        with self._stopped(frame, trace[0] if trace else None) as shown:
            if shown:
                self._console.complete = self._candidates
                super().interaction(frame, *trace)
                self._console.going = self.stoplineno == _CONTINUES
            else:
                self._go_on()

    def _cmdloop(self) -> None:
        self.cmdloop()  # pdb's own would keep Ctrl-C, which is meant for the whole run

    def _go_on(self) -> None:
        self.clear_all_breaks()
        self.set_continue()

    # -- commands whose meaning is another one in a rank ---------------------------------------

    def do_quit(self, arg: str) -> bool:  # noqa: ARG002 - pdb's signature
        """q(uit)
        Leave the prompt: the rank goes on, and stops at no further breakpoint.
        """
        self._console.left = True
        self._go_on()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool:
        """EOF
        Leave the prompt, as quit does.
        """
        return self.do_quit(arg)

    def do_run(self, arg: str) -> None:  # noqa: ARG002 - as above
        """run
        Not here: a rank cannot begin anew without the others.
        """
        self.error("a rank cannot be started again from its prompt; start the run again")

    do_restart = do_run

    def do_debug(self, arg: str) -> None:
        """debug code
        Step through the code, at a prompt within this one.
        """
        handler = signal.getsignal(signal.SIGINT)
        try:
            super().do_debug(arg)
        finally:  # pdb's own would keep Ctrl-C, as above
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)

    def do_interact(self, arg: str) -> None:  # noqa: ARG002 - as above
        """interact
        An interactive interpreter with the names of the current scope; Ctrl-D or exit() leaves it.
        """
        names = {**self.curframe.f_globals, **self.curframe_locals}  # type: ignore[union-attr]
        kept = sys.stdin, sys.stdout, sys.stderr
        console: Any = self._console
        sys.stdin = sys.stdout = sys.stderr = console
        try:
            code.interact("*interactive*", local=names, exitmsg="")
        except SystemExit:
            pass
        finally:
            sys.stdin, sys.stdout, sys.stderr = kept

    def _candidates(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Returns what the word at `line[begin:end]` may become."""
        try:
            if begin == 0:
                return [name for name in self.completenames(text) if name.isidentifier()]
            found = self.completedefault(text, line, begin, end)
            return [str(one) for one in found or self._complete_expression(text, line, begin, end)]
        except Exception:
            return []  # a name that does not exist, or an attribute that raises
