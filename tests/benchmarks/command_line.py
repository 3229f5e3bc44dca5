"""The command line of measurements that are modules with `EPILOG`, `configure` and `run`, as those
of `distdebug bench` are."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

from distdebug.commands.base import Parser
from distdebug.errors import DistdebugError


def parser(name: str, measurement: ModuleType) -> argparse.ArgumentParser:
    """The parser of `python -m tests.benchmarks.NAME`; it raises UsageError."""
    found = Parser(
        prog=f"python -m tests.benchmarks.{name}",
        description=measurement.__doc__,
        epilog=measurement.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    measurement.configure(found)
    return found


def main(name: str) -> int:
    """Measure, as the command line asks; returns the exit code."""
    measurement = sys.modules["__main__"]
    try:
        code: int = measurement.run(parser(name, measurement).parse_args())
        return code
    except DistdebugError as error:
        print(error, file=sys.stderr)
        return error.exit_code
