"""`distdebug tui`: opens the terminal app on a run, or on dumps of torch's flight recorder."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .base import Command, add_run_argument


class TuiCommand(Command):
    name = "tui"
    epilog = (
        "`distdebug run --tui ...` starts a run and opens the app on it; ? explains every key.\n"
        "\n"
        "examples:\n"
        "  distdebug tui\n"
        "  distdebug tui 20260310-141502-7f3a\n"
        "  distdebug tui 20260310-141502-7f3a.distdebug.tar.gz\n"
        "  distdebug tui ~/.cache/torch    # dumps of torch's flight recorder"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser, "; or dumps of torch's flight recorder: a folder, or one file")

    def run(self, args: argparse.Namespace) -> int:
        from ..supervisor.terminal_app import command_line

        with (
            _directory(args.run) as path,
            subprocess.Popen(command_line(path)) as app,
        ):
            try:
                return app.wait()
            except BaseException:  # a signal: the app gives the terminal back before it ends
                app.terminate()
                raise


@contextlib.contextmanager
def _directory(run: str | None) -> Iterator[Path]:
    """The run directory to show, which of dumps or an artefact is gone after the `with`."""
    from ..record.runs.artefact import opened

    # The reading of dumps is imported only where it may be needed: the app starts in a blink.
    if run is not None and Path(run).exists() and not (Path(run) / "run.json").exists():
        from ..foreign.dump_files import looks_like_dumps
        from . import foreign_report

        if looks_like_dumps(Path(run)):
            with foreign_report.as_run(Path(run)) as path:
                yield path
            return
    with opened(run) as directory:
        yield directory.path
