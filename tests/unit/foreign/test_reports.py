"""`distdebug report` on a folder of dumps, as a user types it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from tests.unit.foreign import variants


def test_the_verdict_is_reported_and_its_code_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants.originals()["lock_gil_1st"].write(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "suspected: ranks 9,14 never issued" in text
    assert main(["report", str(tmp_path), "--exit-code", "--json"]) == 93
    report = json.loads(capsys.readouterr().out)
    assert report["outcome"] == "missing_rank"
    assert report["findings"][0]["culprits"] == [9, 14]
    assert report["findings"][0]["side"] == "host"
    lacks = ["reduce_op", "root", "splits", "tag", "unformed_groups"]
    assert report["findings"][0]["not_in_record"] == lacks
    assert main(["report", str(tmp_path), "--junit"]) == 0
    assert "missing_rank" in (junit := capsys.readouterr().out)
    assert ", last call" not in junit


def test_a_mismatch_has_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        op = "nccl:broadcast" if rank == 1 else "nccl:all_reduce"
        write(
            tmp_path / f"rank_{rank}", [entry(0, "nccl:all_reduce", 1), entry(1, op, 2, 40 + rank)]
        )
    assert main(["report", str(tmp_path), "--json", "--exit-code"]) == 91
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert (finding["kind"], finding["culprits"], finding["seq"]) == ("op_mismatch", [1], 1)
    assert finding["proven"]
    assert finding["ranks"]["1"]["location"] == {
        "file": "/x/train.py",
        "line": 41,
        "function": "step",
    }
    assert main(["report", str(tmp_path), "--calls", "1"]) == 0
    assert "rank 1\n" in (calls := capsys.readouterr().out)
    assert "broadcast(float32[8]) at train.py:41 in step" in calls
    assert main(["report", str(tmp_path), "--traffic"]) == 0
    assert "broadcast" in capsys.readouterr().out


def steps(rank: int, wrong: list[int], first: int = 0) -> list[dict[str, Any]]:
    """Calls from three lines in each of 24 steps, but in one of rank 1's. All make 72."""
    made = [wrong if (rank, step) == (1, 10) else [7, 8, 9] for step in range(24)]
    lines = [line for step in made for line in step]
    return [
        entry(seq, "nccl:all_reduce", seq + 1, line, state="completed")
        for seq, line in enumerate([*lines, 30][:72])
    ][first:]


@pytest.mark.parametrize("first", [0, 14])
@pytest.mark.parametrize(
    ("wrong", "said", "seq"),
    [([7, 9], "skipped train.py:8", 31), ([8, 7, 9], "swapped train.py:8", 30)],
)
def test_lines_that_part_are_a_warning(
    wrong: list[int],
    said: str,
    seq: int,
    first: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank in range(3):
        write(tmp_path / f"rank_{rank}", steps(rank, wrong, first + rank if first else 0))
    assert main(["report", str(tmp_path), "--json", "--exit-code"]) == 0
    report = json.loads(capsys.readouterr().out)
    (found,) = report["findings"]
    assert (report["outcome"], found["kind"], found["severity"]) == ("ok", "misaligned", "warning")
    assert (found["seq"], found["culprits"]) == (seq, [1])
    assert found["message"].startswith(f"rank 1 {said}")


def test_a_mismatch_says_where_lines_parted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        usual, odd = entry(71, "nccl:all_reduce", 72, 9), entry(71, "nccl:broadcast", 72, 40)
        write(tmp_path / f"rank_{rank}", [*steps(rank, [7, 9])[:71], odd if rank == 1 else usual])
    assert main(["report", str(tmp_path), "--json", "--exit-code"]) == 91
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["kind"], found["culprits"], found["parted_at"]) == ("op_mismatch", [1], 31)
    assert found["details"][0].startswith("the ranks' lines part at #31: rank 1 skipped train.py:8")


def test_without_stacks_lines_are_not_in_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        made = [{**one, "frames": []} for one in steps(rank, [7, 9])]
        write(tmp_path / f"rank_{rank}", made[:71])
    assert main(["report", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    assert "lines are not in this record" in report["notes"][0]


def test_a_job_that_is_done_is_not_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        write(tmp_path / f"rank_{rank}", [entry(0, "nccl:all_reduce", 1, state="completed")])
    assert main(["report", str(tmp_path), "--exit-code"]) == 0
    assert capsys.readouterr().out.startswith("OK  3 ranks")


@pytest.mark.parametrize("age_s", [0.2, 90.0])
def test_what_is_not_concluded_of_a_job_at_work_is_noted(
    age_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        file = tmp_path / f"rank_{rank}"
        calls = [entry(0, "nccl:all_reduce", 1, state="completed"), entry(1, "nccl:barrier", 2)]
        write(file, calls[: 1 + min(rank, 1)])
        os.utime(file, (10**9 + age_s, 10**9 + age_s))
    main(["report", str(tmp_path), "--json"])
    report = json.loads(capsys.readouterr().out)
    at_work = age_s < 1
    assert (report["outcome"] == "ok") == at_work
    noted = "If it stands still all the same, rank 0 never issued" in " ".join(report["notes"])
    assert noted == at_work


def test_two_jobs_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(tmp_path / f"old_{rank}", [entry(0, "nccl:all_reduce", 1, at_ns=10**18)])
        write(
            tmp_path / f"new_{rank}",
            [entry(0, "nccl:barrier", 1, at_ns=2 * 10**18, state="completed")],
        )
    assert main(["report", str(tmp_path), "--json"]) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "dumps of 2 jobs lie here; this is the newest" in notes
    assert "new_" in notes
    assert "old_" in notes


@pytest.mark.parametrize("what", ["global", "cut", "json", "unreadable"])
def test_a_hostile_file_is_one_sentence(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rank_0", [entry(0, "nccl:all_reduce", 1)])
    bad = tmp_path / "rank_1"
    if what == "global":
        bad.write_bytes(pickle.dumps({"entries": [os.getcwd]}))
    elif what == "cut":
        bad.write_bytes(b"\x80\x02}q")
    elif what == "json":
        bad.write_text('{"entries": ' + "[" * 100_000)
    else:
        bad.write_bytes(b"\x80\x02}.")
        bad.write_bytes(pickle.dumps([1, 2]))
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "rank_1" in said


def test_fifos_and_links_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "rank_0", [entry(0, "nccl:all_reduce", 1, state="completed")])
    os.mkfifo(tmp_path / "rank_1.pipe")
    (tmp_path / "rank_2").symlink_to("/dev/zero")
    assert main(["report", str(tmp_path)]) == 0


def entry(
    number: int,
    name: str,
    seq: int,
    line: int = 7,
    *,
    state: str = "scheduled",
    at_ns: int = 10**18,
) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": at_ns + number,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/v/site-packages/torch/x.py",
                "line": 1,
            },
            {"name": "step", "filename": "/x/train.py", "line": line},
        ],
    }


def write(file: Path, entries: list[dict[str, Any]], ranks: str = "") -> None:
    ranks = ranks or ("[0, 1, 2]" if "rank" in file.name else "[0, 1]")
    file.write_bytes(
        pickle.dumps(
            {
                "version": "2.10",
                "comm_lib_version": "2.27.3",
                "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
                "pg_status": {},
                "entries": entries,
            }
        )
    )
