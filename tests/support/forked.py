"""Worlds of forked ranks with the supervisor's own eyes on them: a run costs no import of torch."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debugger.diagnosis.findings import Finding
from debugger.diagnosis.limits import Limits
from debugger.faults import injected, plan
from debugger.faults.plan import Fault
from debugger.record.exits import ExitLog
from debugger.record.records import Records, newest_ranks
from debugger.record.run_directory import RunDirectory
from debugger.record.wording import finding_line
from debugger.supervisor.evidence import gather
from debugger.supervisor.oom import OomWatch
from debugger.supervisor.processes import ProcessTable
from debugger.supervisor.watch import Policy, Watch
from tests.support import runs

_SERVER = Path(__file__).parents[1] / "rank" / "scripts" / "fork_server.py"
LIMIT_S = 60.0
_LEAVE_S = 3.0


@dataclass(frozen=True)
class World:
    """How a world of ranks ended: the verdict (None: all is well), and all findings."""

    directory: Path
    verdict: Finding | None
    findings: Sequence[Finding]
    statuses: Mapping[int, int]

    def log(self, rank: int, stream: str = "out") -> str:
        """What a rank has printed."""
        return (self.directory / "logs" / f"{rank}.{stream}").read_text()

    def explain(self) -> str:
        """For the message of a failed assertion."""
        logs = sorted((self.directory / "logs").glob("*.err"))
        texts = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in logs]
        injected = self.directory / "injected.jsonl"
        texts.append(injected.read_text() if injected.exists() else "nothing was injected")
        return "\n".join([*map(str, self.findings), *texts, str(dict(self.statuses))])


class ForkServer:
    """Runs one world after another. Ends with its `with` block."""

    def __enter__(self) -> ForkServer:
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=runs.environment({"OMP_NUM_THREADS": "1"}),
            start_new_session=True,
        )
        return self

    def __exit__(self, *_exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

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
        exits = ExitLog()
        exits.follow(made.exits)
        limits = Limits(hang_timeout_s=hang_timeout_s, notice_after_s=hang_timeout_s / 2)
        table = ProcessTable(exits, None, OomWatch())
        watch = Watch(Records(made.ranks), table, Policy(limits=limits, world_size=size))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables = {
            "DISTDEBUG_RUN_DIR": str(directory),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            plan.VARIABLE: "1" if faults else "",
            **environment,
        }
        order = {
            "directory": str(directory),
            "size": size,
            "script": str(script),
            "environment": variables,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pids = self._answer(LIMIT_S)
        assert pids, "the fork server did not answer"
        until = time.monotonic() + LIMIT_S
        statuses = None
        look = watch.look()
        while look.verdict is None and statuses is None and time.monotonic() < until:
            statuses = self._answer(watch.pause_s)
            look = watch.look(finished=statuses is not None)
        verdict = look.verdict
        if verdict is not None and statuses is None:
            evidence = gather(made, newest_ranks(look.snapshots), False, 5.0)
            verdict = evidence.refine(verdict)
            told = {"kind": verdict.kind, "cause": verdict.cause}
            told["text"] = finding_line(verdict.kind, verdict.message)
            made.write_json(made.verdict.name, told)
        if statuses is None:
            statuses = self._answer(_LEAVE_S if verdict is not None else 0)
        if statuses is None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            statuses = self._answer(LIMIT_S)
        made.close()
        world = World(directory, verdict, look.findings, statuses or {})
        assert time.monotonic() < until, f"no end within {LIMIT_S} s\n{world.explain()}"
        return world

    def _answer(self, limit_s: float) -> Any:
        """The next line of the server; None where none comes in time."""
        stream = self._process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], limit_s)
        return json.loads(stream.readline()) if ready else None
