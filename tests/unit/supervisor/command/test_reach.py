"""Which flags of Python keep the hook out, and which only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.supervisor.command.reach import Reach, _isolating_flag


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("-I train.py", "-I"),
        ("-uE train.py", "-E"),
        ("-X dev -S -m train", "-S"),
        ("-Wignore -I -c pass", "-I"),
        ("--check-hash-based-pycs always -I train.py", "-I"),
        ("train.py -I", None),
        ("-m train -E", None),
        ("-c pass -S", None),
        ("-u -W ignore train.py", None),
        ("-XIS train.py", None),
        ("-", None),
        ("", None),
    ],
)
def test_flags(words: str, flag: str | None) -> None:
    assert _isolating_flag(("python", *words.split())) == flag


def _program(proc: Path, pid: int, *words: str, **environment: str) -> None:
    process = proc / str(pid)
    process.mkdir(exist_ok=True, parents=True)
    (process / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    pairs = (f"{name}={value}\0" for name, value in environment.items())
    (process / "environ").write_text("".join(pairs))
    if not (process / "exe").is_symlink():
        (process / "exe").symlink_to("/usr/bin/python3")


def test_what_becomes_a_program_that_is_reached_was_not_missed(tmp_path: Path) -> None:
    """A rank that mpiexec starts is a few lines of ours first, in a Python that imports nothing."""
    reach = Reach("/run", "/site", tmp_path)
    _program(tmp_path, 77, "python", "-I", "-S", "mpi_rank.py", "python", "train.py")
    _program(tmp_path, 78, "python", "-I", "train.py")
    reach.look([77, 78])
    assert "process 77" in reach.why_nothing()
    _program(
        tmp_path, 77, "python", "train.py", DISTDEBUG_RUN_DIR="/run", PYTHONPATH="/site", RANK="0"
    )
    reach.look([77, 78])
    assert (reach.reached, reach.ranks) == (1, {77: 0})
    assert "process 77" not in reach.why_nothing()
    assert "process 78" in reach.why_nothing(), "that one is still what it was"


def test_a_secret_on_a_command_line_stays_out_of_the_reason(tmp_path: Path) -> None:
    words = ["python", "-I", "train.py", "--hf-token", "hunter2", "WANDB_API_KEY=hunter3", "--lr=1"]
    process = tmp_path / "77"
    process.mkdir()
    (process / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (process / "exe").symlink_to("/usr/bin/python3")
    reach = Reach("/run", "/site", tmp_path)
    reach.look([77])
    why = reach.why_nothing()
    assert "hunter" not in why
    assert "--hf-token" in why
    assert "train.py" in why
    assert "--lr=1" in why


@pytest.mark.parametrize(
    ("words", "environment", "why"),
    [
        ("python -I a.py", {}, "Python's -I"),
        ("python a.py", {}, "environment of its own"),
        (
            "python a.py",
            {"DISTDEBUG_RUN_DIR": "/run", "PYTHONPATH": "/x"},
            "its PYTHONPATH was replaced: write `export PYTHONPATH=/x:$PYTHONPATH`",
        ),
        ("python a.py", {"DISTDEBUG_RUN_DIR": "/run"}, "write `export PYTHONPATH=$PYTHONPATH`"),
    ],
)
def test_ranks_that_are_not_reached_are_known_all_the_same(
    words: str, environment: dict[str, str], why: str, tmp_path: Path
) -> None:
    reach = Reach("/run", "/site", tmp_path)
    for rank in range(12):
        _program(tmp_path, 70 + rank, *words.split(), **environment, RANK=str(rank))
    reach.look(range(70, 82))
    assert reach.ranks == {70 + rank: rank for rank in range(12)}
    assert reach.reached == 0
    assert why in reach.why(77)
    assert reach.why_nothing().count(why) == 1, "one reason is one sentence"
    assert reach.why_nothing().startswith(f"process 70 ({words}) and 11 more could not be reached")
    assert reach.why_nothing(range(12)) == ""
    assert reach.why_nothing(range(11)).startswith("process 81 ")


def test_what_the_hook_has_said_where_it_failed_is_the_reason(tmp_path: Path) -> None:
    proc, run = tmp_path / "proc", tmp_path / "run"
    run.mkdir()
    (run / "unobserved-77.txt").write_text("ModuleNotFoundError\x1b[2J")
    (run / "unobserved-nobody.txt").write_text("no pid")
    reach = Reach(str(run), "/site", proc)
    reached = {"DISTDEBUG_RUN_DIR": str(run), "PYTHONPATH": "/site"}
    for pid in (77, 78):
        _program(proc, pid, "python", "a.py", **reached, RANK=str(pid - 77))
    reach.look([77, 78])
    assert reach.why(77).startswith("ModuleNotFoundError")
    assert "\x1b" not in reach.why(77)
    assert reach.why(78) == "it had no record yet: one is made when torch is imported"
    assert reach.unwatched.keys() == {77}
    (proc / "78" / "maps").write_text("7f00-7f01 r-xp 0 0:0 0 /lib/libtorch_cpu.so\n")
    reach.look([77, 78])
    assert reach.unwatched.keys() == {77, 78}, "the hook was there, and has left no record"
    assert "left no record" in reach.why(78)


def test_a_forked_child_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    """The kernel shows the environment that its parent was started with."""
    reach = Reach("/run", "/site", tmp_path)
    for pid, parent in ((77, 1), (78, 77)):
        _program(tmp_path, pid, "python", "a.py", RANK="0")
        fields = f"{pid} (python) S {parent} " + "0 " * 48
        (tmp_path / str(pid) / "stat").write_text(fields)
    reach.look([77, 78])
    assert reach.ranks == {77: 0}


def test_what_another_distdebug_watches_is_not_ours_to_judge(tmp_path: Path) -> None:
    reach = Reach("/run", "/site", tmp_path)
    inner = {"DISTDEBUG_RUN_DIR": "/inner", "PYTHONPATH": "/site"}
    _program(tmp_path, 77, "python", "a.py", **inner, RANK="0")
    reach.look([77])
    assert (reach.ranks, reach.unwatched) == ({}, {})
