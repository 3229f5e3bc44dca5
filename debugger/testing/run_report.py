"""The outcome of a run that a test started, and what a test may expect of it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..record.kinds import KINDS
from ..record.safe_text import clean

_ANY: Any = object()
MOST_TEXT = 8000


class Report:
    """A finished run. `outcome` is "ok", the kind of the verdict, "failed", ... ("" where the run
    left no report); `findings` are those of report.json, the verdict first."""

    def __init__(
        self,
        run_dir: Path,
        command: Sequence[str],
        exit_code: int,
        stdout: str,
        stderr: str,
        document: dict[str, Any],
    ) -> None:
        self.run_dir = run_dir
        self.command = list(command)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.document = document

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
            self._fail(f"expected {kind} ({severity}){_no_kind(kind)}, but found {what}")
        wrong = list(
            filter(
                None,
                (
                    _ranks("culprits", culprits, found),
                    _ranks("victims", victims, found),
                    _within(within, found),
                    _line(line, found),
                    _cause(cause, found),
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


def _no_kind(kind: str) -> str:
    """Returns what is said of a kind that no finding ever has."""
    if kind in KINDS:
        return ""
    near = difflib.get_close_matches(kind, KINDS, n=1)
    return f", which is no kind of finding (kinds: {', '.join(near or sorted(KINDS))})"


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


def _cause(expected: Any, found: dict[str, Any]) -> str | None:
    if expected is _ANY or expected == found["cause"]:
        return None
    return f"its cause is {found['cause']}, not {expected}"
