"""The faults of one run, from the plan to the report: what the supervisor needs of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..diagnosis.findings import Finding
from ..errors import DistdebugError, UsageError
from ..faults.injected import FaultWatch, Injected
from ..faults.plan import FILE, VARIABLE, Plan
from ..hook.loading import command
from ..record import network
from ..record.network import Entrances
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import Rank
from ..reports import injections
from ..reports.stored import Document
from .limits import GONE_WITHIN_S


class Network:
    """The ranks' own network, by the process that makes and carries it: a namespace for each of
    `ranks` ranks and one for their launcher, with the plan's faults of links between them. Raises
    UsageError where this machine makes none."""

    def __init__(self, ranks: int, plan: Plan, directory: Path) -> None:
        self._switch = subprocess.Popen(
            command("supervisor.rank_network.switch", alone=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        request = {"ranks": ranks, "directory": str(directory), "plan": plan.to_json()}
        try:
            self._switch.stdin.write(json.dumps(request).encode() + b"\n")
            self._switch.stdin.flush()
            answer = json.loads(self._switch.stdout.readline() or b"{}")
        except (OSError, ValueError):
            answer = {}
        if "entrances" not in answer:
            self.close()
            why = answer.get("failed", "the process that makes them has ended")
            raise UsageError(f"--netns: this machine gives no network namespaces: {why}")
        self.entrances = Entrances.read(answer["entrances"])

    def check(self) -> None:
        """Raises DistdebugError where it is there no more: without it no rank hears of another."""
        if self._switch.poll() is not None:
            raise DistdebugError(
                "the process that carries the network between the ranks has ended "
                f"(status {self._switch.returncode}); what the ranks did since then means nothing"
            )

    def close(self) -> None:
        """Take it down; whoever is still in it has no network any more."""
        for stream in (self._switch.stdin, self._switch.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # the other end was gone already
        try:
            self._switch.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._switch.kill()
            self._switch.wait()


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
        if plan is not None and not directory.write_json(FILE, plan.to_json()):
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
