"""Dumps in which fields have values that torch never writes: whatever can be read is judged, and
goes into flight records; nothing is raised."""

from __future__ import annotations

import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from distdebug.foreign import flight_recorder, judging
from distdebug.foreign.as_snapshot import as_snapshot, write_records
from distdebug.foreign.trace import traced
from tests.unit.foreign import simulated

ODD: tuple[Any, ...] = (
    *(None, -1, 0, 1 << 70, -(1 << 63), "", "\x1b[2J", [], {}, [[[]]], True, 1.5, b"x", ()),
    *("nccl:send 0->0", "nccl:recv 5<-?", "nccl:send 99999999->1", "[0, 0]", "[1,2,3,4,5]"),
    *(("0", "default_pg"), ["9", "x"], float("nan")),
)
JOBS = 100


def test_damaged_dumps_are_judged_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    judged = 0
    for seed in range(JOBS):
        chance = random.Random(seed)
        library = chance.choice(("nccl", "gloo"))
        fault = chance.choice([one for one in simulated.FAULTS if one != "device"])
        dumps = {}
        for rank, dump in simulated.dumps(simulated.job(seed, library, fault), chance).items():
            damage(dump, chance)
            with suppress(flight_recorder.NoDump):
                written_ns = chance.choice((0, simulated.START_NS + 10**11))
                dumps[rank] = flight_recorder.read(pickle.dumps(dump), written_ns)
        judging.judge(traced(dumps), chance.choice((None, 60.0, 0.1)))
        judged += bool(dumps)
        if seed % 10 == 0:
            folder = tmp_path / str(seed)
            folder.mkdir()
            write_records(as_snapshot(traced(dumps), simulated.START_NS + 10**12), folder)
            assert len(list(folder.iterdir())) == len(dumps)
    assert judged > JOBS * 0.9


def test_no_rank_is_accused_of_calls_that_could_not_be_read() -> None:
    job = simulated.job(1, "nccl", "none")
    dumps = simulated.dumps(job, random.Random(0))
    del dumps[0]["entries"][-1]["process_group"]
    read = {rank: flight_recorder.read(pickle.dumps(dump)) for rank, dump in dumps.items()}
    assert read[0].damaged == 1
    assert judging.judge(traced(read)) == []


def damage(dump: dict[str, Any], chance: random.Random) -> None:
    """Some fields have odd values, some entries are no entries, or are there twice."""
    entries = dump["entries"]
    for _ in range(chance.randint(0, 6) if entries else 0):
        at = chance.randrange(len(entries))
        if chance.random() < 0.2:
            entries[at] = chance.choice((*ODD, entries[0]))
        elif isinstance(entries[at], dict) and entries[at]:
            entries[at][chance.choice(list(entries[at]))] = chance.choice(ODD)
    if chance.random() < 0.3:
        for group in dump["pg_config"].values():
            group[chance.choice(("ranks", "name", "desc"))] = chance.choice(ODD)
    if chance.random() < 0.2:
        count = {"last_enqueued_collective": 3, "last_completed_collective": chance.choice(ODD)}
        dump["pg_status"] = {"0": chance.choice(ODD), "1": count}
