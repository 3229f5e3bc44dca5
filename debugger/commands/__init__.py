"""The commands of `distdebug`: this table is the list of contents.

A command's module is imported only when that command runs, so that every other one starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Command

COMMANDS = {
    "run": "run a script under torchrun and be told which rank went wrong",
    "demo": "run a program with a planted bug on 4 ranks, and be told",
    "exec": "run any command (a self-launching script, mpiexec, accelerate) and watch its ranks",
    "plan": "match the programs of N ranks on one machine, before the run",
    "tui": "watch a run in the terminal, live or after the fact",
    "report": "show what was found in a run",
    "explain": "say what a kind of finding means, what mostly causes it, and how to mend it",
    "stacks": "show where every rank stands, as one tree",
    "attach": "talk to a rank that stands at a breakpoint",
    "logs": "show what the ranks printed and logged, in time order",
    "runs": "list the recorded runs, or remove old ones",
    "compare": "compare the calls of two runs, or of a run and a plan: where they differ first",
    "inspect": "look at a running job that was started without distdebug",
    "export": "write a run's record for other tools: a trace, metrics, torch's recorder dumps",
    "replay": "make the recorded calls of a run again, without its program, and compare the times",
    "resume-check": "check that a program goes on from its checkpoint as it would have",
    "shrink": "write a small program that fails as a recorded run did, for a bug report",
    "mcp": "serve the records of runs to an agent, read-only, over standard input and output",
    "bench": "measure what watching costs, or how fast backends communicate",
    "completion": "print what completes commands, flags and names of runs in bash, zsh or fish",
}
"""Each command with the line that `distdebug --help` shows: `resume-check` is
`ResumeCheckCommand` in `resume_check.py`."""


def load(name: str) -> Command:
    """Import the command of this name."""
    words = name.split("-")
    module = importlib.import_module(f".{'_'.join(words)}", __package__)
    command: Command = getattr(module, f"{''.join(map(str.capitalize, words))}Command")()
    return command
