"""`distdebug run --ci` as a CI machine runs it, and its one file as a developer opens it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from distdebug.record.runs.artefact import SUFFIX, opened
from tests.support.runs import DISTDEBUG, LIMIT_S, environment
from tests.support.terminal import Terminal as PlainTerminal
from tests.support.tmux import Terminal, needs_tmux
from tests.support.zygote import Zygote
from tests.unit.tui.driver import opened as app_on

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STOPS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
{}
dist.all_reduce(torch.ones(1))
print("goes on")
"""
COMMAND = re.compile("^::.*$", re.MULTILINE)


def of_actions(workspace: Path) -> dict[str, str]:
    """The variables of a job whose checkout is `workspace`."""
    summary = workspace.parent / "summary.md"
    summary.touch()
    return {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_STEP_SUMMARY": str(summary),
    }


def in_actions(workspace: Path, *arguments: str) -> SimpleNamespace:
    """One step of a job whose checkout is `workspace`."""
    extra = of_actions(workspace)
    summary = Path(extra["GITHUB_STEP_SUMMARY"])
    done = subprocess.run(
        [str(DISTDEBUG), *arguments],
        cwd=workspace,
        env=environment(extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return SimpleNamespace(
        code=done.returncode, stdout=done.stdout, stderr=done.stderr, summary=summary.read_text()
    )


def asked(workspace: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(DISTDEBUG), *arguments],
        cwd=workspace,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def artefact_in(workspace: Path) -> Path:
    (file,) = workspace.glob(f"*{SUFFIX}")
    return file


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout with a program in a folder."""
    found = tmp_path / "checkout"
    (found / "src").mkdir(parents=True)
    return found


def test_a_failure_is_annotated_and_its_file_opens_as_the_run(
    workspace: Path, zygote: Zygote
) -> None:
    script = workspace / "src" / "train.py"
    seed = "    torch.manual_seed(dist.get_rank())\n"
    text = (FIXTURES / "demo.py").read_text()
    assert seed in text
    script.write_text(text.replace(seed, f'{seed}    print("it begins", flush=True)\n'))
    wrong = next(
        number
        for number, text in enumerate(script.read_text().splitlines(), 1)
        if "dist.broadcast" in text
    )
    actions = of_actions(workspace)
    run = workspace / ".distdebug" / "20260310-141502-7f3a"
    done = zygote.start(4, [str(script)], workspace, ["--ci"], actions, directory=run).finish()
    assert done.exit_code == 91, done.explain()
    (annotation,) = COMMAND.findall(done.stderr)
    start = f"::error file=src/train.py,line={wrong},title=distdebug%3A op_mismatch%2C rank 2::"
    assert annotation.startswith(start + "ranks disagree at collective #17")
    assert "::" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    file = artefact_in(workspace)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"distdebug: packed the run into {file.name} (")
    assert last.endswith(f"; open it with: distdebug tui {file.name}")
    assert file.stat().st_size < 1 << 20

    report = asked(workspace, "report")
    assert report in done.stderr
    same, end = report.split("  stacks of all ranks: ")
    summary = Path(actions["GITHUB_STEP_SUMMARY"]).read_text()
    assert f"```text\n{same}" in summary
    assert f"The whole run is in `{file.name}`." in summary
    junit = asked(workspace, "report", "--junit", file.name)
    assert f'file="{script}" line="{wrong}"' in junit

    stacks, logs = asked(workspace, "stacks"), asked(workspace, "logs", "--rank", "2")
    shutil.rmtree(workspace / ".distdebug")
    elsewhere = workspace.parent / "desk"
    elsewhere.mkdir()
    shutil.move(file, elsewhere / "from-ci.tgz")
    shown, there = asked(elsewhere, "report", "from-ci.tgz").split("  stacks of all ranks: ")
    assert shown == same
    assert "evidence: from-ci.tgz   exit code 91" in there
    assert end.endswith("exit code 91\n")
    assert asked(elsewhere, "stacks", "from-ci.tgz") == stacks
    assert "train_step" in stacks
    assert asked(elsewhere, "logs", "from-ci.tgz", "--rank", "2") == logs
    assert "[rank 2] it begins\n" in logs

    async def look() -> str:
        with opened(str(elsewhere / "from-ci.tgz")) as directory:
            async with app_on(directory.path, time.time_ns, (110, 30)) as driver:
                await driver.until(lambda: "ENDED" in driver.text, "the end")
                return driver.text

    screen = asyncio.run(look())
    assert "MISMATCH, exit code 91" in screen
    assert "▸ rank 2" in screen
    assert "broadcast(src=0, float32[1024])" in screen
    assert os.listdir(elsewhere) == ["from-ci.tgz"]


@pytest.mark.long
def test_a_success_has_a_file_too_and_no_annotation(workspace: Path) -> None:
    script = workspace / "src" / "fine.py"
    shutil.copy(FIXTURES / "scripts" / "correct" / "isend_ring.py", script)
    done = in_actions(
        workspace, "run", "--ci", "--ci-artifact", "kept.tgz", "-n", "2", "src/fine.py"
    )
    assert done.code == 0, done.stderr
    assert COMMAND.findall(done.stderr + done.stdout) == []
    assert re.search(
        r"```text\nOK  2 ranks, .*\n```\n\nThe whole run is in `kept.tgz`", done.summary
    )
    assert list(workspace.glob(f"*{SUFFIX}")) == []
    assert asked(workspace, "report", "kept.tgz").startswith("OK  2 ranks")


COMMANDS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for line in ("::stop-commands::x", "  ::add-mask::y", "##[error]z", "a\\r::set-output name=b::c"):
    print(line, flush=True)
    print(line, file=sys.stderr, flush=True)
os.write(1, b"::err")
os.write(1, b"or::in two pieces\\n")
if dist.get_rank() == 1:
    raise RuntimeError("no luck\\n::error file=a.py::forged\\n" + "x" * 70 + " ::warning::wrapped")
dist.barrier()
"""


def test_nothing_that_a_rank_says_is_a_command_and_no_secret_is_kept(
    workspace: Path, zygote: Zygote
) -> None:
    (workspace / "says.py").write_text(COMMANDS)
    secret = "q9w8e7r6t5"
    arguments = ("says.py", "--hf-token", secret, f"wandb.api_key={secret}", "--epochs", "3")
    flags = ["--ci", "--ci-artifact", "kept.tgz"]
    done = zygote.run(2, arguments, workspace, flags, of_actions(workspace))
    assert done.exit_code == 1, done.stderr
    assert "stop-commands" in done.stdout
    assert "in two pieces" in done.stdout
    for text in (done.stdout, done.stderr):
        lines = [line.strip() for line in re.split("[\r\n]", text)]
        (*ours,) = [line for line in lines if line.startswith("::")]
        assert all(line.startswith("::error file=says.py,line=") for line in ours)
        assert len(ours) == (1 if text is done.stderr else 0)
        assert "##[" not in text
    with opened(str(workspace / "kept.tgz")) as directory:
        held = [one for one in directory.path.rglob("*") if one.is_file()]
        assert len(held) > 5
        assert [one for one in held if secret.encode() in one.read_bytes()] == []
        command = json.loads(directory.report_json.read_text())["command"]
        assert command[-2:] == ["--epochs", "3"]
        assert command[-5:-2] == ["--hf-token", "(redacted)", "wandb.api_key=(redacted)"]
    assert "is recorded as (redacted)" in done.stderr


@pytest.mark.parametrize("breakpoint_call", ["breakpoint()", "torch.distributed.breakpoint(0)"])
def test_nobody_is_waited_for_at_a_breakpoint(
    workspace: Path, breakpoint_call: str, zygote: Zygote
) -> None:
    (workspace / "stops.py").write_text(STOPS.format(breakpoint_call))
    done = zygote.run(1, ["stops.py"], workspace, ["--ci"], of_actions(workspace))
    assert done.exit_code == 0, done.stderr
    assert "goes on" in done.stdout


def test_exec_of_a_program_without_ranks_and_without_the_flag(workspace: Path) -> None:
    script = workspace / "fails.py"
    script.write_text("import sys\nsys.exit('no luck')\n")
    command = ["--", "python3", "fails.py"]
    done = in_actions(workspace, "exec", "--ci", *command)
    assert done.code == 1
    (annotation,) = COMMAND.findall(done.stderr)
    assert annotation.startswith("::error title=distdebug%3A failed::FAILED")
    artefact_in(workspace).unlink()
    # $CI and $GITHUB_ACTIONS alone ask for nothing.
    before = done.summary
    done = in_actions(workspace, "exec", *command)
    assert (done.code, COMMAND.findall(done.stderr), done.summary) == (1, [], before)
    assert list(workspace.glob(f"*{SUFFIX}")) == []


def test_there_is_no_colour_even_on_a_terminal(workspace: Path) -> None:
    (workspace / "fails.py").write_text("import sys\nsys.exit('no luck')\n")
    shown = {}
    for flags in ([], ["--ci"]):
        command = ["env", "-u", "NO_COLOR", "TERM=xterm", str(DISTDEBUG), "exec", *flags]
        command += ["--", "python3", "fails.py"]
        with PlainTerminal(command, workspace, environment()) as terminal:
            assert terminal.finish() == 1
            shown[bool(flags)] = terminal.shown
    assert "\x1b[1;31mFAILED\x1b[0m" in shown[False]
    assert "FAILED  the program ended with exit code 1" in shown[True]
    assert "\x1b" not in shown[True]


@needs_tmux
@pytest.mark.long
def test_the_terminal_app_opens_the_file(workspace: Path, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "demo.py", workspace / "train.py")
    run = ["run", "--ci", "--ci-artifact", "kept.tgz", "-n", "4", "train.py"]
    assert in_actions(workspace, *run).code == 91
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    extra = {"TMPDIR": str(scratch)}
    for command in (
        [str(DISTDEBUG), "tui"],
        [str(DISTDEBUG.with_name("python")), "-m", "distdebug.tui"],
    ):
        with Terminal([*command, "kept.tgz"], workspace, (100, 30), extra) as terminal:
            terminal.until("ENDED", "MISMATCH, exit code 91")
            assert len(os.listdir(scratch)) == 1
            terminal.press("q")
            terminal.until("CODE 0")
            assert os.listdir(scratch) == []
    with Terminal([str(DISTDEBUG), "tui", "kept.tgz"], workspace, (100, 30), extra) as terminal:
        terminal.until("ENDED", "MISMATCH, exit code 91")
        (command,) = [
            one
            for one in psutil.process_iter(["cmdline"])
            if one.info["cmdline"]
            and one.info["cmdline"][1:] == [str(DISTDEBUG), "tui", "kept.tgz"]
            and one.cwd() == str(workspace)
        ]
        command.terminate()
        assert "ENDED" not in terminal.until("CODE 143")
    assert os.listdir(scratch) == []
