"""The faults of one run, from the plan to the report: what the supervisor needs of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..diagnosis.findings import Finding
from ..errors import DistdebugError
from ..faults.injected import FILE, Injected, entry
from ..faults.plan import FILE as PLAN_FILE
from ..faults.plan import VARIABLE, Plan, load
from ..record import network
from ..record.runs.run_directory import RunDirectory
from ..record.safe_files import open_regular
from ..record.snapshot import Rank
from ..reports import injections
from ..reports.stored import Document
from .rank_network.network import Network

MOST_BYTES = 1 << 22
"""Read at once; the rest comes with the next look."""


class FaultWatch:
    """Looks into a run directory again and again. `plan` is None where there is none, or none that
    this version can read; `entries` is all that has been read so far."""

    def __init__(self, directory: Path) -> None:
        self.plan: Plan | None = None
        self.entries: list[Injected] = []
        self._directory = directory
        self._plan_mark: tuple[int, int] | None = None
        self._read_bytes = 0

    def look(self) -> list[Injected]:
        """Returns what has happened since the last look. A program may have added to the plan,
        too."""
        self._read_plan()
        came = [one for one in map(entry, self._lines()) if one is not None]
        self.entries += came
        return came

    def text_of(self, number: int) -> str:
        """The fault with this number, as its user wrote it."""
        faults = self.plan.faults if self.plan is not None else ()
        found = next((fault.text for fault in faults if fault.number == number), None)
        return found if found is not None else f"fault {number}"

    def _read_plan(self) -> None:
        try:
            state = os.stat(self._directory / PLAN_FILE)
        except OSError:
            return
        mark = (state.st_mtime_ns, state.st_ino)
        if mark == self._plan_mark:
            return
        self._plan_mark = mark
        try:
            self.plan = load(self._directory) or self.plan
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
            pass  # the one that was there before still holds

    def _lines(self) -> list[bytes]:
        """Whole lines that are new."""
        try:
            with open(open_regular(self._directory / FILE), "rb") as file:
                file.seek(self._read_bytes)
                data = file.read(MOST_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == MOST_BYTES:
            whole = MOST_BYTES  # no line of ours is that long
        self._read_bytes += whole
        return data[:whole].splitlines()


class Injection:
    """Writes the plan before the ranks start, announces what becomes of it, and reports it.

    Without a plan nothing is written; a program may still make one (`distdebug.inject`). Raises
    DistdebugError where the plan cannot be written: without it the run would mean nothing.
    `own_network`: the number of ranks that are to have a network of their own; 0: none.
    """

    def __init__(
        self,
        plan: Plan | None,
        directory: RunDirectory,
        say: Callable[[str], None],
        own_network: int = 0,
    ) -> None:
        self._directory = directory
        self._say = say
        self._watch = FaultWatch(directory.path)
        self._told: set[tuple[int, int]] = set()
        self._impossible = False
        self.environment = {VARIABLE: "1" if plan is not None else ""}
        """For the ranks."""
        if plan is not None and not directory.write_json(PLAN_FILE, plan.to_json()):
            raise DistdebugError(directory.failures[-1])
        self._network: Network | None = None
        self.network = ""
        """The network namespace where the launcher is to run; "": that of this process."""
        if own_network:
            self._network = Network(own_network, plan or Plan(()), directory.path)
            self.network = self._network.entrances.of_launcher
            self.environment[network.VARIABLE] = self._network.entrances.text

    def close(self) -> None:
        """The run is over, and its network with it."""
        if self._network is not None:
            self._network.close()
            self._network = None

    def look(self) -> bool:
        """Tell what has happened since the last look; whether a fault cannot happen at all in
        this run, so that it should end. Raises DistdebugError where the ranks' network is gone."""
        if self._network is not None:
            self._network.check()
        for one in self._watch.look():
            self._impossible |= bool(one.refused)
            if (one.fault, one.rank) not in self._told:
                self._told.add((one.fault, one.rank))
                self._tell(one)
        return self._impossible

    def settle(
        self,
        report: Document,
        findings: Sequence[tuple[Finding, float | None]],
        ranks: Mapping[int, Rank],
    ) -> int:
        """Put it into the report, which was built of these findings; returns its exit code."""
        self.look()
        if self._watch.plan is not None:
            injections.add(report, findings, self._watch.plan, self._watch.entries, ranks)
        code: int = report["exit_code"]
        return code

    def _tell(self, one: Injected) -> None:
        text = self._watch.text_of(one.fault)
        if one.refused:
            sentence = f"not injected: {text} in rank {one.rank}: {one.refused}"
        else:
            sentence = f"injected {text} in rank {one.rank}"
        self._say(sentence)
        self._directory.append_event(
            "not_injected" if one.refused else "injected",
            sentence,
            fault=text,
            number=one.fault,
            rank=one.rank,
            where=one.where,
            happened_ns=one.time_ns,
        )
