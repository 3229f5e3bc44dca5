"""`python -m distdebug.tui RUN`: opens the app on a run directory, or on an artefact of one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ..record.runs.artefact import opened
from ..record.runs.run_directory import RunDirectoryError
from ..record.safe_text import clean

_USAGE = (
    "usage: python -m distdebug.tui RUN\n"
    "RUN: a run directory, its name below .distdebug/, or a file that --ci has packed"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Open the app; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(_USAGE + "\n")
        return 0 if words in (["-h"], ["--help"]) else 2
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("distdebug: the app needs a terminal; `distdebug report` does not\n")
        return 2
    # Nothing of what is imported becomes garbage; looking for it costs a sixth of the start.
    gc.disable()
    from .app import TerminalApp

    gc.freeze()
    gc.enable()
    path = Path(words[0])
    try:
        # Only what is packed must be there now: on a directory the app waits for a run to begin.
        with opened(words[0]) if os.path.isfile(path) else nullcontext() as unpacked:
            app = TerminalApp(path if unpacked is None else unpacked.path)
            app.run()
    except RunDirectoryError as error:
        sys.stderr.write(f"distdebug: {clean(str(error))}\n")
        return 2
    for place, trace in app.guard.kept.items():
        sys.stderr.write(
            f"distdebug: while the app ran, {place} failed; please report this:\n{trace}"
        )
    return app.return_code or 0


if __name__ == "__main__":
    raise SystemExit(main())
