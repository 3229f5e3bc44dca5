"""The commands of `distdebug`: this list is the table of contents.

A command's module is imported only when that command runs, so that every other one starts at once.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Command


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: its name, the class behind it, and the line that `distdebug --help` shows."""

    name: str
    module: str
    class_name: str
    help: str

    def load(self) -> Command:
        """Import the command."""
        module = importlib.import_module(f".{self.module}", __package__)
        command: Command = getattr(module, self.class_name)()
        return command


COMMANDS = (
    Entry(
        "run", "run", "RunCommand", "run a script under torchrun and be told which rank went wrong"
    ),
    Entry(
        "exec",
        "exec",
        "ExecCommand",
        "run any command (a self-launching script, mpiexec, accelerate) and watch its ranks",
    ),
    Entry(
        "plan",
        "plan",
        "PlanCommand",
        "match the programs of N ranks on one machine, before the run",
    ),
    Entry("tui", "tui", "TuiCommand", "watch a run in the terminal, live or after the fact"),
    Entry("report", "report", "ReportCommand", "show what was found in a run"),
    Entry("stacks", "stacks", "StacksCommand", "show where every rank stands, as one tree"),
    Entry("attach", "attach", "AttachCommand", "talk to a rank that stands at a breakpoint"),
    Entry("logs", "logs", "LogsCommand", "show what the ranks printed and logged, in time order"),
    Entry("runs", "runs", "RunsCommand", "list the recorded runs, or remove old ones"),
    Entry(
        "compare",
        "compare",
        "CompareCommand",
        "compare the calls of two runs, or of a run and a plan: where they differ first",
    ),
    Entry(
        "inspect",
        "inspect",
        "InspectCommand",
        "look at a running job that was started without distdebug",
    ),
    Entry(
        "export",
        "export",
        "ExportCommand",
        "write a run's record for other tools: a trace, or torch's flight recorder dumps",
    ),
    Entry(
        "bench",
        "bench",
        "BenchCommand",
        "measure what watching costs, or how fast backends communicate",
    ),
)
