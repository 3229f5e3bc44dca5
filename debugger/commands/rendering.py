"""A report document in one of its forms, as a command prints it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..record.runs.run_directory import RunDirectory
    from ..reports.stored import Document

FORMS = ("text", "json", "junit")


def add_form_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """`--text`, `--json`, `--junit`: which form is wanted, as `form`. Returns their group, for a
    form that one command has alone."""
    form = parser.add_mutually_exclusive_group()
    helps = ("for people (default)", "the report.json document", "JUnit XML, for CI")
    for name, said in zip(FORMS, helps, strict=True):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, default="text", help=said
        )
    return form


def rendered(report: Document, form: str, source: object) -> str:
    """The report in this form, as wide as the terminal. Raises UsageError, with `source`, where
    the document is damaged."""
    if form == "json":
        return json.dumps(report, indent=2) + "\n"
    with _of_what_may_be_damaged(source):
        if form == "junit":
            from ..reports import junit

            return junit.render(report)
        from ..reports import text

        if form == "story":
            return text.story(report)
        from ..supervisor.output.lines import colour_wanted

        return text.render(report, colour_wanted(sys.stdout), text.columns(sys.stdout))


@contextlib.contextmanager
def scratch_run(
    command: Sequence[str], report: Document, stacks: Mapping[str, Any] | None = None
) -> Iterator[RunDirectory]:
    """A run directory that has this report, and is gone after the `with`. Raises UsageError where
    it cannot be written."""
    from ..record.runs.artefact import scratch_folder
    from ..record.runs.run_directory import RunDirectory

    with scratch_folder() as scratch:
        # No link to the newest run comes to point there: there are none below this base.
        directory = RunDirectory.create(scratch / "runs", explicit=scratch / "job")
        directory.write_json(directory.run_json.name, {"command": list(command)})
        directory.write_json(directory.report_json.name, report)
        if stacks is not None:
            directory.write_json("stacks/stacks.json", dict(stacks))
        directory.close()  # nothing is live
        if directory.failures:
            raise UsageError(directory.failures[0])
        yield directory


def written_as_html(directory: RunDirectory, report: Document, path: Path) -> str:
    """Writes the page of the run into this file; returns what is said of it. Raises UsageError."""
    from ..reports.html import page

    with _of_what_may_be_damaged(directory.report_json):
        size = page.write(directory, report, path)
    return f"{path} ({max(1, size >> 10)} KiB): open it in any browser; it needs no network\n"


@contextlib.contextmanager
def _of_what_may_be_damaged(source: object) -> Iterator[None]:
    """Raises UsageError, with `source`, where the document has not what it should have."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{source} is damaged: a part of it is missing or of another type "
            f"({type(error).__name__}: {error})"
        ) from error
