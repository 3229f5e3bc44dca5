"""`distdebug logs`: shows what the ranks printed, every line with its rank's name."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..record.run_directory import RunDirectory, is_live
from ..record.sanitize import clean_line
from ..supervisor.output import colour_wanted
from .base import Command, add_run_argument

POLL_EVERY_S = 0.1
MAX_LINE_BYTES = 1 << 16
READ_BYTES = 1 << 18
_MOST_RANKS = 1 << 20
_LOG = re.compile(r"(0|[1-9]\d{0,8})\.(out|err)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class LogsCommand(Command):
    name = "logs"
    help = "show what the ranks printed"
    epilog = (
        "Rank after rank, stdout before stderr; with -f, lines as they come.\n"
        "\n"
        "examples:\n"
        "  distdebug logs --rank 2 --stderr\n"
        "  distdebug logs -f --rank 0,4-7"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument("--rank", metavar="RANKS", help="only these ranks, such as 0,2-3")
        stream = parser.add_mutually_exclusive_group()
        stream.add_argument(
            "--stdout", dest="streams", action="store_const", const=("out",), help="only stdout"
        )
        stream.add_argument(
            "--stderr", dest="streams", action="store_const", const=("err",), help="only stderr"
        )
        parser.add_argument(
            "-f", "--follow", action="store_true", help="go on until the run has ended"
        )

    def run(self, args: argparse.Namespace) -> int:
        wanted = _ranks(args.rank) if args.rank is not None else None
        directory = RunDirectory.open(args.run)
        logs = Logs(directory.logs, args.streams or ("out", "err"), wanted, _write)
        if not args.follow:
            logs.poll()
            logs.finish()
            if wanted is not None and not logs.found:
                raise UsageError(f"there is no output of rank {args.rank} in {directory.path}")
            return 0
        while True:
            live = is_live(directory.path)
            logs.poll()
            if not live:
                logs.finish()
                return 0
            sys.stdout.flush()
            time.sleep(POLL_EVERY_S)


@dataclass(slots=True)
class _Log:
    """One file: how much of it was shown, and the line that has no end yet."""

    path: Path
    rank: int
    offset: int = 0
    rest: bytes = b""


class Logs:
    """The logs of a run, or some of them. `write(rank, line)` gets every whole line once."""

    def __init__(
        self,
        directory: Path,
        streams: tuple[str, ...],
        ranks: frozenset[int] | None,
        write: Callable[[int, bytes], None],
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._ranks = ranks
        self._write = write
        self._logs: dict[str, _Log] = {}

    @property
    def found(self) -> bool:
        """Whether there is any file of the ranks that are wanted."""
        return bool(self._logs)

    def poll(self) -> None:
        """Write what was added since the last call."""
        for log in self._files():
            for line in _new_lines(log):
                self._write(log.rank, line)

    def finish(self) -> None:
        """Write lines that never got an end."""
        for log in self._logs.values():
            if log.rest:
                self._write(log.rank, log.rest)
                log.rest = b""

    def _files(self) -> list[_Log]:
        try:
            names = [
                match for one in self._directory.iterdir() if (match := _LOG.fullmatch(one.name))
            ]
        except OSError:
            names = []  # it vanished: what was found before may still be open to us
        for match in names:
            rank = int(match[1])
            if match[2] in self._streams and (self._ranks is None or rank in self._ranks):
                self._logs.setdefault(match[0], _Log(self._directory / match[0], rank))
        return sorted(self._logs.values(), key=lambda log: (log.rank, log.path.suffix != ".out"))


def _new_lines(log: _Log) -> Iterator[bytes]:
    try:
        with open(log.path, "rb", buffering=0) as file:
            if file.seek(0, 2) < log.offset:
                log.offset, log.rest = 0, b""  # somebody emptied it
            file.seek(log.offset)
            while received := file.read(READ_BYTES):
                log.offset += len(received)
                *lines, log.rest = (log.rest + received).split(b"\n")
                yield from lines
                if len(log.rest) > MAX_LINE_BYTES:
                    yield log.rest
                    log.rest = b""
    except OSError:
        return


def _write(rank: int, line: bytes) -> None:
    states = [part for part in line.split(b"\r") if part]  # of a progress bar: the last
    text = (states[-1] if states else b"").decode("utf-8", "backslashreplace")
    sys.stdout.write(f"[rank {rank}] {clean_line(text, colour=colour_wanted(sys.stdout))}\n")


def _ranks(text: str) -> frozenset[int]:
    """`0,2-3`. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first or last - first > _MOST_RANKS:
            raise UsageError(f"--rank takes ranks such as 2 or 0,4-7, not {text!r}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)
