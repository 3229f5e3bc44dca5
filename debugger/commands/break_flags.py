"""The flags of breakpoints; of `--break` finds the file that is meant, and tells a line at which
Python cannot stop."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..record.requests.breakpoints import BreakAt, canonical_file, lines_with_code, parse_break


def add(group: argparse._ArgumentGroup) -> None:
    """The flags of breakpoints."""
    group.add_argument(
        "--break",
        dest="breaks",
        action="append",
        default=[],
        metavar="PLACE",
        help=(
            "stop before FILE:LINE, or before the call OP#SEQ of any group, such as all_reduce#12; "
            "every rank that comes there, or with @RANK that one (may be repeated)"
        ),
    )
    group.add_argument(
        "--pdb",
        action="store_true",
        help="stop where an uncaught exception was raised, on the first rank that raises one",
    )
    group.add_argument(
        "--debugger",
        choices=("pdb", "debugpy"),
        default="pdb",
        help="what breakpoints wait for: `distdebug attach` (default), or an editor",
    )


def places(
    texts: Sequence[str], command: Sequence[str], world_size: int | None = None
) -> tuple[str, ...]:
    """Returns what the ranks of this command are told: with absolute names of files. `world_size`:
    where it is known, a rank beyond it is refused. Raises UsageError."""
    found = tuple(_place(text, command) for text in texts)
    for text, place in zip(texts, found, strict=True):
        if world_size is not None and place.rank is not None and place.rank >= world_size:
            raise UsageError(
                f"--break {text}: there is no rank {place.rank}; ranks count from 0 to "
                f"{world_size - 1}"
            )
    return tuple(map(str, found))


def _place(text: str, command: Sequence[str]) -> BreakAt:
    try:
        asked = parse_break(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if asked.op:
        return asked
    found = next((one for one in _candidates(asked.file, command) if one.is_file()), None)
    if found is None:
        raise UsageError(
            f"--break {text}: there is no file {asked.file} here, beside the script, or where "
            "Python looks for modules"
        )
    try:
        lines = lines_with_code(found.read_text(encoding="utf-8"), str(found))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"--break {text}: {found} cannot be read as Python: {error}") from None
    if asked.line not in lines:
        after = min((line for line in lines if line > asked.line), default=max(lines, default=0))
        near = f"; line {after} has" if after else ""
        raise UsageError(f"--break {text}: line {asked.line} has no code at which to stop{near}")
    return replace(asked, file=canonical_file(str(found)))


def _candidates(file: str, command: Sequence[str]) -> Iterator[Path]:
    yield Path(file)
    if not os.path.isabs(file):
        for word in command:
            if word.endswith(".py"):
                yield Path(word).parent / file
        folders = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
        yield from (Path(folder) / file for folder in folders if folder)
