"""The beginning of a supervised run. The command starts as early as it can: its launcher imports
torch while this process imports what watches it, which takes half a second of a core."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping

from ..record.collection import no_collection
from ..record.exits import ExitLog
from ..record.requests.lifeline import Lifeline
from ..record.runs.run_directory import BASE, RunDirectory
from ..record.safe_text import clean
from .command.interrupts import Interrupts
from .command.launch import Launch, find_command
from .output.process import OutputProcess
from .run_options import Options, environment, here, key_variables
from .terminal_app import Beside

_WITHOUT = {"DISTDEBUG_FAULTS": "", "DISTDEBUG_MEET": ""}
"""The environment of a run without faults, on one node: as `Injection` and `Job` have it."""


def say(sentence: str) -> None:
    """Prints one line on the terminal."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"distdebug: {clean(sentence)}\n")
        sys.stderr.flush()


class Begun:
    """A run whose directory is there, with a process for what the ranks print; its command has
    `started`, unless something has to be made for it first."""

    def __init__(self, options: Options, stack: contextlib.ExitStack) -> None:
        """Puts onto the `stack` what is to end with the run."""
        self.options = options
        self.interrupts = Interrupts()
        self.app = Beside(options.tui)
        self.exits = ExitLog(steady=True)
        self.failed: list[tuple[str, Exception]] = []
        """The parts that have failed, and why."""
        self.lost: list[str] = []
        """Why a part of the output is not kept."""
        self.cwd, base = here()
        find_command(options.command, os.environ, self.cwd)
        lifeline = stack.enter_context(Lifeline())  # let go of when the others have ended all
        self.launch = stack.enter_context(Launch(self.exits, self.app.aside))
        stack.enter_context(self.interrupts.heard())
        stack.enter_context(self.app)
        self.directory = RunDirectory.create(base, options.run_dir)
        with self._guard("the lifeline of the ranks"):
            lifeline.begin(self.directory.path)
        self.exits.follow(self.directory.exits)
        self.started_s = time.monotonic()
        latest = base == BASE and RunDirectory.latest() == self.directory.path
        self.shown_as = "" if latest else str(self.directory.path)
        """How `distdebug attach` is given this run."""
        self.output: OutputProcess | None = None
        with self._guard("the output of the ranks"):
            self.output = OutputProcess(
                self.directory.path,
                options.log_max_mb,
                colour=not options.ci,
                defuse=options.ci is not None,
                on_lost=self._output_is_lost,
            )
        if options.tui:
            self.app.start(self.directory.path)
        else:
            say(f"watched and recorded; in another terminal: distdebug tui {self.directory.path}")
        self.started = options.faults is None and not options.own_network and not options.several
        if self.started:
            self.start(_WITHOUT)

    def start(self, of_parts: Mapping[str, str], network: str = "") -> None:
        """Starts the command. `of_parts`: variables for it; `network`: as of `Launch.start`."""
        aside = None if self.app.aside is None else self.app.aside.fileno()
        made = environment(
            self.options, self.directory.path, aside, self.output is not None, of_parts
        )
        made.update(key_variables(made, self.directory))
        self.launch.start(
            self.options.command,
            made,
            self.cwd,
            network=network,
            scratch=self.options.scratch,
        )

    @contextlib.contextmanager
    def _guard(self, part: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failed.append((part, error))

    def _output_is_lost(self, why: str) -> None:
        """Reports that the log of the output is lost, in the thread that listens to the drain."""
        self.lost.append(why)
        logs = self.directory.logs
        say(f"what the ranks print is shown, but not kept in {logs}: {why}")


@contextlib.contextmanager
def begun(options: Options) -> Iterator[Begun]:
    """A run from its beginning to its end."""
    # Made first, so that it is left last: nothing that is said before may command a CI system.
    with contextlib.ExitStack() as stack:
        if options.ci is not None:
            from .ci import defused

            stack.enter_context(defused())
        stack.enter_context(no_collection())
        yield Begun(options, stack)
