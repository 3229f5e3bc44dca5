"""Which flags of Python keep the hook out, and which only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from debugger.supervisor.command.reach import Reach, _isolating_flag


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
    process.mkdir(exist_ok=True)
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
