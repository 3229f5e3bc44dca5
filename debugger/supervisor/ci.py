"""The output of a run for a CI system (`--ci`): annotations, a job summary, and one file to keep.

Only the flag asks for it, no variable of the environment: a command does the same on a CI machine
and on the desk where its failure is tried again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record.runs.artefact import name_of, pack
from ..record.runs.run_directory import RunDirectory, reason
from ..record.safe_files import append
from ..record.safe_text import Defused, clean
from ..reports import github

_MOST_NAMED = 5


@contextlib.contextmanager
def defused() -> Iterator[None]:
    """Under --ci nothing that is printed is a command to the CI system, but what `finish` says."""
    kept = sys.stdout, sys.stderr
    streams: Any = tuple(map(Defused, kept))
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


@dataclass(frozen=True, slots=True)
class Ci:
    """`artifact`: where to pack the run; None: below `cwd`, by the name of the run."""

    artifact: Path | None
    cwd: Path

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns what is added for the ranks: nobody is there to attach to a `breakpoint()`."""
        return {} if "PYTHONBREAKPOINT" in given else {"PYTHONBREAKPOINT": "0"}

    def finish(
        self, directory: RunDirectory, report: Mapping[str, Any], say: Callable[[str], object]
    ) -> None:
        """Tell the CI system of the finished run, and pack it. What cannot be written is said, and
        costs nothing else."""
        if os.environ.get("GITHUB_ACTIONS") == "true":
            workspace = os.environ.get("GITHUB_WORKSPACE") or str(self.cwd)
            lines = github.annotated(report, workspace)
            ours = sys.stderr.stream if isinstance(sys.stderr, Defused) else sys.stderr
            with contextlib.suppress(OSError, ValueError):
                ours.write("".join(f"{line}\n" for line in lines))
                ours.flush()
        _draw(directory, report, say)
        packed = self._pack(directory, say)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            footer = f"The whole run is in `{packed.name}`." if packed else ""
            try:
                append(Path(summary), github.summary(report, footer).encode())
            except OSError as error:
                say(f"cannot write the job summary {summary}: {reason(error)}")

    def _pack(self, directory: RunDirectory, say: Callable[[str], object]) -> Path | None:
        """The artefact; None where it could not be made."""
        target = self.artifact or self.cwd / name_of(directory.path)
        try:
            packed = pack(directory.path, target)
        except OSError as error:
            say(f"cannot pack the run into {target}: {reason(error)}; it is in {directory.path}")
            return None
        if packed.left_out:
            names = ", ".join(packed.left_out[:_MOST_NAMED])
            more = len(packed.left_out) - _MOST_NAMED
            names += f" and {more} more" if more > 0 else ""
            say(f"too large for the artefact, or unreadable, and not in it: {names}")
        shown = os.path.relpath(target, self.cwd)
        shown = str(target) if shown.startswith("..") else shown
        size = max(1, packed.size_bytes >> 10)
        say(
            f"packed the run into {clean(shown)} ({size} KiB); open it with: "
            f"distdebug tui {shlex.quote(shown)}"
        )
        return target


def _draw(directory: RunDirectory, report: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Puts the report as one page into the run directory."""
    from ..reports.html import page  # which no other run needs

    try:
        directory.write_text(directory.report_html.name, page.rendered(directory, report))
    except Exception as error:  # the run's verdict and its artefact do not wait for a page
        what = f"{type(error).__name__}: {error}"
        say(f"{directory.report_html.name} could not be made, a bug of distdebug's ({clean(what)})")
