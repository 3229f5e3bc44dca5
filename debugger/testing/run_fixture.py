"""The fixture `distdebug_run`: runs a script under the real command line, and reads its report."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ..hook import loading
from ..record.kinds import KINDS
from ..record.safe_text import clean
from ..record.wording import nearest_word
from .limits import END_S, RUN_TIMEOUT_S

_ANY: Any = object()
MOST_TEXT = 8000


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """A finished run. `outcome` is "ok", the kind of the verdict, "failed", ... ("" where the run
    left no report); `findings` are those of report.json, the verdict first."""

    run_dir: Path
    command: Sequence[str]
    exit_code: int
    stdout: str
    stderr: str
    document: dict[str, Any]

    def __repr__(self) -> str:
        return f"<Report: {self.outcome or 'none'}, exit code {self.exit_code}>"

    @property
    def outcome(self) -> str:
        return str(self.document.get("outcome", ""))

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.document.get("findings", ()))

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [one for one in self.findings if one["severity"] == "error"]

    @property
    def injected(self) -> list[dict[str, Any]]:
        """The faults that were asked for; `fired`: whether each came to be."""
        found = self.document.get("injected")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def expect(
        self,
        kind: str,
        *,
        culprits: Sequence[int] | None = None,
        victims: Sequence[int] | None = None,
        within: float | None = None,
        line: str | int | None = None,
        cause: str | None = _ANY,
        severity: str = "error",
    ) -> dict[str, Any]:
        """The finding of that kind; with `severity` "error" it must be the verdict.

        `culprits` and `victims` are compared as sets of ranks. `within`: seconds from the moment
        the fault became observable to its detection. `line`: where a culprit stood, as
        "train.py:41", or 41 in whatever file. AssertionError shows what was found instead.
        """
        __tracebackhide__ = True
        candidates: list[dict[str, Any]] = [
            one for one in self.findings if one["severity"] == severity
        ]
        if severity == "error":
            candidates = candidates[:1]
        found = next((one for one in candidates if one["kind"] == kind), None)
        if found is None:
            what = ", ".join(str(one["kind"]) for one in candidates) or "nothing"
            known = nearest_word(kind, KINDS) or ", ".join(sorted(KINDS))
            none = "" if kind in KINDS else f", which is no kind of finding (kinds: {known})"
            self._fail(f"expected {kind} ({severity}){none}, but found {what}")
        wrong = list(
            filter(
                None,
                (
                    _ranks("culprits", culprits, found),
                    _ranks("victims", victims, found),
                    _within(within, found),
                    _line(line, found),
                    None
                    if cause is _ANY or cause == found["cause"]
                    else f"its cause is {found['cause']}, not {cause}",
                ),
            )
        )
        if wrong:
            self._fail(f"found {kind}, but {'; '.join(wrong)}")
        return found

    def expect_clean(self) -> None:
        """The program ended well, and nothing was found, not even a warning."""
        __tracebackhide__ = True
        if self.outcome != "ok" or self.exit_code != 0:
            self._fail(f"expected a clean run, but its outcome is {self.outcome or 'not known'}")
        if self.findings:
            kinds = ", ".join(str(one["kind"]) for one in self.findings)
            self._fail(f"expected a clean run, but found {kinds}")

    def explain(self) -> str:
        """The report's text, for the message of a failed assertion."""
        try:
            text = (self.run_dir / "report.txt").read_text(errors="backslashreplace")
        except OSError:
            text = self.stderr
        shown = clean(text[-MOST_TEXT:], newlines=True).rstrip()
        return f"{shown}\nexit code {self.exit_code}, record in {self.run_dir}"

    def _fail(self, sentence: str) -> NoReturn:
        __tracebackhide__ = True
        raise AssertionError(f"{sentence}\n{self.explain()}")


def _ranks(name: str, expected: Sequence[int] | None, found: dict[str, Any]) -> str | None:
    if expected is None or sorted(expected) == sorted(found[name]):
        return None
    return f"the {name} are {sorted(found[name])}, not {sorted(expected)}"


def _within(limit_s: float | None, found: dict[str, Any]) -> str | None:
    if limit_s is None:
        return None
    after_s = found["detected_after_s"]
    if after_s is None:
        return "how long it took to detect was not measured"
    return f"it took {after_s:.2f} s, more than {limit_s:g} s" if after_s > limit_s else None


def _line(expected: str | int | None, found: dict[str, Any]) -> str | None:
    if expected is None:
        return None
    file, _, number = str(expected).rpartition(":")
    places = []
    for rank in found["culprits"]:
        location = found["ranks"].get(str(rank), {}).get("location")
        if not location:
            continue
        path = Path(str(location["file"]))
        if (
            str(location["line"]) == number
            and path.parts[len(path.parts) - len(Path(file).parts) :] == Path(file).parts
        ):
            return None
        places.append(f"{path.name}:{location['line']}")
    return f"the culprits stood at {', '.join(places) or 'no known line'}, not {expected}"


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
        surroundings = {  # this process's, without what belongs to a run around it
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ENVIRONMENT_OF_OTHERS) and name not in _OF_AN_OUTER_RANK
        }
        surroundings |= {"BACKEND": backend} if backend else {}
        surroundings |= env or {}
        done = _run(command, folder, surroundings, timeout)
        try:
            document = json.loads((directory / "report.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            document = None  # the run has left none: wrong usage, say
        report = Report(directory, command, *done, document if isinstance(document, dict) else {})
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
        why = f"distdebug_run: the run did not end within {timeout_s:g} s\n{stderr[-8000:]}"
        raise pytest.fail.Exception(why, pytrace=False) from None
    return process.returncode, stdout, stderr


def fail_for_silent_faults(report: Report) -> None:
    """A test of a fault that never came to be shows nothing."""
    silent = [one for one in report.injected if one.get("fired") is False]
    if silent:
        named = ", ".join(repr(str(one.get("fault"))) for one in silent)
        pytest.fail(f"a fault never fired: {named}\n{report.explain()}", pytrace=False)
