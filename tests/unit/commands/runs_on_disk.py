"""Run directories for tests of the commands: with a report, killed without one, with logs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from distdebug.record.layout import Definition, GroupState
from distdebug.record.ops import OP_CODES
from distdebug.record.runs.run_directory import BASE, RunDirectory
from distdebug.record.signature import Signature, agreement_key, exact_key, hash64
from distdebug.record.writing.slots import CallDescription, CallOrigin
from distdebug.record.writing.writer import FlightWriter
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast
from tests.unit.reports.documents import of_run

SITE = "/home/user/train.py"


def finished(base: Path = BASE) -> RunDirectory:
    """A run with a report: rank 2 of 4 called something else."""
    run = Run(4)
    run[0, 1, 3].calls(all_reduce(8), waits=True, line=88)
    run[2].calls(broadcast(8, root=0), waits=True, line=91)
    directory = begun(base)
    directory.write_json("report.json", of_run(run))
    directory.close()
    return directory


def begun(base: Path = BASE) -> RunDirectory:
    """A run that a supervisor (this process) still holds; `close` it to end the run."""
    directory = RunDirectory.create(base)
    directory.write_json("run.json", {"command": ["distdebug", "run", "train.py"]})
    return directory


def record(directory: RunDirectory, rank: int, size: int, calls: list[Signature]) -> FlightWriter:
    """The flight record of a rank that made these calls and waits in the last one."""
    writer = FlightWriter(directory.flight(rank))
    writer.claim(rank, size, rank, 0)
    ranks = list(range(size))
    name = {"name": "0", "incarnation": 0, "desc": "default_pg", "ranks": ranks, "backend": "gloo"}
    group = writer.add_group(name)
    assert group is not None
    writer.group_state(group, GroupState.READY)
    for number, signature in enumerate(calls):
        description = CallDescription(
            op_code=OP_CODES[signature.op],
            signature_id=writer.define(Definition.SIGNATURE, signature.to_json()),
            agree=hash64(agreement_key(signature)),
            exact=hash64(exact_key(signature)),
            contribution=0,
            channel=None,
            volatile=None,
        )
        site = writer.define(Definition.SITE, json.dumps([SITE, 80 + rank, "step"]))
        call, thread = writer.begin(group, description, CallOrigin(site), 0)
        if number < len(calls) - 1:
            writer.finish(call, thread)
    return writer


def killed(base: Path = BASE) -> RunDirectory:
    """A run of 3 ranks without a report, whose supervisor is gone; rank 1 called something else."""
    directory = begun(base)
    for rank in range(3):
        odd = rank == 1
        record(directory, rank, 3, [all_reduce(8), broadcast(8) if odd else all_reduce(8)])
    directory.append_line(
        "exits.jsonl", {"pid": os.getpid(), "status": 9, "time_ns": 4_000_000_000_000_000_000}
    )
    directory.close()
    return directory
