"""A user's end of a rank's prompt, on a real terminal, with a rank that only asks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.terminal import Terminal

_ASKING = """
import pathlib, socket, threading, time
from distdebug.record.requests.breakpoints import BREAKPOINT, Line, Stop
from distdebug.supervisor.terminal import show_prompt

ours, theirs = socket.socketpair()
def rank():
    line = Line(theirs)
    line.send(prompt="(rank 3) ")
    while (messages := line.receive()) is not None:
        for message in messages:
            match message:
                case {"complete": ["slow", *_]}:
                    time.sleep(2.2)  # longer than anybody waits for it
                    line.send(candidates=["slow"])
                case {"complete": [*_]}:
                    line.send(candidates=["number"])
                case {"line": "leave"}:
                    line.send(end="rank 3 has left its breakpoint")
                case {"line": str(text)}:
                    line.send(output=f"got {text}\\n")
                    line.send(prompt="(rank 3) ")
threading.Thread(target=rank, daemon=True).start()
stop = Stop(3, 4711, "train.py", 7, "step", BREAKPOINT, "")
print("left" if show_prompt(ours, stop, pathlib.Path(".")) else "stays", flush=True)
"""


def _prompt(folder: Path) -> Terminal:
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    return Terminal([sys.executable, "-c", _ASKING], folder, environment)


def test_ctrl_c_counts_however_early_it_comes(tmp_path: Path) -> None:
    """Also between the moment at which the prompt is shown and that at which it is read."""
    with _prompt(tmp_path) as terminal:
        terminal.expect(r"\(rank 3\) $")
        for _ in range(100):
            terminal.press("p x + \x03")
            terminal.expect(r"\n\(rank 3\) $")
        terminal.type("p y")
        assert "got p y" in terminal.expect(r"\n\(rank 3\) $")
        terminal.type("leave")
        terminal.expect("rank 3 has left its breakpoint\nstays")
        assert terminal.finish() == 0


def test_completed_lines_arrive(tmp_path: Path) -> None:
    """The answer to a completion is no word of the rank's that breaks the typing off."""
    with _prompt(tmp_path) as terminal:
        terminal.expect(r"\(rank 3\) $")
        for _ in range(100):
            terminal.press("p num\t")
            terminal.expect("number")
            terminal.type("")
            assert "got p number" in terminal.expect(r"got.*\n\(rank 3\) $")


def test_a_completion_that_comes_too_late_takes_no_prompt_away(tmp_path: Path) -> None:
    with _prompt(tmp_path) as terminal:
        terminal.expect(r"\(rank 3\) $")
        terminal.press("p slow\t")
        terminal.expect(r"\n\(rank 3\) $")
        terminal.type("p y")
        assert "got p y" in terminal.expect(r"got.*\n\(rank 3\) $")


def test_leaving(tmp_path: Path) -> None:
    with _prompt(tmp_path) as terminal:
        terminal.expect(r"\(rank 3\) $")
        terminal.press("\x04")
        terminal.expect("got quit")
