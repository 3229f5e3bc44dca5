"""`python -m tui DIR`: opens the app on a run directory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_USAGE = "usage: python -m tui DIR      (DIR: a run directory, or its name below .distdebug/)"


def main(argv: Sequence[str] | None = None) -> int:
    """Open the app; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(_USAGE + "\n")
        return 0 if words in (["-h"], ["--help"]) else 2
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("distdebug: the app needs a terminal; `distdebug report` does not\n")
        return 2
    from .app import TerminalApp

    app = TerminalApp(Path(words[0]))
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    raise SystemExit(main())
