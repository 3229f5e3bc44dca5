"""A torch that is too old, broken or too new gets one sentence; a fault of ours is called ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug import hook
from distdebug.errors import UsageError
from distdebug.launch import torchrun_flags
from tests.support import runs
from tests.support.zygote import Zygote


def fake_torch(folder: Path, version: str) -> Path:
    """A package `torch` of this version, in so far as anybody asks it before its ranks start."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text(f"__version__ = {version!r}\n")
    (package / "_C.so").touch()
    (package / "__init__.py").write_text(
        f"__version__ = {version!r}\n"
        "import types\n"
        "distributed = types.SimpleNamespace(is_available=lambda: True)\n"
    )
    return package


def test_too_old_in_a_process_that_was_not_started_by_us(tmp_path: Path) -> None:
    """It runs on as it is."""
    fake_torch(tmp_path, "2.9.1")
    environment = hook.environment(runs.environment(), tmp_path, "")
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2.9.1\n"), done.stderr
    assert done.stderr == (
        "distdebug: this process is not observed: torch 2.9.1 is too old: distdebug needs torch "
        "2.11 or newer\n"
    )


def test_too_old_below_run(tmp_path: Path) -> None:
    """One sentence, before anything is started."""
    fake_torch(tmp_path / "path", "2.10.0+cpu")
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    paths = [str(tmp_path / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
    extra = {"PYTHONPATH": os.pathsep.join(paths)}
    process = runs.start("run", ["-n", "2", str(script)], tmp_path / "run", tmp_path, extra)
    stdout, stderr = process.communicate(timeout=runs.LIMIT_S)
    assert (process.returncode, stdout) == (2, "")
    assert stderr == (
        "distdebug: torch 2.10.0+cpu is too old: distdebug needs torch 2.11 or newer: "
        "pip install --upgrade torch\n"
    )
    assert not (tmp_path / "run").exists()


def test_one_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = fake_torch(tmp_path, "2.15.0")
    (package / "_C.so").unlink()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [one for one in sys.modules if one.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"torch cannot be imported: .*lacks its C\+\+ part"):
        torchrun_flags.torchrun_parser()


OF_A_GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    dist.group.WORLD._record = None  # as if the layer had lost it
dist.destroy_process_group()
"""
OF_THE_WRITER = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    kind = type(dist.group.WORLD._recorder.writer)
    file = kind.complete.__code__.co_filename
    exec(compile("def complete(self, number, thread): {}['a place']", file, "exec"))
    kind.complete = complete
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("program", "where"),
    [(OF_A_GROUP, "checked_group.py"), (OF_THE_WRITER, "writer.py")],
    ids=["group", "writer"],
)
def test_a_fault_of_ours(program: str, where: str, tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(program)
    done = zygote.run(2, [str(script)], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("tool_error", 96), done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"]) == ("tool_error", [1])
    assert where in done.stderr  # with the traceback, ours included
    assert "report it" in done.stderr
    assert "INVALID ARGUMENT" not in done.stderr


def test_a_torch_that_is_newer_than_all(tmp_path: Path, zygote: Zygote) -> None:
    """It is watched like any other, and the run begins with a line that says so."""
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['_distdebug.record.torch_versions'].NEWEST = (2, 10)\n"
    )
    extra = {"PYTHONPATH": str(tmp_path / "site")}
    done = zygote.run(2, [str(script)], tmp_path, extra=extra)
    assert done.exit_code == 0, done.explain()
    lines = [line for line in done.stderr.splitlines() if "the newest that distdebug" in line]
    assert len([line for line in lines if line.startswith("distdebug: torch ")]) == 1, done.stderr
    (row,) = done.report["off"]
    assert (row["part"], row["ranks"]) == ("torch", [0, 1])
