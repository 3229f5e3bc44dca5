"""Opens a rank's prompt on this terminal in the place of the app, which comes back afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

from ..hook import loading
from ..record.requests.breakpoints import stops


def main() -> int:
    """The process that shows the prompt: `distdebug attach`, in a process group of its own.

    So Ctrl-C at it does not end the run, whose launcher may share this terminal; Ctrl-Z would leave
    nobody to answer.
    """
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    with contextlib.suppress(OSError, termios.error):
        os.tcsetpgrp(0, os.getpgrp())
        how = termios.tcgetattr(0)
        how[3] |= termios.ISIG
        termios.tcsetattr(0, termios.TCSANOW, how)
    code: int = loading.load("cli").main()
    return code


def refusal(directory: Path, rank: int) -> str:
    """Why there is no prompt of this rank to open; "" where there is one."""
    for stop in stops(directory):
        if stop.rank == rank:
            return stop.notice("") if stop.address else ""
    return f"rank {rank} is not at a breakpoint; B stops it"


def attach(directory: Path, rank: int) -> int:
    """Show the prompt until the rank goes on, or the user leaves; the exit code."""
    arguments = ["attach", str(directory), "--rank", str(rank), "--once"]
    with _lent_terminal():
        code = subprocess.call(loading.command("tui.attaching", *arguments))
    if code:
        with contextlib.suppress(EOFError, OSError):
            input("Enter goes back to the app ")
    return code


@contextlib.contextmanager
def _lent_terminal() -> Iterator[None]:
    """Afterwards it is as before. Until the child has taken it, Ctrl-C is a mere character."""
    try:
        how, owner = termios.tcgetattr(0), os.tcgetpgrp(0)
    except (OSError, termios.error):  # not a terminal, or not this session's own
        yield
        return
    quiet = [*how[:3], how[3] & ~termios.ISIG, *how[4:]]
    termios.tcsetattr(0, termios.TCSANOW, quiet)
    kept = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSANOW, how)
            os.tcsetpgrp(0, owner)
        signal.signal(signal.SIGTTOU, kept)
