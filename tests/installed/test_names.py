"""Beside modules of the user's with the names of ours and of what ours need, everything works, and
these modules are what the user's imports give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import namesakes, runs
from tests.support.installed import Environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
IN_PATH = {"PYTHONPATH": "."}


def _run(
    environment: Environment, script: Path, bug: str, cwd: Path, extra: dict[str, str] | None = None
) -> runs.Run:
    run = cwd / f"run-{bug}"
    flags = ["--run-dir", str(run), "-n", "2", *namesakes.LIMITS]
    done = environment.run("distdebug", "run", *flags, str(script), bug, cwd=cwd, extra=extra)
    return runs.Run(done.returncode, "", done.stdout, run)


@pytest.mark.parametrize("bug", namesakes.EXPECTED)
def test_a_planted_bug_beside_modules_in_the_scripts_folder(
    environment: Environment, bug: str, tmp_path: Path
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    namesakes.write(project)
    namesakes.check(_run(environment, project / namesakes.PROGRAM, bug, elsewhere), bug)


def test_a_planted_bug_beside_modules_on_pythonpath(
    environment: Environment, tmp_path: Path
) -> None:
    namesakes.write(tmp_path, tmp_path / "modules")
    extra = {"PYTHONPATH": str(tmp_path / "modules")}
    script = tmp_path / namesakes.PROGRAM
    namesakes.check(_run(environment, script, "mismatch", tmp_path, extra), "mismatch")
    namesakes.check(_run(environment, script, "hang", tmp_path, extra), "hang")


def test_beside_modules_of_an_editable_install(environment: Environment, tmp_path: Path) -> None:
    """Those of the names that are free: of two installed packages with one name Python has the
    first, with distdebug or without."""
    namesakes.write(tmp_path, tmp_path / "src", ("debugger", "tui", "wrapt"))
    link = environment.packages / "__editable__.of_the_user.pth"
    link.write_text(f"{tmp_path / 'src'}\n")
    try:
        script = tmp_path / namesakes.PROGRAM
        namesakes.check(_run(environment, script, "mismatch", tmp_path), "mismatch")
        _check_tests(environment, tmp_path, "pytest")
    finally:
        link.unlink()


@pytest.mark.parametrize("command", ["pytest", "python"])
def test_pytest_as_without_us(environment: Environment, command: str, tmp_path: Path) -> None:
    namesakes.write(tmp_path)
    _check_tests(environment, tmp_path, command)


def _check_tests(environment: Environment, project: Path, command: str) -> None:
    flags = [*(["-m", "pytest"] if command == "python" else []), "-p", "no:cacheprovider"]
    without = ["-p", "no:distdebug", "test_plain.py"]
    stock = environment.run(command, *flags, *without, cwd=project)
    ours = environment.run(command, *flags, "test_plain.py", cwd=project)
    assert stock.returncode == ours.returncode == 0, stock.stdout + ours.stdout
    assert "distdebug" in ours.stdout.split("plugins:")[1].splitlines()[0], ours.stdout
    assert _result(stock.stdout) == _result(ours.stdout)
    done = environment.run(command, *flags, "test_ranks.py", cwd=project)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "MISMATCH  ranks disagree" in done.stdout, done.stdout
    namesakes.check_output(done.stdout)


def _result(output: str) -> str:
    return re.sub(r" in [\d.]+s", "", output.splitlines()[-1])


def test_commands_with_the_project_on_pythonpath(environment: Environment, tmp_path: Path) -> None:
    namesakes.write(tmp_path)
    namesakes.check(
        _run(environment, tmp_path / namesakes.PROGRAM, "hang", tmp_path, IN_PATH), "hang"
    )
    run = str(tmp_path / "run-hang")
    trace = str(tmp_path / "trace.json")
    for code, *words in (
        (0, "report", run),
        (0, "runs"),
        (0, "logs", run),
        (0, "stacks", run),
        (0, "tui", "--help"),
        (0, "export", "--trace", trace, run),
        (2, "inspect", "--pid", "1"),
    ):
        done = environment.run("distdebug", *map(str, words), cwd=tmp_path, extra=IN_PATH)
        assert done.returncode == code, (words, done.stdout)
        own = [line for line in done.stdout.splitlines() if line.startswith("Traceback")]
        assert not own, (words, done.stdout)
        namesakes.check_output(done.stdout)
