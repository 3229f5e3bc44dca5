"""Simulated jobs with a planted truth: who is at fault is named, and nobody else."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest

from distdebug.foreign import flight_recorder, judging
from distdebug.foreign.trace import traced
from tests.unit.foreign import simulated
from tests.unit.foreign.variants import for_json

SEEDS = range(60)
CORRECT_SEEDS = range(80)
"""Of each of two libraries and two looks: 320 correct jobs, of which nothing may be said."""
KINDS = {"op": "op_mismatch", "size": "shape_mismatch", "dtype": "dtype_mismatch"}


@pytest.mark.parametrize("library", ["nccl", "gloo"])
@pytest.mark.parametrize("fault", simulated.FAULTS)
def test_the_planted_truth_is_found(library: str, fault: str) -> None:
    if fault == "device" and library == "gloo":
        pytest.skip("gloo has no device")
    wrong, seen = [], 0
    seeds = CORRECT_SEEDS if fault in ("none", "at_work") else SEEDS
    for seed in seeds:
        job = simulated.job(seed, library, fault)
        dumps = simulated.dumps(job, random.Random(seed))
        trace = traced({rank: read(dump, seed) for rank, dump in dumps.items()})
        found = judging.judge(trace, 0.2 if fault == "at_work" else None)
        # Who waits and nobody can be blamed is said as well; it names nobody.
        said = [(one.kind, one.side, set(one.culprits)) for one in found if one.culprits]
        seen += bool(said)
        named = {rank for _, _, culprits in said for rank in culprits}
        vague = unprovable(job, seed) and (not named or job.rank in named)
        if said != expected(job) and not vague:
            wrong.append((seed, said, expected(job), job.at, job.steps[job.at]))
    assert not wrong, f"{len(wrong)} of {len(seeds)}: {wrong[:3]}"
    assert seen > len(seeds) / 2 or fault in ("none", "at_work")  # the faults are seen, not lost


def expected(job: simulated.Job) -> list[tuple[str, str | None, set[int]]]:
    if job.moving or not simulated.somebody_waits(job):
        return []
    if job.fault in KINDS:
        return [(KINDS[job.fault], None, {job.rank})]
    if job.fault == "device":
        return [("stalled", "device", {job.rank})]
    waited_for = {
        step.op for step in (job.steps[at] for at in fronts(job)) if job.rank in step.ranks
    }
    kind = "unmatched_p2p" if waited_for == {simulated.BATCH} else "missing_rank"
    return [(kind, "host", {job.rank})]


def unprovable(job: simulated.Job, seed: int) -> bool:
    """What no reader can know: that a rank belongs to a group of gloo's in which it has not called
    yet; which of many messages is the one that pends, where the earlier ones are forgotten."""
    step, mine = job.steps[job.at], job.ranks[job.rank]
    if job.library == "gloo":
        waited = {job.steps[at].group for at in fronts(job) if job.rank in job.steps[at].ranks}
        return not waited & {"0", *(job.steps[at].group for at in mine.steps[: mine.issued])}
    form = simulated.form_of(job, random.Random(seed))
    return job.fault == "device" and step.op == simulated.BATCH and form != "whole"


def fronts(job: simulated.Job) -> set[int]:
    """The steps that ranks have issued and wait in, those that the culprit has not issued."""
    culprit = job.ranks[job.rank]
    issued = set(culprit.steps[: culprit.issued])
    return {
        at
        for one in job.ranks.values()
        for at in one.steps[one.done : one.issued]
        if at not in issued
    }


def read(dump: Mapping[str, Any], seed: int) -> flight_recorder.Dump:
    if seed % 4 == 0:
        return flight_recorder.read(json.dumps(for_json(dump)).encode())
    return flight_recorder.read(pickle.dumps(dump, protocol=2))
