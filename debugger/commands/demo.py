"""`distdebug demo`: runs a program with a planted bug on four ranks, and reports it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from .run import RunCommand

_PROGRAM = Path(__file__).with_name("programs") / "demo.py"


class DemoCommand(RunCommand):
    name = "demo"
    epilog = (
        "Writes the program to .distdebug/demo.py, beside the records, and runs it as\n"
        "`distdebug run -n 4 .distdebug/demo.py` does: exit code 91, since ranks disagree.\n"
        "Takes the flags of `distdebug run`.\n"
        "\n"
        "examples:\n"
        "  distdebug demo\n"
        "  distdebug demo --tui"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        super().configure(parser)
        parser.usage = "distdebug demo [flags of distdebug run]"

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Read the flags, and make the program. It is a copy in the user's own folder: what lies in
        ours is taken for the tool's code, and no line of it is shown as the user's."""
        from ..launch.torchrun_flags import split_at_script
        from ..record.runs.run_directory import BASE, RunDirectoryError, make_base, reason
        from ..record.safe_files import replacing

        if {"-h", "--help"} & set(argv):
            return parser.parse_args(["--help"])
        flags, behind = split_at_script(argv, parser)
        if behind:
            raise UsageError(f"demo takes flags alone, not {behind[0]!r}: its program is its own")
        # All is refused that will be, a Python without torch too, before anything is written.
        super().parse(parser, ["-n", "4", *flags, str(_PROGRAM)])
        program = BASE / _PROGRAM.name
        try:
            make_base(BASE)
            with replacing(program, lasts=False) as file:
                file.write(_PROGRAM.read_bytes())
        except OSError as error:
            raise RunDirectoryError(
                f"the program of the demo cannot be written to {program}: {reason(error)}; "
                "change to a folder of your own"
            ) from error
        return super().parse(parser, ["-n", "4", *flags, str(program)])
