"""The flags `--ci` and `--ci-artifact`: what a run is to leave for a CI system."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..record.runs.artefact import SUFFIX
from ..supervisor.ci import Ci


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "--ci",
        action="store_true",
        help=(
            "for CI: no colour, annotations and a job summary in GitHub Actions, and the run "
            "packed into one file; breakpoint() is passed over (never implied: $CI changes nothing)"
        ),
    )
    group.add_argument(
        "--ci-artifact",
        type=Path,
        metavar="FILE",
        help=(
            "with --ci: where to pack the run, which `tui`, `report`, `stacks` and `logs` open "
            f"(default: NAME{SUFFIX} in the current directory)"
        ),
    )


def chosen(args: argparse.Namespace) -> Ci | None:
    """Returns what the flags ask for. Raises UsageError."""
    path: Path | None = args.ci_artifact
    if args.ci:
        for flag, given in (("--break", args.breaks), ("--pdb", args.pdb), ("--tui", args.tui)):
            if given:
                raise UsageError(f"{flag} waits for somebody at a terminal; leave it out with --ci")
    if path is not None:
        if not args.ci:
            raise UsageError("--ci-artifact needs --ci")
        if path.is_dir():
            raise UsageError(f"--ci-artifact {path} is a directory; name a file, such as {path}/x")
        if not path.parent.is_dir():
            raise UsageError(f"--ci-artifact {path}: there is no directory {path.parent}")
    return Ci(path and path.absolute(), Path.cwd()) if args.ci else None
