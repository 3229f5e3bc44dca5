"""The fixture `distdebug_run`: runs a script under the real command line, and reads its report."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..hook import loading
from .limits import END_S, RUN_TIMEOUT_S
from .run_report import Report

_ENVIRONMENT_OF_OTHERS = ("DISTDEBUG_", "TORCHELASTIC_", "PET_")
_OF_AN_OUTER_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class RunScript:
    """The runs of one test; each call is a run of its own, whose record lies below the test's
    folder."""

    def __init__(self, place: Path, scripts: Path) -> None:
        self._place = place
        self._scripts = scripts
        self._runs = 0

    def __call__(
        self,
        script: str | os.PathLike[str],
        *arguments: object,
        nproc: int = 2,
        inject: str | Sequence[str] | None = None,
        backend: str | None = None,
        timeout: float = RUN_TIMEOUT_S,
        level: str | None = None,
        check: str | None = None,
        env: Mapping[str, str] | None = None,
        options: str | Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
    ) -> Report:
        """`distdebug run -n NPROC [--inject SPEC] SCRIPT ARGUMENTS`, to its end.

        A `script` that is no absolute path is looked for in `cwd`, then beside the test's file.
        `backend` is handed to the script as the environment variable BACKEND; a fault that cannot
        work on it is refused before the run starts. `timeout` is in seconds: then the run is
        interrupted, and the test fails with where the ranks stood. `level` and `check` are those of
        the command, `options` further flags of it, each a word, or all as one text that is split
        as a shell does; `env` is added to the environment. The test fails, too, when a fault that
        was to be injected never was.
        """
        folder = Path(cwd) if cwd is not None else self._place
        self._runs += 1
        directory = self._place / f"run{self._runs}"
        # The command of this installation, whatever the script's folder has by its name.
        command = loading.command("cli", "run", "-n", str(nproc), "--run-dir", str(directory))
        for fault in [inject] if isinstance(inject, str) else inject or ():
            command += ["--inject", fault]
        command += ["--inject-backend", backend] if inject and backend else []
        command += ["--debug-level", level] if level is not None else []
        command += ["--check", check] if check is not None else []
        command += shlex.split(options) if isinstance(options, str) else options
        command += [str(self._find(script, folder)), *map(str, arguments)]
        surroundings = self._environment({"BACKEND": backend} if backend else {}, env or {})
        done = _run(command, folder, surroundings, timeout)
        report = Report(directory, command, *done, _document(directory))
        fail_for_silent_faults(report)
        return report

    def _find(self, script: str | os.PathLike[str], folder: Path) -> Path:
        places = (
            [Path(script)] if os.path.isabs(script) else [folder / script, self._scripts / script]
        )
        for place in places:
            if place.is_file():
                return place
        pytest.fail(
            f"distdebug_run: there is no script {os.fspath(script)} in "
            f"{' or '.join(str(one.parent) for one in places)}",
            pytrace=False,
        )

    @staticmethod
    def _environment(*added: Mapping[str, str]) -> dict[str, str]:
        """This process's, without what belongs to a run around it."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ENVIRONMENT_OF_OTHERS) and name not in _OF_AN_OUTER_RANK
        }
        for more in added:
            kept.update(more)
        return kept


def _run(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException as error:
        # Interrupted, it ends its ranks and says where each of them stood.
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            stderr = ""
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        pytest.fail(
            f"distdebug_run: the run did not end within {timeout_s:g} s\n{stderr[-8000:]}",
            pytrace=False,
        )
    return process.returncode, stdout, stderr


def _document(directory: Path) -> dict[str, Any]:
    """report.json; empty where the run has left none (wrong usage, say)."""
    try:
        found = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fail_for_silent_faults(report: Report) -> None:
    """A test of a fault that never came to be shows nothing."""
    silent = [one for one in report.injected if one.get("fired") is False]
    if silent:
        named = ", ".join(repr(str(one.get("fault"))) for one in silent)
        pytest.fail(f"a fault never fired: {named}\n{report.explain()}", pytrace=False)
