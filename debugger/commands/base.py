"""The parts of every command of `distdebug`: a name, an example of its use, and a body."""

from __future__ import annotations

import argparse
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ..errors import UsageError
from . import COMMANDS

if TYPE_CHECKING:
    from ..record.runs.run_directory import RunDirectory
    from ..record.snapshot import Rank

_MOST_EVENTS_BYTES = 1 << 22


class Command(ABC):
    """A command of `distdebug`. `epilog` shows an example. Errors are raised: only `cli.main` makes
    them exit codes."""

    name: ClassVar[str]
    epilog: ClassVar[str]

    @abstractmethod
    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's flags and arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit code."""

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Read what follows the command's name. A command whose line is not argparse's, because
        a part of it belongs to somebody else's program, overrides this."""
        return parser.parse_args(argv)

    def parser(self) -> argparse.ArgumentParser:
        """The command's parser, configured."""
        does = COMMANDS[self.name]
        parser = Parser(
            prog=f"distdebug {self.name}",
            description=does[:1].upper() + does[1:] + ".",
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.configure(parser)
        return parser


class Parser(argparse.ArgumentParser):
    """argparse, whose complaints are a `UsageError` of one sentence with the next step."""

    def error(self, message: str) -> NoReturn:
        from ..record.wording import nearest_word

        _, _, unknown = message.partition("unrecognized arguments: -")
        meant = nearest_word(unknown.split(" ")[0].split("=")[0], self._option_string_actions)
        hint = f": did you mean {meant}?" if unknown and meant else f"; see `{self.prog} --help`"
        raise UsageError(f"{message}{hint}")


def add_run_argument(
    parser: argparse.ArgumentParser, more: str = "", *, packed: bool = True
) -> None:
    """The argument RUN that most commands take. `packed`: it may be an artefact of --ci, too."""
    what = "a run directory, its name below .distdebug/, or a file that --ci has packed"
    if not packed:
        what = "a run directory, or its name below .distdebug/"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help=f"{what} (default: the newest run){more}"
    )


def newest_world(directory: RunDirectory) -> tuple[dict[int, Rank], list[str]]:
    """Returns the ranks that the run has on record, and sentences about what cannot be read. A
    command may have started several worlds, one after the other: the newest counts."""
    from ..record.reading.records import Records, newest_ranks

    records = Records(directory.ranks)
    records.look()
    ranks = newest_ranks(records.snapshots()[-1:])
    return ranks, [directory.as_known(fault) for fault in records.faults.values()]


def record_of(
    directory: RunDirectory, run: str | None
) -> tuple[dict[int, Rank], dict[str, Any], list[dict[str, Any]]]:
    """Returns the ranks of the newest world that the run has on record, its report (empty without
    one), and its events. `run`: as it was named. Raises UsageError where a record is unreadable, or
    there is none."""
    from ..record.safe_files import object_of, read_regular
    from ..reports import stored

    ranks, faults = newest_world(directory)
    if faults or not ranks:
        raise UsageError(faults[0] if faults else f"{run or directory.path} has no rank's record")
    events = b""
    with contextlib.suppress(OSError):  # without it nothing tells when it ended
        events = read_regular(directory.events, _MOST_EVENTS_BYTES)
    report = stored.load(directory.report_json) or {}
    return ranks, report, [object_of(line) for line in events.splitlines()]
