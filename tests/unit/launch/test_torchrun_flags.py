"""The command line of `distdebug run`: torchrun's flags without torch, and its mistakes."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.errors import UsageError
from distdebug.launch import torchrun_flags as parser_module
from distdebug.launch.torchrun_flags import (
    RunRequest,
    expected_world_size,
    free_port_arguments,
    split_command_line,
    torchrun_parser,
)


@pytest.fixture(autouse=True)
def script_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with train.py in it, and no PET_* variable around."""
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    return tmp_path


def own_parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(prog="distdebug run")
    own.add_argument("--run-dir")
    own.add_argument("--hang-timeout", type=float, default=60.0)
    own.add_argument("--strict", action="store_true")
    own.add_argument("--check", nargs="?", const="all")
    own.add_argument("--pair", nargs=2)
    return own


def split(line: str) -> RunRequest:
    return split_command_line(line.split(), own_parser())


def test_the_parser_is_torchs_and_torch_is_not_imported() -> None:
    code = (
        "import sys; from distdebug.launch.torchrun_flags import torchrun_parser;"
        "flags = torchrun_parser()._option_string_actions;"
        "assert '--nproc_per_node' in flags and '--numa-binding' in flags, sorted(flags);"
        "assert 'node' in flags['--numa-binding'].choices;"
        "assert 'torch' not in sys.modules"
    )
    root = Path(parser_module.__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def test_own_torchrun_and_script_arguments_are_told_apart() -> None:
    request = split(
        "--strict --max-restarts 2 -n 4 --run_dir=runs --tee=3 --hang-timeout 5 "
        "train.py -n 9 --strict"
    )
    assert request.own.strict
    assert request.own.run_dir == "runs"
    assert request.own.hang_timeout == 5.0
    assert request.torchrun_arguments == ("--max-restarts=2", "--tee=3", "--nproc-per-node=4")
    assert request.torchrun.max_restarts == 2
    assert request.script == "train.py"
    assert request.script_arguments == ("-n", "9", "--strict")
    assert request.command_line[-4:] == ["train.py", "-n", "9", "--strict"]
    assert torchrun_parser().parse_args(request.command_line).nproc_per_node == "4"


@pytest.mark.parametrize(
    "line",
    ["-n 4", "-n4", "-n=4", "--nproc-per-node 4", "--nproc_per_node=4", "-n 4 --nproc_per_node 4"],
)
def test_every_spelling_of_the_number_of_ranks(line: str) -> None:
    request = split(f"{line} train.py")
    assert request.torchrun_arguments == ("--nproc-per-node=4",)
    assert expected_world_size(request.torchrun) == 4


def test_flags_of_any_arity() -> None:
    request = split("-r3 -t 0:1 --check --pair a b --standalone train.py")
    assert request.own.check == "all"
    assert request.own.pair == ["a", "b"]
    assert request.torchrun.standalone
    assert request.torchrun.redirects == "3"
    assert request.torchrun_arguments == ("-r3", "-t0:1", "--standalone")


def test_what_may_stand_in_the_place_of_the_script() -> None:
    assert split("-m package.train --lr 1").torchrun.module
    assert split("-m timeit -n 1").script_arguments == ("-n", "1")
    assert split("--no-python sh -c true").script == "sh"
    assert split("--run-path train.py").torchrun.run_path
    assert split("-- train.py -- x").script_arguments == ("--", "x")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "no script given"),
        ("-n 4", "no script given"),
        ("--strict --", "no script given"),
        ("absent.py", "the script 'absent.py' does not exist"),
        ("package", "'package' is a folder without a __main__.py"),
        ("-m absent_module.train", "finds no module 'absent_module'"),
        ("--no-python no-such-program", "no such program on PATH"),
        ("-m --no-python train.py", "exclude each other"),
        ("-- -train.py", "write ./-train.py"),
        ("-n 0 train.py", "-n 0: at least 1 rank"),
        ("-n -1 train.py", "-n -1: at least 1 rank"),
        ("-n x train.py", "-n 'x': a number of ranks"),
        ("-n", "-n needs a value"),
        ("-n --strict train.py", "-n needs a value, but '--strict' follows"),
        ("-n 4 --nproc-per-node 2 train.py", "-n 4 contradicts --nproc-per-node 2"),
        ("--nproc-per-node 0 train.py", "--nproc-per-node 0: at least 1 rank"),
        ("--run-dir", "--run-dir needs a value"),
        ("--strict=1 train.py", "--strict takes no value"),
        ("--hang-timeout soon train.py", "invalid float value: 'soon'"),
        ("--max-restarts many train.py", "invalid int value: 'many'"),
        ("--max-restarts -1 train.py", "--max-restarts -1: it cannot be negative"),
        ("--nproc 4 train.py", "unknown flag '--nproc': did you mean --nproc-per-node?"),
        ("--hang-timout=3 train.py", "did you mean --hang-timeout?"),
        ("--rdvz_backend c10d train.py", "did you mean --rdzv-backend?"),
        ("--zzzz train.py", "unknown flag '--zzzz': see"),
        ("-z train.py", "unknown flag '-z'"),
        ("--start-method thread train.py", "invalid choice: 'thread'"),
        ("-n 2 --local-ranks-filter 0,2 train.py", "names rank 2, but the node has 2 ranks"),
        ("--local-ranks-filter 1 train.py", "names rank 1, but the node has rank 0 only"),
        ("--local-ranks-filter a train.py", "ranks separated by commas"),
        ("--nnodes two train.py", "--nnodes 'two': a number of nodes"),
        ("--nnodes 3:2 train.py", "--nnodes '3:2': a number of nodes"),
        ("--nnodes 2 --node-rank 2 train.py", "--node-rank 2: --nnodes 2 has no such node"),
        ("--master-port 70000 train.py", "--master-port 70000"),
    ],
)
def test_bad_input_gives_one_sentence(line: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        split(line)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_unreadable_pet_variable_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MODULE", "yes")
    with pytest.raises(UsageError, match="PET_"):
        split("train.py")


def test_help_is_printed_by_our_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        split("--help")
    assert caught.value.code == 0
    assert "--hang-timeout" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["auto", "gpu", "npu"])
