"""Names of dumps: which rank a file is of, which files are one job, and which are copies."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.errors import UsageError
from distdebug.foreign import dump_files, flight_recorder
from distdebug.foreign.plain_pickle import may_be_deep
from tests.unit.foreign.test_reports import entry, write

HOSTS = ("a3f", "b71", "c0")


@pytest.mark.parametrize(
    "name",
    [
        "rank_{rank}",
        "rank_{rank:05}",
        "comm_lib_trace_rank_{rank}.{host}",
        "{host}_trace_{rank}.pkl",
        "gpu-node-1{rank}_rank{rank}.pickle",
        "rank{rank}-of-3.json5",
        "rank_{rank}/trace",
        "node{rank}/_dump_{rank}",
        "torchcomm_fr_trace_{rank}",
        "hccl_trace_rank_{rank}.2026-11-23",
    ],
)
def test_the_rank_is_told_by_the_name(name: str, tmp_path: Path) -> None:
    for rank in range(3):
        file = tmp_path / name.format(rank=rank, host=HOSTS[rank])
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, [entry(0, "nccl:all_reduce", 1 + rank, 10 + rank)], "[0, 1, 2]")
    (job,) = dump_files.load(tmp_path).jobs
    assert {rank: dump.entries[0].seq for rank, dump in job.dumps.items()} == {0: 0, 1: 1, 2: 2}


def test_jobs_that_differ_in_a_number_are_two(tmp_path: Path) -> None:
    for job in (7, 8):
        for rank in range(3):
            calls = [entry(0, "nccl:barrier", 1, at_ns=job * 10**17)]
            write(tmp_path / f"job{job}_rank_{rank}", calls, "[0, 1, 2]")
    jobs = dump_files.load(tmp_path).jobs
    assert [len(job.dumps) for job in jobs] == [3, 3]
    assert jobs[0].newest_ns > jobs[1].newest_ns


@pytest.mark.parametrize("world", ["[0, 1, 2]", "[0, 1, 2, 3]"])
def test_two_jobs_that_begin_at_one_moment_are_two(world: str, tmp_path: Path) -> None:
    first = entry(0, "nccl:all_reduce", 1)
    for job, ranks in (("old", "[0, 1, 2]"), ("new", world)):
        (tmp_path / job).mkdir()
        # Where the worlds are the same it is the second call that tells the jobs apart.
        second = entry(1, "nccl:all_reduce" if job == "old" else "nccl:barrier", 2)
        for rank in range(3):
            write(tmp_path / job / f"rank_{rank}", [first, second], ranks)
    jobs = dump_files.load(tmp_path).jobs
    assert [len(job.dumps) for job in jobs] == [3, 3]


def test_a_later_dump_of_the_same_recorder_is_no_job_of_its_own(tmp_path: Path) -> None:
    calls = [entry(at, "nccl:barrier", 1 + at) for at in range(3)]
    for at, folder in enumerate(("early", "late")):
        (tmp_path / folder).mkdir()
        for rank in range(2):
            write(tmp_path / folder / f"rank_{rank}", calls[at : at + 2], "[0, 1]")
    (job,) = dump_files.load(tmp_path).jobs
    assert {entry.seq for dump in job.dumps.values() for entry in dump.entries} <= {0, 1, 2}


@pytest.mark.parametrize(("name", "code"), [("config.json", 0), ("rank_2", 2)])
def test_what_is_named_otherwise_and_holds_no_record_is_left_aside(
    name: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}", [entry(0, "nccl:barrier", 1, state="completed")], "[0, 1]")
    (tmp_path / name).write_text('{"learning_rate": 0.1}')
    (tmp_path / "memory.pickle").write_bytes(pickle.dumps({"segments": []}))
    assert main(["report", str(tmp_path)]) == code
    assert ("holds no flight record" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(("known", "code"), [(False, 2), (True, 0)])
def test_a_dump_of_which_no_entry_can_be_read_is_not_in_order(
    known: bool, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = {"seq_id": 1, "pg_name": "0", "profiling_name": "nccl:barrier"}
    rows = [entry(0, "nccl:barrier", 1, state="completed")] * known
    write(tmp_path / "rank_0", [*rows, strange, strange], "[0]")
    assert main(["report", str(tmp_path)]) == code
    shown = capsys.readouterr()
    assert "a form that is not known" in shown.err or "2 entries could not be read" in shown.out


def test_a_copy_is_no_job_of_its_own(tmp_path: Path) -> None:
    for rank in range(3):
        for name in (f"rank_{rank}", f"rank_{rank}.bak"):
            write(tmp_path / name, [entry(0, "nccl:barrier", 1)], "[0, 1, 2]")
    (job,) = dump_files.load(tmp_path).jobs
    assert list(job.dumps) == [0, 1, 2]


def hostile(what: str, file: Path) -> None:
    plain = pickle.dumps({"entries": [entry(0, "nccl:barrier", 1)]}, protocol=2)
    ranks = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 999999999]"}}
    match what:
        case "global":
            file.write_bytes(pickle.dumps({"entries": [os.getcwd]}))
        case "gigabytes":
            file.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.")
        case "memo":
            file.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
        case "deep":
            file.write_bytes(b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".")
        case "deep_key":
            file.write_bytes(b"\x80\x02}K\x01" + b"\x85" * 500_000 + b"K\x01s.")
        case "deep_key_behind_numbers":
            numbers = b"X" + struct.pack("<I", 1 << 20) + b"1" * (1 << 20)
            nested = b"(" * 500_000 + b"K\x01" + b"t" * 500_000
            file.write_bytes(b"\x80\x02}" + numbers + b"K\x01s" + nested + b"K\x01s.")
        case "deep_size":
            size = entry(0, "nccl:barrier", 1) | {"input_sizes": [["SIZE"]]}
            data = pickle.dumps({"entries": [size]}, protocol=2)
            nested = b"K\x01" + b"\x85" * 500_000
            file.write_bytes(data.replace(b"X\x04\x00\x00\x00SIZE", nested))
        case "bytearray":
            file.write_bytes(b"\x80\x05\x96" + struct.pack("<Q", 1 << 50) + b"x.")
        case "deep_json":
            file.write_text('{"entries": ' + "[" * 200_000)
        case "cut":
            file.write_bytes(plain[:-20])
        case "number":
            file.write_text('{"entries": [], "pg_status": ' + "9" * 50_000 + "}")
        case "huge_rank":
            file.write_bytes(pickle.dumps({"entries": [], "pg_config": ranks}))
        case "no_record":
            file.write_bytes(pickle.dumps([1, 2]))


@pytest.mark.parametrize(
    "what",
    [
        "global",
        "gigabytes",
        "memo",
        "deep",
        "deep_key",
        "deep_key_behind_numbers",
        "deep_size",
        "deep_json",
        "bytearray",
        "cut",
        "number",
        "no_record",
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_hostile_dump_is_one_sentence(
    what: str, alone: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not alone:
        write(tmp_path / "rank_0", [entry(0, "nccl:barrier", 1, state="completed")], "[0, 1]")
    hostile(what, tmp_path / "rank_1")
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1
    assert "rank_1" in shown.err
    assert bool(shown.out) == (not alone)  # of what could not be read nothing is in order
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("what", ["cut", "global"])
@pytest.mark.parametrize(("second", "code"), [("nccl:broadcast", 91), ("nccl:barrier", 2)])
def test_what_the_good_dumps_prove_counts_beside_a_file_that_cannot_be_read(
    what: str, second: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, op in enumerate(("nccl:barrier", second)):
        write(tmp_path / f"rank_{rank}", [entry(0, op, 1, state="completed")], "[0, 1, 2]")
    hostile(what, tmp_path / "rank_2")
    assert main(["report", str(tmp_path), "--exit-code"]) == code
    shown = capsys.readouterr()
    assert ("op_mismatch" in shown.out or "MISMATCH" in shown.out) == (code == 91)
    assert len(shown.err.splitlines()) == 1
    assert "rank_2" in shown.err


@pytest.mark.parametrize("how", ["gzip", "zip", "tar", "zstd"])
@pytest.mark.parametrize("beside", ["nothing", "dumps", "others"])
def test_dumps_that_are_packed_are_said_to_be(
    how: str, beside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rank_2"
    write(file, [entry(0, "nccl:barrier", 1)], "[0, 1, 2]")
    match how:
        case "gzip":
            packed = gzip.compress(file.read_bytes())
        case "zip":
            shutil.make_archive(str(tmp_path / "made"), "zip", tmp_path, "rank_2")
            packed = (tmp_path / "made.zip").read_bytes()
            (tmp_path / "made.zip").unlink()
        case "tar":
            with tarfile.open(tmp_path / "made.tar", "w") as archive:
                archive.add(file, "rank_2")
            packed = (tmp_path / "made.tar").read_bytes()
            (tmp_path / "made.tar").unlink()
        case _:
            packed = b"\x28\xb5\x2f\xfd" + bytes(20)
    file.unlink()
    (tmp_path / ("logs.gz" if beside == "others" else "rank_2.gz")).write_bytes(packed)
    for rank in range(2 * (beside != "nothing")):
        write(tmp_path / f"rank_{rank}", [entry(0, "nccl:barrier", 1, state="completed")], "[0, 1]")
    assert main(["report", str(tmp_path)]) == (0 if beside == "others" else 2)
    told = capsys.readouterr().err
    assert (f"rank_2.gz is packed ({how}): unpack it first" in told) == (beside != "others")
    assert len(told.splitlines()) == (beside != "others")


def test_many_tuples_that_are_not_deep_are_read() -> None:
    many = [
        entry(at, "nccl:barrier", 1) | {"process_group": ("0", str(at))} for at in range(25_000)
    ]
    data = pickle.dumps({"entries": many})
    assert may_be_deep(data)
    assert len(flight_recorder.read(data).entries) == len(many)


@pytest.mark.parametrize("what", ["fifo", "link", "unreadable"])
def test_what_is_no_file_to_read_is_not_waited_for(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rank_0"
    if what == "fifo":
        os.mkfifo(file)
    elif what == "link":
        file.symlink_to("/dev/zero")
    else:
        write(file, [entry(0, "nccl:barrier", 1)], "[0]")
        file.chmod(0)
        if os.access(file, os.R_OK):
            pytest.skip("root reads every file")
    for path in (tmp_path, file):
        assert main(["report", str(path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_rank_of_a_thousand_million_takes_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile("huge_rank", tmp_path / "rank_0")
    write(tmp_path / "rank_999999998", [entry(0, "nccl:barrier", 1)], "[0]")
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert "does not tell its rank" in capsys.readouterr().out


def test_what_a_dump_says_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [entry(0, "nccl:\x1b[2J\nall_reduce", 1), entry(1, "x:\x1b]0;t\x07", 2)]
    for call in calls:
        call["frames"] = [{"name": "\x1b[31m", "filename": "/x/\x1b[2J.py", "line": 3}]
        call["process_group"] = ("0", "\x1b[2Jdesc\n")
    for rank in range(2):
        write(tmp_path / f"rank_{rank}", calls[: 2 - rank], "[0, 1]")
    for form in ("--text", "--json", "--junit"):
        main(["report", str(tmp_path), form])
        assert "\x1b" not in capsys.readouterr().out


def test_of_a_folder_with_very_many_files_no_more_are_read_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("no dump")
    write(tmp_path / "zz_rank_0", [entry(0, "gloo:all_reduce", 0)])
    asked: list[Path] = []
    real = dump_files._is_regular
    monkeypatch.setattr(dump_files, "_is_regular", lambda path: asked.append(path) or real(path))
    monkeypatch.setattr(dump_files, "MOST_FILES", 8)
    assert main(["report", str(tmp_path)]) == 2
    assert "nor a dump" in capsys.readouterr().err
    assert len(asked) <= 9
    with pytest.raises(UsageError, match="more than 8 files: name the folder of the dumps"):
        dump_files.load(tmp_path)
    assert len(asked) <= 18
