"""The ranks of a run, as something that can be looked into and ended: what `run_end` asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from ..diagnosis.findings import Finding
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import Rank
from .command.ending import end_tree, forward
from .command.launch import Launch
from .stacks.evidence import Evidence, gather


class RunRanks(Protocol):
    """The actions on the ranks of a run, on this host or on others."""

    def stacks(self, ranks: Mapping[int, Rank], native: bool, timeout_s: float) -> Evidence:
        """The stacks of those that are alive, kept in the run directory."""

    def tell(self, finding: Finding) -> bool:
        """Have every rank that can still run Python raise the finding; False where none hears."""

    def left(self) -> bool:
        """Whether any process of the run is left."""

    def forward(self, number: int, grace_s: float, hasten: Callable[[], bool]) -> None:
        """Hand a signal on to the command, and give it that time to end; or until `hasten()`."""

    def end(self, grace_s: float, quiet: bool = False, spared: Collection[int] = ()) -> None:
        """End what is left but `spared`: ask politely, and kill after `grace_s`. `quiet`: the
        launcher first, so that it prints nothing about the ranks it loses."""


class LocalRanks:
    """The processes below one command on this host."""

    def __init__(self, launch: Launch, directory: RunDirectory) -> None:
        self._launch = launch
        self._directory = directory

    def stacks(self, ranks: Mapping[int, Rank], native: bool, timeout_s: float) -> Evidence:
        return gather(self._directory, ranks, native, timeout_s)

    def tell(self, finding: Finding) -> bool:
        return self._directory.raise_in_ranks(finding.kind, finding.message, finding.cause)

    def left(self) -> bool:
        return bool(self._launch.descendants())

    def forward(self, number: int, grace_s: float, hasten: Callable[[], bool]) -> None:
        forward(self._launch, number, grace_s, hasten)

    def end(self, grace_s: float, quiet: bool = False, spared: Collection[int] = ()) -> None:
        end_tree(self._launch, grace_s, silence_launcher=quiet, spared=spared)
