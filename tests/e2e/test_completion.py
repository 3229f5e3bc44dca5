"""Shells complete the command's line, by the code that `distdebug completion` prints for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from distdebug import cli
from tests.support import runs
from tests.support.terminal import Terminal
from tests.unit.commands import runs_on_disk

NAME = "20260310-141502-7f3a"

LINES = {
    "distdebug rep": {"report", "replay"},
    "distdebug help rep": {"report", "replay"},
    "distdebug report 2026": {NAME},
    "distdebug compare good 2026": {NAME},
    "distdebug report --j": {"--json", "--junit"},
    "distdebug logs --level w": {"warning"},
    "distdebug run --on-finding ": {"stop", "report"},
    "distdebug run --check nan,ov": {"nan,overflow"},
    "distdebug run --nproc": {"--nproc-per-node"},
    "distdebug run -n 4 tra": {"train.py"},
    "distdebug run -n 4 train.py --on": set(),
    "distdebug exec --on": {"--on-finding", "--on-finding-run"},
    "distdebug exec --nproc": set(),
    "distdebug exec -- python tra": {"train.py"},
    "distdebug exec -- python --on": set(),
    "distdebug plan exec -- python tra": {"train.py"},
    "distdebug bench o": {"overhead"},
    "distdebug completion z": {"zsh"},
}

IN_BASH = """
eval "$(distdebug completion bash)"
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}
    COMPREPLY=()
    _python_argcomplete distdebug
    echo ${COMPREPLY[@]}
done
"""
IN_FISH = """
distdebug completion fish | source
while read -l line
    echo (complete -C $line | string split -f 1 \\t)
end
"""


def _needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and one run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    made = runs_on_disk.finished().path
    made.rename(made.with_name(NAME))
    return tmp_path


def _environment(folder: Path) -> dict[str, str]:
    path = f"{runs.DISTDEBUG.parent}{os.pathsep}{os.environ['PATH']}"
    return runs.environment({"PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8"})


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(["bash", "--norc", "-c", IN_BASH], marks=_needs("bash"), id="bash"),
        pytest.param(["fish", "--no-config", "-c", IN_FISH], marks=_needs("fish"), id="fish"),
    ],
)
def test_words_are_completed(shell: list[str], folder: Path) -> None:
    done = subprocess.run(
        shell,
        input="".join(f"{line}\n" for line in LINES),
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    answers = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(LINES, answers, strict=True)) == LINES, done.stderr


@_needs("zsh")
def test_words_are_completed_in_zsh(folder: Path) -> None:
    with Terminal(["zsh", "-f", "-i"], folder, _environment(folder)) as zsh:
        zsh.type("autoload -U compinit && compinit -u && PS1='ready''> '")
        zsh.expect("ready> ")
        zsh.type('eval "$(distdebug completion zsh)"')
        zsh.expect("ready> ")
        zsh.press("distdebug compl\t")
        zsh.expect("distdebug completion ")
        zsh.press("\x15distdebug report 2\t")
        zsh.expect(f"distdebug report {NAME}")


def test_an_unknown_shell_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
