"""A report document in one of its forms, as a command prints it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
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
    try:
        if form == "junit":
            from ..reports import junit

            return junit.render(report)
        from ..reports import text

        if form == "story":
            return text.story(report)
        from ..supervisor.output.lines import colour_wanted

        width = text.WIDTH
        if sys.stdout.isatty():
            width = shutil.get_terminal_size((text.WIDTH, 24)).columns
        return text.render(report, colour_wanted(sys.stdout), width)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{source} is damaged: a part of it is missing or of another type "
            f"({type(error).__name__}: {error})"
        ) from error
