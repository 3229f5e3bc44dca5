"""Folders whose names, times or gaps tell nothing, or what is not so: nobody is accused for it."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from distdebug.foreign import dump_files, judging
from distdebug.foreign.trace import traced
from tests.unit.foreign import variants

NOW_S = 1_750_000_000
Rows = list[dict[str, Any]]
Groups = Mapping[str, Sequence[int]]
WORLD = {"world": range(4)}
MESH = [
    {"world": range(4), f"row{rank // 2}": [rank // 2 * 2, rank // 2 * 2 + 1], f"col{rank % 2}": c}
    for rank, c in enumerate(([0, 2], [1, 3], [0, 2], [1, 3]))
]
CASES = variants.originals()


def rows(group: str, seqs: int, *, stuck: bool = False, library: str = "nccl") -> Rows:
    return [
        {
            "record_id": seq - 1,
            "pg_id": 0,
            "process_group": (group, "default_pg" if group == "0" else ""),
            "collective_seq_id": seq,
            "profiling_name": f"{library}:all_reduce",
            "time_created_ns": (NOW_S + seq) * 10**9,
            "state": "scheduled" if library == "gloo" or (stuck and seq == seqs) else "completed",
            "retired": not (stuck and seq == seqs),
        }
        for seq in range(1, seqs + 1)
    ]


def message(text: str, done: bool) -> Rows:
    row = {**rows("pipe", 1)[0], "profiling_name": f"nccl:{text}", "is_p2p": True}
    return [{**row, "p2p_seq_id": 1, "state": "completed" if done else "scheduled"}]


def put(
    file: Path, entries: Rows, groups: Groups, written_s: float = NOW_S + 90, **more: Any
) -> None:
    config = {n: {"name": n, "desc": "", "ranks": str(list(r))} for n, r in groups.items()}
    made = {"version": "2.10", "entries": entries, "pg_config": config, **more}
    file.parent.mkdir(parents=True, exist_ok=True)
    as_json = file.suffix == ".json"
    file.write_bytes(json.dumps(made).encode() if as_json else pickle.dumps(made, 2))
    os.utime(file, (written_s, written_s))


def accused(folder: Path) -> set[int]:
    found = dump_files.load(folder)
    (job,) = found.jobs
    return {r for one in judging.judge(traced(job.dumps), job.age_s) for r in one.culprits}


# -- whose dump it is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("kiwi", "plum", "fig", "lime"),
        ("copy (1)", "copy (2)", "copy (3)", "copy (4)"),
        ("rank_2", "rank_3", "rank_0", "rank_1"),
        ("x/kiwi", "x/plum.json", "y/fig", "y/lime.json"),
    ],
)
def test_a_rank_that_is_alone_in_all_its_groups_is_known(
    names: Sequence[str], tmp_path: Path
) -> None:
    for rank, name in enumerate(names):
        calls = rows(f"row{rank // 2}", 3 + (rank == 3), stuck=rank == 3)
        put(tmp_path / "run-3" / name, calls, MESH[rank])
    assert accused(tmp_path / "run-3") == {2}


def test_a_message_tells_whose_dump_it_is(tmp_path: Path) -> None:
    calls = [message("send 0->1", True), message("recv 1<-0", True), message("recv 2<-1", False)]
    for name, one in zip(("fig", "kiwi", "plum"), calls, strict=True):
        put(tmp_path / name, one, {"pipe": (4, 7, 9)})
    assert accused(tmp_path) == {7}


def test_an_idle_rank_has_the_number_that_its_groups_allow(tmp_path: Path) -> None:
    for rank in range(4):
        put(tmp_path / f"host9_rank{rank}", [], {"world": range(4), "own": [rank, 3 - rank]})
    (job,) = dump_files.load(tmp_path).jobs
    assert list(job.dumps) == [0, 1, 2, 3]


@pytest.mark.parametrize("left", ["other", "copy"])
def test_what_is_left_over_is_the_last_rank_unless_it_is_a_copy(left: str, tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path / f"rank_{rank}", rows("world", 2, stuck=True), WORLD)
    put(tmp_path / "kiwi", rows("world", 1 if left == "other" else 2, stuck=left != "other"), WORLD)
    (job,) = dump_files.load(tmp_path).jobs
    assert (3 in job.dumps) == (left == "other")
    assert accused(tmp_path) == {3}


@pytest.mark.parametrize("names", [("fig", "kiwi"), ("part 1", "part 2")])
def test_of_twins_of_which_nothing_tells_the_rank_none_is_named(
    names: Sequence[str], tmp_path: Path
) -> None:
    for seqs, name in enumerate(names, 1):
        put(tmp_path / "1" / name, rows("world", seqs, stuck=seqs == 2), {"world": (0, 1)})
    found = dump_files.load(tmp_path / "1")
    assert not found.jobs
    assert all(any(name in note for note in found.notes) for name in names)


# -- when it was written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offs_s", "named"),
    [
        ((90, 90, 90, 90), {1, 3}),
        ((-25000, -25090, -25000, -25010), {1, 3}),
        ((-9e6, 95, -9e6, 80), {1, 3}),
        ((90, 1.5, 90, 1.5), {1, 3}),
    ],
)
def test_times_that_cannot_be_of_writing_free_nobody(
    offs_s: Sequence[float], named: set[int], tmp_path: Path
) -> None:
    for rank, off_s in enumerate(offs_s):
        seqs = 2 - rank % 2
        put(tmp_path / f"r{rank}", rows("world", seqs, stuck=seqs == 2), WORLD, NOW_S + off_s)
    assert accused(tmp_path) == named


# -- nothing is on record --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".json"])
@pytest.mark.parametrize(
    ("status", "groups", "named"),
    [
        ({}, {"": (0, 1)}, {1}),
        ({}, {}, set()),
        ({"0": {"last_enqueued_collective": 1}}, {"": (0, 1)}, set()),
    ],
)
def test_a_recorder_that_was_on_and_has_nothing_tells_of_no_call(
    suffix: str, status: object, groups: Groups, named: set[int], tmp_path: Path
) -> None:
    put(tmp_path / f"rank_0{suffix}", rows("0", 1, library="gloo"), {"": (0, 1)})
    put(tmp_path / f"rank_1{suffix}", [], groups, pg_status=status)
    assert accused(tmp_path) == named


@pytest.mark.parametrize("call", ["gloo:broadcast", "nccl:all_reduce"])
def test_a_call_that_says_nothing_of_the_others_accuses_no_empty_record(
    call: str, tmp_path: Path
) -> None:
    """A root is over with its broadcast before the others come; what NCCL has completed had all."""
    row = {**rows("0", 1, library=call[:4])[0], "profiling_name": call}
    put(tmp_path / "rank_0", [row], {"0": (0, 1)})
    put(tmp_path / "rank_1", [], {"0": (0, 1)}, pg_status={})
    assert accused(tmp_path) == set()


# -- a dump that is not there ----------------------------------------------------------------------


def test_who_has_no_dump_is_missing_and_not_accused_beside_one_that_has(tmp_path: Path) -> None:
    for rank in (0, 1):
        put(
            tmp_path / f"rank_{rank}", rows("world", 2 - rank, stuck=rank == 0), {"world": range(3)}
        )
    (job,) = dump_files.load(tmp_path).jobs
    (found,) = judging.judge(traced(job.dumps), job.age_s)
    assert (found.culprits, found.missing, found.side) == ((1,), (2,), "host")
    assert "rank 1 never issued" in found.message
    assert "no dump of rank 2 is here" in found.message


@pytest.mark.parametrize(("world", "named"), [(2, (1,)), (16, ())])
def test_one_dump_alone_names_only_who_alone_can_be_at_fault(
    world: int, named: tuple[int, ...], tmp_path: Path
) -> None:
    put(tmp_path / "rank_0", rows("world", 2, stuck=True), {"world": range(world)})
    (job,) = dump_files.load(tmp_path).jobs
    (found,) = judging.judge(traced(job.dumps), job.age_s)
    assert (found.culprits, found.missing) == (named, tuple(range(1, world)))
    assert found.side is None
    assert "left" not in found.message
    assert "never issued" not in found.message


# -- all of it at once, on recorded jobs -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", CASES)
def test_recorded_jobs_whose_files_tell_nothing(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    case = CASES[name]
    numbers = chance.sample(range(40), 16)
    lost = chance.sample(range(16), chance.choice((0, 0, 1, 2, 13, 15)))
    nested, numbered, old = chance.random() < 0.4, chance.random() < 0.5, chance.random() < 0.4
    for rank, dump in case.dumps.items():
        if rank in lost:
            continue
        word = f"piece ({numbers[rank]})" if numbered else "".join(chance.choices("abcdef", k=9))
        file = tmp_path / f"run{seed}" / (f"n{rank % 3}" * nested) / word
        file.parent.mkdir(parents=True, exist_ok=True)
        if chance.random() < 0.5:
            file = file.with_name(f"{file.name}.json")
            file.write_text(json.dumps(variants.for_json(dump)))
        else:
            file.write_bytes(pickle.dumps(dump, protocol=2))
        if old:
            os.utime(file, (1.7e9 + chance.randrange(10**6),) * 2)
    found = dump_files.load(tmp_path / f"run{seed}")
    (job,) = found.jobs
    assert set(job.dumps) == set(case.dumps) - set(lost)
    assert all(
        job.dumps[rank].entries[0].created_ns for rank in job.dumps if job.dumps[rank].entries
    )
    findings = judging.judge(traced(job.dumps), job.age_s)
    named = {rank for one in findings for rank in one.culprits}
    assert named <= case.culprits | set(lost)
    if len(lost) < 2:
        assert named - set(lost) == case.culprits - set(lost)
        assert {one.side for one in findings} == {case.side}
