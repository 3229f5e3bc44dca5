"""What reads a record works where there is no torch: in an environment that has the package itself
and what the extra `viewer` names."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from distdebug import cli
from distdebug.record.runs import artefact
from fixtures import recorded
from tests.support import runs
from tests.support.tmux import Terminal, needs_tmux

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VIEWER = PROJECT["optional-dependencies"]["viewer"]
LAUNCHER = "#!{python}\nimport sys\nfrom _distdebug_entry import main\nsys.exit(main())\n"


def _with_what_they_need(names: list[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    while names:
        wanted = Requirement(names.pop())
        markers = [{"extra": extra} for extra in wanted.extras or {""}]
        if wanted.name in found:
            continue
        found[wanted.name] = distribution(wanted.name)
        for text in found[wanted.name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(map(needed.marker.evaluate, markers)):
                names.append(text)
    return found


@pytest.fixture(scope="module")
def distdebug(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment as `pip install --no-deps` makes it."""
    home = tmp_path_factory.mktemp("laptop") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name, found in _with_what_they_need([*VIEWER]).items():
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        assert tops, name
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    unused = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "debugger", packages / "distdebug", ignore=unused)
    shutil.copytree(ROOT / "tui", packages / "distdebug" / "tui", ignore=unused)
    shutil.copytree(ROOT / "distcore", packages / "distcore", ignore=unused)
    shutil.copy(ROOT / "debugger/hook/entry/_distdebug_entry.py", packages)
    command = home / "bin" / "distdebug"
    command.write_text(LAUNCHER.format(python=home / "bin" / "python"))
    command.chmod(0o755)
    done = subprocess.run([home / "bin" / "python", "-c", "import torch"], capture_output=True)
    assert b"No module named 'torch'" in done.stderr
    return command


@pytest.fixture(scope="module", params=["directory", "artefact"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which ranks disagreed, as it lies on the disk, or as --ci has packed it."""
    folder = tmp_path_factory.mktemp(request.param)
    found = recorded.unpack("mismatch", folder / "run").path
    (found / "stacks" / "stacks.txt").write_text("MainThread of ranks 0,1\n  step (train.py:8)\n")
    if request.param == "directory":
        return found
    packed = folder / f"run{artefact.SUFFIX}"
    artefact.pack(found, packed)
    shutil.rmtree(found)
    return packed


def _ask(distdebug: Path, cwd: Path, *words: str, code: int = 0) -> str:
    """What the command prints."""
    done = subprocess.run(
        [str(distdebug), *words],
        cwd=cwd,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    assert "Traceback (most" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_record_is_read(distdebug: Path, run: Path, tmp_path: Path) -> None:
    def ask(*words: str, code: int = 0) -> str:
        return _ask(distdebug, tmp_path, *words, code=code)

    path = str(run)
    assert "<- look here" in ask("report", path, "--exit-code", code=91)
    assert json.loads(ask("report", path, "--json"))["outcome"] == "op_mismatch"
    assert "all_reduce" in ask("report", path, "--traffic")
    assert "MainThread" in ask("stacks", path)
    assert json.loads(ask("logs", path, "--json").splitlines()[0])
    assert "EQUAL" in ask("compare", path, path)
    assert "trace.json" in ask("export", path, "--trace", "trace.json")
    assert "run.prom" in ask("export", path, "--prom", "run.prom")
    assert "dumps" in ask("export", path, "--fr", "dumps")
    assert "op_mismatch" in ask("report", "dumps", "--json")
    assert "there is no run below .distdebug/" in ask("runs")


@pytest.mark.long
@needs_tmux
def test_the_app_opens_a_record(distdebug: Path, run: Path, tmp_path: Path) -> None:
    with Terminal([str(distdebug), "tui", str(run)], tmp_path) as terminal:
        terminal.until("ENDED", "MISMATCH")
        terminal.press("q")
        terminal.until("CODE 0")


@pytest.mark.long
@pytest.mark.parametrize("words", [("demo",), ("run", "-n", "2", "train.py")])
def test_what_starts_ranks_says_what_it_lacks(
    words: tuple[str, ...], distdebug: Path, tmp_path: Path
) -> None:
    said = _ask(distdebug, tmp_path, *words, code=2)
    assert said.startswith("distdebug: torch is not installed in ")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("module", ["psutil", "textual", "zmq", "argcomplete"])
def test_what_is_missing_is_named_with_the_command(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(argv: list[str]) -> int:
        return bool(importlib.import_module(module))

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(cli, "_dispatch", fails)
    assert cli.main(["report"]) == 2
    package = {"zmq": "pyzmq"}.get(module, module)
    said = capsys.readouterr().err
    assert said == f"distdebug: {package} is not installed: pip install {package}\n"
    assert package in {Requirement(one).name for one in PROJECT["dependencies"]}


@needs_tmux
def test_the_app_without_textual_says_so(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['textual'] = None; from distdebug.cli import main; "
        "sys.exit(main(['tui', sys.argv[1]]))"
    )
    run = recorded.unpack("mismatch", tmp_path / "run").path
    with Terminal([sys.executable, "-c", program, str(run)], tmp_path) as terminal:
        terminal.until("distdebug: textual is not installed: pip install textual", "CODE 2")


def test_the_page_names_what_a_viewer_needs() -> None:
    page = (ROOT / "debugger" / "docs" / "install.md").read_text()
    (line,) = re.findall(r"pip install --no-deps distdebug && pip install (.*)", page)
    assert line.split() == [Requirement(one).name for one in VIEWER]
    asked = {Requirement(one).name: one for one in PROJECT["dependencies"]}
    assert [asked[Requirement(one).name] for one in VIEWER] == VIEWER
