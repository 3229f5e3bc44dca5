"""`distdebug logs`: shows what the ranks printed and logged, merged in time order."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import UsageError
from ..record.limits import MOST_RANKS, POLL_EVERY_S
from ..record.log_file import LEVELS, RECORDS, STDERR, STDOUT, STREAMS, at_least, readable
from ..record.ops import OP_CODES
from ..record.reading import copies
from ..record.requests.supervision import is_live
from ..record.runs.log_reader import Entry, LogReader
from ..record.runs.run_directory import RunDirectory, read_object
from ..record.safe_files import whole_or_none
from ..record.safe_text import clean_line, shown_of
from ..supervisor.output.lines import colour_wanted
from .base import Command, add_run_argument
from .whole_job import followed_whole

PRINTED_AS = "info"
"""The level of a line that a rank has printed."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_CLOCK = re.compile(r"(\d\d?):(\d\d):(\d\d)(\.\d{1,9})?")
_SECONDS = re.compile(r"\d{1,9}(\.\d*)?|\.\d+")


@dataclass(slots=True)
class Filter:
    """The conditions of a line to be shown; None: anything. Times are Unix nanoseconds."""

    level: str | None = None
    group: str | None = None
    op: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if self.op is not None and self.op not in OP_CODES:
            raise UsageError(f"--op takes an op such as all_reduce, not {self.op!r}")

    @property
    def records_only(self) -> bool:
        """Whether it asks for what only records have."""
        graver = self.level is not None and not at_least(PRINTED_AS, self.level)
        return graver or (self.group, self.op) != (None, None)

    def takes(self, entry: Entry) -> bool:
        """Whether the entry is to be shown."""
        fields = entry.fields
        level = fields.get("level") if fields else PRINTED_AS
        if self.level is not None and not at_least(level, self.level):
            return False
        if self.group is not None and fields.get("group") != self.group:
            return False
        if self.op is not None and fields.get("op") != self.op:
            return False
        if self.since_ns is not None and entry.time_ns < self.since_ns:
            return False
        return self.until_ns is None or entry.time_ns <= self.until_ns


