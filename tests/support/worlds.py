"""Worlds of forked ranks with the eyes of the supervisor on them, and nothing else of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.limits import Limits
from distdebug.faults import injected, plan
from distdebug.faults.plan import Fault
from distdebug.record.reading.records import Records, newest_ranks
from distdebug.record.requests.supervision import Verdict
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.wording import finding_line
from distdebug.supervisor.machine.processes import ProcessTable
from distdebug.supervisor.stacks.evidence import gather
from distdebug.supervisor.watch import LocalReader, Policy, Watch
from distdebug.system.memory import OomWatch
from tests.support import runs
from tests.support.ports import unclaimed_port
from tests.support.torch_loaded import Forked, TorchLoaded, request

LIMIT_S = 200.0
_LEAVE_S = 3.0


@dataclass(frozen=True)
class World:
    """How a world of ranks ended: the verdict (None: all is well), all findings, and the exit codes
    (-n for signal n)."""

    directory: Path
    verdict: Finding | None
    findings: Sequence[Finding]
    codes: Mapping[int, int]

    def log(self, rank: int, stream: str = "out") -> str:
        """What a rank has printed."""
        return (self.directory / "logs" / f"{rank}.{stream}").read_text()

    def explain(self) -> str:
        """For the message of a failed assertion."""
        logs = sorted((self.directory / "logs").glob("*.err"))
        texts = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in logs]
        injected = self.directory / "injected.jsonl"
        texts.append(injected.read_text() if injected.exists() else "nothing was injected")
        return "\n".join([*map(str, self.findings), *texts, str(dict(self.codes))])


class Worlds:
    """Runs one world after another."""

    def __init__(self, loaded: TorchLoaded) -> None:
        self._loaded = loaded

    def run(
        self,
        directory: Path,
        size: int,
        script: Path,
        environment: Mapping[str, str],
        faults: Sequence[Fault] = (),
        hang_timeout_s: float = 10.0,
        before: Sequence[dict[str, Any]] = (),
    ) -> World:
        """Run a world to its end, or to the verdict, which its ranks then raise. `before`: what of
        the faults has happened already."""
        made = RunDirectory.create(directory.parent, directory)
        if faults:
            made.write_json(plan.FILE, plan.Plan(tuple(faults)).to_json())
        for entry in before:
            made.append_line(injected.FILE, entry)
        variables = {
            "DISTDEBUG_RUN_DIR": str(directory),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(unclaimed_port()),
            plan.VARIABLE: "1" if faults else "",
            **environment,
        }
        order = request(
            directory, runs.environment(variables), directory, directory, script=str(script)
        )
        ranks = []
        for process, channel in self._loaded.fork("tests.support.world_rank:main", order, size):
            channel.close()
            ranks.append(process)
        limits = Limits(hang_timeout_s=hang_timeout_s, notice_after_s=hang_timeout_s / 2)
        table = ProcessTable(ranks[0].exits, None, OomWatch())
        reader = LocalReader(Records(made.ranks), table, size)
        watch = Watch(reader, Policy(limits=limits))
        until = time.monotonic() + LIMIT_S
        look = watch.look()
        while look.verdict is None and time.monotonic() < until:
            if _all_end(ranks, watch.pause_s):
                look = watch.look(finished=True)
                break
            look = watch.look()
        verdict = look.verdict
        if verdict is not None and not _all_end(ranks, 0):
            evidence = gather(made, newest_ranks(look.snapshots), False, 5.0)
            verdict = evidence.refine(verdict)
            told = Verdict(verdict.kind, finding_line(verdict.kind, verdict.message), verdict.cause)
            made.write_json(made.verdict.name, told.to_json())
            _all_end(ranks, _LEAVE_S)
        for process in ranks:
            process.kill()
        codes = {rank: process.wait(LIMIT_S) for rank, process in enumerate(ranks)}
        made.close()
        world = World(directory, verdict, look.findings, codes)
        assert time.monotonic() < until, f"no end within {LIMIT_S} s\n{world.explain()}"
        return world


def _all_end(ranks: Sequence[Forked], limit_s: float) -> bool:
    """Whether all have ended within that time."""
    until = time.monotonic() + limit_s
    try:
        for process in ranks:
            process.wait(max(0.0, until - time.monotonic()))
    except TimeoutError:
        return False
    return True