def test_a_device_as_the_number_of_ranks_leaves_the_world_size_open(word: str) -> None:
    assert expected_world_size(split(f"--nproc-per-node {word} train.py").torchrun) is None


def test_cpu_counts_only_where_all_releases_of_torch_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    request = split("-n cpu train.py")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert expected_world_size(request.torchrun) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert expected_world_size(request.torchrun) is None


def test_several_nodes_leave_the_world_size_open() -> None:
    assert expected_world_size(split("-n 2 --nnodes 2 train.py").torchrun) is None
    assert expected_world_size(split("-n 2 --nnodes 1 train.py").torchrun) == 2


def free_port_flags(line: str, **environ: str) -> tuple[str, ...]:
    with free_port_arguments(split(line), environ) as arguments:
        return arguments


def test_a_free_port_where_the_user_chose_none() -> None:
    with free_port_arguments(split("-n 2 --nnodes 1 train.py"), {}) as arguments:
        torchrun = torchrun_parser().parse_args([*arguments, "x"])
        assert torchrun.master_addr == "127.0.0.1"
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", torchrun.master_port))
        with socket.socket() as store, socket.socket() as client:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("", torchrun.master_port))
            store.listen()
            client.connect(("127.0.0.1", torchrun.master_port))


@pytest.mark.parametrize(
    "line",
    [
        "--master_port 29501",
        "--rdzv-endpoint h:1",
        "--rdzv-backend c10d",
        "--nnodes 1:2",
        "--nnodes 2 --node-rank 1",
    ],
)
def test_a_rendezvous_the_user_chose_is_kept(line: str) -> None:
    assert free_port_flags(f"{line} train.py") == ()


def test_a_standalone_store_is_reached_by_loopback() -> None:
    assert free_port_flags("--standalone train.py") == ("--local-addr", "127.0.0.1")
    assert free_port_flags("--standalone --local-addr h train.py") == ()


def test_pet_variables_count_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_port_flags("train.py", PET_MASTER_PORT="1") == ()
    monkeypatch.setenv("PET_STANDALONE", "1")
    assert free_port_flags("train.py") == ("--local-addr", "127.0.0.1")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert expected_world_size(split("train.py").torchrun) == 3


def plant_torch(folder: Path, run: str) -> None:
    (folder / "torch" / "distributed").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "distributed" / "run.py").write_text(run)


def test_a_definition_that_needs_its_package_is_not_taken(tmp_path: Path) -> None:
    plant_torch(
        tmp_path,
        "import torch\nfrom ._private import flags\n"
        "def get_args_parser():\n    return torch.parser(flags)\n"
        "def unused(kind: torch.Tensor) -> int:\n    return 7 if kind is None else torch.x\n",
    )
    names = parser_module._Names(tmp_path / "torch", "torch.distributed.run")
    assert names["unused"](None) == 7
    with pytest.raises(ImportError, match="torch is needed"):
        names["get_args_parser"]()
    with pytest.raises(KeyError):
        names["absent"]
    with pytest.raises(OSError, match="absent"):
        parser_module._Names(tmp_path / "torch", "torch.distributed.absent")


def test_another_torch_is_imported_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_torch(tmp_path, "from elsewhere import get_args_parser\n")
    fake = argparse.Namespace(get_args_parser=lambda: argparse.ArgumentParser("imported"))
    monkeypatch.setattr(parser_module, "_torch_directory", lambda _python: tmp_path / "torch")
    monkeypatch.setattr(parser_module.importlib, "import_module", lambda _name: fake)
    assert parser_module.torchrun_parser().prog == "imported"
    monkeypatch.setattr(parser_module.importlib, "import_module", lambda _name: argparse)
    with pytest.raises(UsageError, match="no usable torchrun"):
        parser_module.torchrun_parser()


def test_without_torch_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdebug.launch.pythons._folders", lambda *_: ())
    with pytest.raises(UsageError, match=r"torch is not installed .* pip install torch"):
        split("train.py")
