"""A run goes on where a standard stream is closed, the working directory is gone, or a program
starts itself again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

AGAIN = """
import os, sys
import torch
import torch.distributed as dist

if len(sys.argv) < 4:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
SCRIPT = 'import sys; print("out"); print("err", file=sys.stderr)\n'


def below_a_shell(shell: str, tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`distdebug` as a shell starts it, on one rank without torch."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    own = [str(runs.DISTDEBUG), "exec", "--allow-unwatched", *flags, "--"]
    words = ["env", "RANK=0", sys.executable, str(script)]
    return subprocess.run(
        ["sh", "-c", shell, "sh", *own, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**runs.environment(), "TMPDIR": str(tmp_path)},
    )


def test_a_program_that_starts_itself_again(tmp_path: Path) -> None:
    """Twice, in the same process; nobody has said which rank it is before it makes its group."""
    (tmp_path / "again.py").write_text(AGAIN)
    done = runs.run("exec", ["--", sys.executable, "again.py", "once"], tmp_path)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert done.report["ranks"]["0"]["calls"] == 1
    assert "recording is switched off" not in done.stderr


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [("<&-", True, True), (">&-", False, True), ("2>&-", True, False), (">&- 2>&-", False, False)],
)
def test_closed_streams(closed: str, out: bool, err: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = below_a_shell(f'exec "$@" {closed}', tmp_path, "--run-dir", str(run))
    assert done.returncode == 0, done
    assert ("[rank 0] out\n" in done.stdout) == out
    assert ("[rank 0] err\n" in done.stderr) == err
    report = json.loads((run / "report.json").read_text())
    assert (report["outcome"], report["off"]) == ("ok", [])
    text = (run / "run.json").read_text()
    assert json.loads(text)["schema"], "nothing was written into our own files"


def test_a_removed_working_directory(tmp_path: Path) -> None:
    shell = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    done = below_a_shell(shell, tmp_path)
    assert done.returncode == 0, done
    assert done.stdout == "[rank 0] out\n"
    assert "[rank 0] err\n" in done.stderr
    assert "sitecustomize" not in done.stderr
    (found,) = tmp_path.glob("distdebug-*/2*/report.json")
    assert json.loads(found.read_text())["outcome"] == "ok"


SIGNALLED = """
import os, signal, sys, time
over, number, got = int(os.environ["OVER"]), int(sys.argv[1]), []
def hear(number, _frame):
    print("got", number, flush=True)
    got.append(number)
print("ignored", signal.getsignal(number) is signal.SIG_IGN)
if len(sys.argv) > 2:
    signal.signal(number, hear)
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
os.kill(over, number)
os.kill(os.getppid(), number)  # the warden: a scheduler signals all processes of a job
if sys.argv[2:] != ["waits"]:
    sys.exit()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
while not got:  # it may have come before: then nothing would end a pause()
    time.sleep(0.01)
"""


def signalled(shell: str, tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_by_shell(SIGNALLED, shell, tmp_path, *arguments)


def run_by_shell(
    script: str, shell: str, tmp_path: Path, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """The script finds the process that a scheduler would signal in OVER."""
    (tmp_path / "script.py").write_text(script)
    words = [sys.executable, str(tmp_path / "script.py"), *map(str, arguments)]
    own = [str(runs.DISTDEBUG), "exec", "--allow-unwatched", "--run-dir", str(tmp_path / "run")]
    return subprocess.run(
        ["sh", "-c", f'export OVER=$$; {shell} exec "$@"', "sh", *own, "--", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env=runs.environment(),
        preexec_fn=_as_in_the_foreground,
    )


def _as_in_the_foreground() -> None:
    """Who runs the tests by `nohup` or with `&` has these ignored, and hands that on."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def test_what_runs_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    done = signalled('trap "" HUP;', tmp_path, int(signal.SIGHUP))
    assert done.returncode == 0, done
    assert done.stdout == "ignored True\n"


def test_what_does_not_ends_with_it(tmp_path: Path) -> None:
    done = signalled("", tmp_path, int(signal.SIGHUP), "waits")
    assert done.returncode == 128 + signal.SIGHUP, done
    assert done.stdout.startswith("ignored False\ngot 1\n")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_is_the_programs_business(number: signal.Signals, tmp_path: Path) -> None:
    done = signalled("", tmp_path, int(number), "waits")
    assert done.returncode == 0, done
    assert done.stdout == f"ignored False\ngot {int(number)}\n"
    assert f"{number.name} is handed on to the command" in done.stderr


def test_a_program_that_has_no_use_for_it_dies_of_it_as_without_us(tmp_path: Path) -> None:
    stays = "import os, time; os.kill(int(os.environ['OVER']), 10)\ntime.sleep(600)\n"
    done = run_by_shell(stays, "", tmp_path)
    assert done.returncode == 128 + signal.SIGUSR1, done
