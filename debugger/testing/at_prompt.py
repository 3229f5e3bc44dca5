"""Shows the prompt of a rank that stands at a breakpoint, or after its error with --pdb, in the
terminal in which pytest runs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ..record.requests.breakpoints import connect, stops
from ..record.safe_text import clean
from ..supervisor.terminal import show_prompt
from .pytest_private import report_of
from .running import RankRun


class Prompt:
    """The prompt of one session. `test` is the one that runs."""

    def __init__(self, config: pytest.Config, capture: Any) -> None:
        self._config = config
        self._capture = capture
        self.test = ""

    def show(self, directory: Path, ranks: Sequence[RankRun]) -> None:
        """Talk to each rank that stands, until it goes on. Where nobody can type (an xdist worker,
        a closed stdin) the rank goes on at once."""
        if self._capture is not None:
            self._capture.suspend_global_capture(in_=True)
        self._config.hook.pytest_enter_pdb(config=self._config, pdb=None)
        left = False
        try:
            for stop in stops(directory):
                for rank in ranks:
                    if rank.pid == stop.pid:
                        self._tell(rank)
                try:
                    connection = connect(directory, stop)
                except OSError:
                    continue  # it has gone on meanwhile
                left = show_prompt(connection, stop, directory) or left
        finally:
            self._config.hook.pytest_leave_pdb(config=self._config, pdb=None)
            if self._capture is not None:
                self._capture.resume_global_capture()
        if left and self._config.option.usepdb:
            pytest.exit("Quitting debugger")

    def _tell(self, rank: RankRun) -> None:
        """Prints what brings us here: the traceback, where there is one."""
        said = [f"{self.test}, rank {rank.number}"]
        for data, _ in rank.reports.values():
            if data["outcome"] == "failed":
                said.append(str(report_of(copy.deepcopy(data), self._config).longrepr))
        sys.stdout.write("\n" + clean("\n".join(said), 10_000, newlines=True) + "\n")