def parse_time(flag: str, text: str | None, start_ns: int) -> int | None:
    """`12.5`, seconds since the start, or `14:15:02`, of the two or three such clock times around
    the start the nearest to it. Raises UsageError."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return start_ns + int(float(text) * 1e9)
    clock = _CLOCK.fullmatch(text)
    if clock is not None and int(clock[1]) < 24 and int(clock[2]) < 60 and int(clock[3]) < 60:
        start = datetime.fromtimestamp(start_ns / 1e9).astimezone()
        hour, minute, second = map(int, clock.groups()[:3])
        day = start.replace(hour=hour, minute=minute, second=second, microsecond=0)
        near = min(
            (day + timedelta(days=days) for days in (-1, 0, 1)), key=lambda one: abs(one - start)
        )
        return int(near.timestamp()) * 10**9 + int(float(clock[4] or 0) * 1e9)
    raise UsageError(
        f"{flag} takes seconds since the start of the run, such as 12.5, "
        f"or a clock time, such as 14:15:02, not {text!r}"
    )


def parse_ranks(text: str) -> frozenset[int]:
    """`0,2-3`. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first or last - first > MOST_RANKS:
            raise UsageError(f"--rank takes ranks such as 2 or 0,4-7, not {text!r}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


PIECE_CHARACTERS = 1 << 16
"""Written at once: a line at a time takes a hundred times as long where stdout has no buffer."""


class LogsCommand(Command):
    name = "logs"
    epilog = (
        "A line that a rank printed is shown as `[rank 2] text`; its time is when it was seen, to\n"
        "about 50 ms. A record (of distdebug.log, of torch, of Python's warnings, of distdebug\n"
        "itself) has a level, and may have a group, an op and a line of code:\n"
        "`[node:2] time level event key=value (file:line)`. What was both printed and recorded is\n"
        "shown once, but for --json. --group and --op show records only, and so does --level from\n"
        "warning on: a printed line counts as info.\n"
        "\n"
        "What goes into a rank's records: from info on; with TORCH_CPP_LOG_LEVEL=ERROR, WARNING\n"
        "or INFO from that level on, with INFO and debug level INFO from debug on, with INFO and\n"
        "DETAIL from trace on (every call). The program's own distdebug.log from info on is\n"
        "always there. The last --log-max-mb (of `run` and `exec`) of records, stdout and stderr\n"
        "are kept.\n"
        "\n"
        "examples:\n"
        "  distdebug logs --rank 2 --stderr\n"
        "  distdebug logs -f --rank 0,4-7 --level warning\n"
        "  distdebug logs --group tp --op all_reduce --since 12.5 --until 14:15:02\n"
        "  distdebug logs --events --json | jq .message"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument("--rank", metavar="RANKS", help="only these ranks, such as 0,2-3")
        stream = parser.add_mutually_exclusive_group()
        for flag, streams, what in (
            ("--stdout", (STDOUT,), "only stdout"),
            ("--stderr", (STDERR,), "only stderr"),
            ("--events", (RECORDS,), "only records"),
        ):
            stream.add_argument(
                flag, dest="streams", action="store_const", const=streams, help=what
            )
        parser.add_argument(
            "--level", type=str.lower, choices=LEVELS, help="from this level on; a print is info"
        )
        parser.add_argument("--group", metavar="NAME", help="only records about this group")
        parser.add_argument("--op", metavar="OP", help="only records about this op")
        when = "seconds since the start of the run, or a clock time HH:MM:SS"
        parser.add_argument("--since", metavar="TIME", help=f"nothing before TIME: {when}")
        parser.add_argument("--until", metavar="TIME", help="nothing after TIME")
        parser.add_argument(
            "--json", action="store_true", help="every line and record as a JSON object"
        )
        parser.add_argument(
            "-f", "--follow", action="store_true", help="go on until the run has ended"
        )

    def run(self, args: argparse.Namespace) -> int:
        ranks = parse_ranks(args.rank) if args.rank is not None else None
        wanted = Filter(args.level, args.group, args.op)
        with followed_whole(args.run) as shown:
            return _show(shown, args, wanted, ranks)


def _show(
    shown: Callable[[], RunDirectory],
    args: argparse.Namespace,
    wanted: Filter,
    ranks: frozenset[int] | None,
) -> int:
    directory = shown()
    started_ns = whole_or_none(read_object(directory.run_json).get("started_ns"))
    start_ns = directory.run_json.stat().st_mtime_ns if started_ns is None else started_ns
    wanted.since_ns = parse_time("--since", args.since, start_ns)
    wanted.until_ns = parse_time("--until", args.until, start_ns)
    reader = LogReader(directory.logs, start_ns, _streams(args, wanted), ranks)
    show = _Shown(reader, wanted, args.json)
    while True:
        live = args.follow and is_live(directory.path)
        if live:
            directory = shown()
            reader.look_in(directory.logs)
        unseen_ns = time.time_ns() if live else 0
        show(reader.poll(unseen_ns))
        if not live:
            show(reader.finish(unseen_ns))
            break
        sys.stdout.flush()
        time.sleep(POLL_EVERY_S)
    if ranks is not None and not LogReader(directory.logs, 0, ranks=ranks).found:
        # Whether one of these ranks was in the run, on whatever node.
        files = directory.ranks.glob("*.flight")
        names = (copies.own_name(path.name).removesuffix(".flight") for path in files)
        if not any(name.isdecimal() and int(name) in ranks for name in names):
            raise UsageError(f"there is no output of rank {args.rank} in {directory.path}")
        # It was ended before it had said anything: by its launcher, when another one had failed.
        print(f"distdebug: rank {args.rank} has written nothing", file=sys.stderr)
    return 0


def _streams(args: argparse.Namespace, wanted: Filter) -> tuple[str, ...]:
    streams: tuple[str, ...] | None = args.streams
    if not wanted.records_only:
        return streams or STREAMS
    if streams not in (None, (RECORDS,)):
        flag = "--stdout" if streams == (STDOUT,) else "--stderr"
        raise UsageError(
            f"{flag} shows lines, which have no level, group or op; leave it out, "
            "or leave out --level, --group and --op"
        )
    return (RECORDS,)


class _Shown:
    """Writes the entries that are wanted."""

    def __init__(self, reader: LogReader, wanted: Filter, as_json: bool) -> None:
        self._reader = reader
        self._wanted = wanted
        self._as_json = as_json
        self._colour = colour_wanted(sys.stdout)

    def __call__(self, entries: Iterable[Entry]) -> None:
        pieces: list[str] = []
        size = 0
        for entry in entries:
            if not self._wanted.takes(entry):
                continue
            if self._as_json:
                value = entry.fields
                if not value:
                    said = {"stream": entry.stream, "text": shown_of(entry.line)}
                    value = {"time_ns": entry.time_ns, "rank": entry.rank, **said}
                text = json.dumps(value, separators=(",", ":")) + "\n"
            elif entry.fields.get("printed") and self._reader.shows_stderr_of(entry.rank):
                continue
            elif entry.fields:
                text = f"{readable(entry.fields, colour=self._colour)}\n"
            else:
                shown = clean_line(shown_of(entry.line), colour=self._colour) if entry.line else ""
                text = f"[rank {entry.rank}] {shown}\n"
            pieces.append(text)
            size += len(text)
            if size > PIECE_CHARACTERS:
                sys.stdout.write("".join(pieces))
                pieces, size = [], 0
        sys.stdout.write("".join(pieces))
