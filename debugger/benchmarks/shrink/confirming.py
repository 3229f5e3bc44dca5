"""A small program is run for real, under `distdebug run`, in a folder of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...hook import loading
from ...reports import stored
from ..limits import CONFIRM_HANG_S
from .recorded import Aim
from .reducing import Reduced
from .writing import NotWritten, written

_MOST_PROGRAMS = 2
_MOST_RUNS = 2
"""On a busy host a rank may come too late once."""
_MOST_HANGS = 12
_QUOTES = re.compile(r'["\\\s]')


def confirmed(steps: Sequence[Reduced], aim: Aim, level: str, name: str) -> tuple[Reduced, str]:
    """Returns the smallest of the programs, with its source, that ends as the run did; `steps` are
    ever smaller, `name` is that of its file. Raises NotWritten, which says why the smallest does
    not."""
    why = NotWritten("")
    for one in steps[: -_MOST_PROGRAMS - 1 : -1]:
        size = len(one.programs)
        about = f"of a run of {steps[0]}: {aim.said_of(one.culprits)}.\n"
        about += f"\n    distdebug run -n {size} {_QUOTES.sub('_', name)}\n"
        try:
            source = written(one.programs, aim.cause, about, in_one_loop=aim.parted)
            for _ in range(_MOST_RUNS):
                found = _ending(source, size, level)
                if found is not None and aim.is_met_by(found, one.culprits):
                    return one, source
            ended = "nothing was found" if found is None else found.said_of(found.culprits)
            raise NotWritten(
                f"the program that was written did not end so under distdebug run: {ended}"
            )
        except NotWritten as error:
            why = error if not str(why) else why
    raise why


def _ending(source: str, size: int, level: str) -> Aim | None:
    """Returns what is found in a run of the program on so many ranks, at this debug level; None
    where that is nothing. Raises OSError where it cannot be written."""
    with tempfile.TemporaryDirectory(
        prefix="distdebug-shrink-", ignore_cleanup_errors=True
    ) as name:
        program, directory = Path(name) / "small.py", Path(name) / "run"
        program.write_text(source, encoding="utf-8")
        words = ["run", "--run-dir", str(directory), "-n", str(size), "--debug-level", level]
        words += ["--hang-timeout", f"{CONFIRM_HANG_S:g}", str(program)]
        try:
            subprocess.run(
                loading.command("cli", *words),
                cwd=name,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_MOST_HANGS * CONFIRM_HANG_S,
                check=False,
            )
            report = stored.load(directory / "report.json")
            return None if report is None else Aim.of(report, ())
        except (subprocess.TimeoutExpired, UsageError):
            return None
