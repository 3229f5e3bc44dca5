"""`distdebug export`: writes what was recorded of a run in a form that other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from .base import Command, add_run_argument


class ExportCommand(Command):
    name = "export"
    help = "write a run's record for other tools: as dumps of torch's flight recorder"
    epilog = (
        "One dump a rank, which torch's own analyser loads.\n"
        "\n"
        "examples:\n"
        "  distdebug export --fr dumps\n"
        "  torchfrtrace dumps --prefix rank_\n"
        "  distdebug export --fr dumps 20260310-141502-7f3a"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument(
            "--fr",
            metavar="DIR",
            type=Path,
            required=True,
            help="where the flight recorder dumps go: a new or empty folder",
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..foreign import as_dumps
        from ..record.records import Records, newest_ranks
        from ..record.unpacking import opened

        folder: Path = args.fr
        with opened(args.run) as directory:
            records = Records(directory.ranks)
            records.look()
            # A command may have started several worlds, one after the other: the newest counts.
            worlds = records.snapshots()
            ranks = newest_ranks(worlds[-1:])
            if not ranks:
                faults = "; ".join(map(directory.as_known, records.faults.values()))
                raise UsageError(f"{args.run or directory.path} has no rank's record. {faults}")
            try:
                if folder.exists() and any(folder.iterdir()):
                    raise UsageError(f"{folder} is not empty: name a new folder")
                count = as_dumps.write(ranks, folder)
            except OSError as error:
                raise UsageError(f"{folder} cannot be written: {error.strerror}") from error
            for fault in records.faults.values():
                print(f"left out: {directory.as_known(fault)}")
        print(f"{count} dumps in {folder}: torchfrtrace {folder} --prefix {as_dumps.PREFIX}")
        return 0
