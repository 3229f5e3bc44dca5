"""`distdebug tui`: opens the terminal app on a run."""

from __future__ import annotations

import argparse
import subprocess

from .base import Command, add_run_argument


class TuiCommand(Command):
    name = "tui"
    help = "watch a run in the terminal, live or after the fact"
    epilog = (
        "`distdebug run --tui ...` starts a run and opens the app on it; ? explains every key.\n"
        "\n"
        "examples:\n"
        "  distdebug tui\n"
        "  distdebug tui 20260310-141502-7f3a\n"
        "  distdebug tui 20260310-141502-7f3a.distdebug.tar.gz"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from ..record.unpacking import opened
        from ..supervisor.terminal_app import command_line

        with (
            opened(args.run) as directory,
            subprocess.Popen(command_line(directory.path)) as app,
        ):
            try:
                return app.wait()
            except BaseException:  # a signal: the app gives the terminal back before it ends
                app.terminate()
                raise
