"""A rank in detail: its recent calls, its stack, its log, its surroundings, its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len

from ...diagnosis.facts.world import exit_status
from ...record.layout import CallState
from ...record.log_file import at_least
from ...record.snapshot import Call, GroupKey
from ...record.wording import call_text, group_name, ranks_text, signal_name, site_text
from ..picture import LogLine, Picture, RankDetail, Stage
from ..rows import OVER
from ..text import Line, apart, called_at, duration, fit, fold, line, safe, standing, width_of, wrap
from ..widgets import heat
from .base import Body, Key, View, moved, no_rank, taken
from .columns import figures

MOST_NAME = 12

MARKS = {
    CallState.ISSUED: "…",
    CallState.STARTED: "…",
    CallState.COMPLETED: " ",
    CallState.FAILED: "!",
}


def timeline_lines(
    calls: Sequence[Call],
    now_ns: int,
    width: int,
    ended: bool,
    groups: Mapping[GroupKey, str] | None = None,
) -> list[Line]:
    """The calls, newest first. The bars share one scale, from the first call's start to the last
    moment known. `ended`: an open call never came to its end. `groups`: what to call the group of
    each call, where there is more than one."""
    if not calls:
        return [(("no calls on record", "dim"),)]
    bar = max(10, min(50, (width - 60) // 2))
    from_ns = min(call.issued_ns for call in calls)
    until_ns = max(max(call.completed_ns or call.issued_ns for call in calls), from_ns + 1)
    open_calls = any(not call.completed_ns for call in calls)
    if open_calls and not ended:
        until_ns = max(until_ns, now_ns)
    groups = groups or {}
    short = dict(
        zip(groups, apart([safe(name) for name in groups.values()], MOST_NAME), strict=True)
    )
    names = [short.get(call.group, "") for call in calls]
    column = max(map(cell_len, names))
    width -= column + 1 if column else 0
    rows = [_line(call, from_ns, until_ns, bar, width, ended) for call in calls]
    if column:
        rows = [
            ((f"{fit(name, column)} ", "dim"), *row) for name, row in zip(names, rows, strict=True)
        ]
    return rows[::-1]


def _line(call: Call, from_ns: int, until_ns: int, bar: int, width: int, ended: bool) -> Line:
    done = call.completed_ns
    failed = call.state is CallState.FAILED
    tone = "bad" if failed or (ended and not done) else "busy" if not done else ""
    took = duration((done or until_ns) - call.issued_ns) if done or not ended else "no end"
    if done == call.issued_ns:
        took = ""  # read from a dump, which tells that it ended and not when
    number = f"#{call.seq}"
    room = width - bar - 22
    site = safe(site_text(call.site)) if call.site else ""
    said = called_at(safe(call_text(call)), site, max(10, room) + 2)[2:]
    span = until_ns - from_ns
    first = min(bar - 1, (call.issued_ns - from_ns) * bar // span)
    last = min(bar, max(first + 1, -(-((done or until_ns) - from_ns) * bar // span)))
    drawn = "·" * first + "█" * (last - first) + "·" * (bar - last)
    return (
        (fit(number, 7), "dim"),
        (f"{MARKS[call.state]} ", tone),
        (fit(took, 8, right=True), tone),
        (" ", ""),
        (drawn, tone or "good"),
        (" ", ""),
        (fit(said, max(10, room)), tone),
    )


PARTS = ("calls", "stack", "log", "about")
SOURCES = ("stdout", "stderr", "log")
LEAST = "trace"
LEVELS = ("", "debug", "info", "warning", "error")
_TONES = (("error", "bad"), ("warning", "warn"), ("info", ""), (LEAST, "dim"))


def _tone(level: str) -> str:
    return next(tone for least, tone in _TONES if at_least(level or "info", least))


class RankView(View):
    name = "rank"
    key = "r"
    title = "Rank"
    explained = (
        "One rank: recent calls as a timeline, its stack, its log with search (/) and level "
        "filter, and what is known of its process. Beside a call, … says that it has not ended, "
        "and ! that it has failed."
    )
    keys: ClassVar = (
        Key("left_square_bracket", "[", "rank", "the previous rank"),
        Key("right_square_bracket", "]", "rank", "the next rank"),
        Key("tab", "Tab", "part", "calls, stack, log, about"),
        Key("u", "u", "source", "stdout, stderr or the structured log"),
        Key("l", "l", "level", "only log lines of that level or above"),
    )

    part = "calls"
    source = "stdout"
    level = ""
    _at: int | None = None
    """The line of the cursor in the log; None: the newest, as it comes."""

    def body(self, picture: Picture, width: int, height: int) -> Body:
        number = self.chosen.settle(picture)
        detail = picture.detail
        if number is None or number not in picture.states:
            return Body(lines=[line((no_rank(picture), "dim"))])
        top = [self._head(picture, number, width), self._tabs()]
        if detail is None or detail.rank != number:
            return Body(top=top, lines=[line(("reading ...", "dim"))])
        if self.part == "log":
            rows = self._log(detail)
            lines = [line((row.text, _tone(row.level))) for row in rows]
            at = len(lines) - 1 if self._at is None else min(self._at, len(lines) - 1)
            if not lines:
                empty = line(("nothing here", "dim"))
                return Body(top=top, lines=[self.nothing_matches() if self.filter else empty])
            below = whole_line(lines[at], width, max(3, height // 3))
            return Body(top=top, lines=lines, below=below, cursor=at)
        if self.part == "stack":
            stack = self.matching(stack_lines(picture, number))
            return Body(top=top, lines=[part for row in stack for part in standing(row, width)])
        if self.part == "about":
            return Body(top=top, lines=self.matching(about_lines(picture, detail, width)))
        ended = picture.states[number] in OVER
        rank = picture.ranks.get(number)
        own = rank.groups if rank is not None and len(rank.groups) > 1 else ()
        groups = {key: name for key, name in picture.groups if key in own}
        lines = timeline_lines(detail.calls, picture.now_ns, width, ended, groups)
        return Body(top=top, lines=self.matching(lines))

    def _head(self, picture: Picture, number: int, width: int) -> Line:
        state = picture.states[number]
        row = picture.rows.get(number)
        words = row.words if row else state.value
        mark = [("▸", "mark")] if number in picture.culprits else []
        title = f"rank {number} "
        room = width - len(mark) - len(title) - cell_len(words)
        more = called_at(row.call, row.site, room) if row else ""
        return line(*mark, (title, "title"), (words, heat.TONE[state]), more)

    def _tabs(self) -> Line:
        pieces = [(f" {part} ", "cursor" if part == self.part else "dim") for part in PARTS]
        if self.part == "log":
            pieces.append(("  ", ""))
            pieces += [(f" {one} ", "key" if one == self.source else "dim") for one in SOURCES]
            level = f"  level {self.level or 'any'}" if self.source == "log" else ""
            pieces.append((level, "warn"))
        return tuple(pieces)

    def _log(self, detail: RankDetail) -> list[LogLine]:
        rows = detail.logs.get(self.source, ())
        wanted = self.filter.lower()
        return [
            line
            for row in rows
            if wanted in "\n".join((row.text, *row.below)).lower()
            and (self.source != "log" or at_least(row.level or "info", self.level or LEAST))
            for line in (row, *(LogLine(below, row.level) for below in row.below))
        ]

    def press(self, key: str, picture: Picture, page: int) -> bool:
        if key in ("left_square_bracket", "right_square_bracket"):
            ranks: list[int | None] = list(picture.states)
            if ranks:
                at = ranks.index(self.chosen.rank) if self.chosen.rank in ranks else 0
                self.chosen.rank = ranks[(at + (1 if key.startswith("right") else -1)) % len(ranks)]
                self._at = None
        elif key == "tab":
            self.part = PARTS[(PARTS.index(self.part) + 1) % len(PARTS)]
        elif key == "u":
            if self.part == "log":  # else the first press shows where one is
                self.source = SOURCES[(SOURCES.index(self.source) + 1) % len(SOURCES)]
            self.part, self._at = "log", None
        elif key == "l":
            if (self.part, self.source) == ("log", "log"):
                self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]
            self.part, self.source, self._at = "log", "log", None
        elif self.part == "log" and picture.detail is not None:
            count = len(self._log(picture.detail))
            to = moved(count - 1 if self._at is None else self._at, key, count, page)
            if to is None or not count:
                return False
            self._at = None if to == count - 1 else to
        else:
            return False
        return True

    def pointed(self, column: int, row: int, picture: Picture) -> None:
        if self.part == "log":
            self._at = row


def whole_line(row: Line, width: int, most: int) -> list[Line]:
    """A line that is too wide, in at most so many lines; none where it is not."""
    if width_of(row) <= width:
        return []
    rows = fold(row, width, "")
    if len(rows) <= most:
        return rows
    more = f"… {len(rows) - most + 1} more lines; E writes them to a file"
    return [*rows[: most - 1], line((more, "dim"))]


def stack_lines(picture: Picture, number: int) -> list[Line]:
    """The rank's threads, outermost frame first."""
    stacks = picture.stacks
    lines: list[Line] = []
    for name, ranks, tree in stacks.threads if stacks else ():
        if number in ranks and not name.startswith("distdebug"):
            lines.append(line((name, "title")))
            while (node := next((one for one in tree if number in one.ranks), None)) is not None:
                for frame, quiet in zip(node.frames, node.quiet, strict=True):
                    lines.append(line("  ", (frame, "dim" if quiet else "")))
                if node.notes and not any(number in child.ranks for child in node.children):
                    lines.append(line((f"  [{', '.join(node.notes)}]", "warn")))
                tree = node.children
    if lines and stacks:
        return [taken(picture, stacks), *lines]
    hint = "press S to take them" if picture.stage is Stage.LIVE else "none were taken in this run"
    return [line((f"no stack of rank {number}: {hint}", "dim"))]


def about_lines(picture: Picture, detail: RankDetail, width: int) -> list[Line]:
    """The process, its end, what it said of itself, and its notes."""
    rank = picture.ranks.get(detail.rank)
    if rank is None:
        return [line(("not seen yet", "dim"))]
    rows: list[tuple[str, str]] = [
        ("pid", str(rank.pid)),
        ("host", safe(rank.host or "?")),
        ("local rank", str(rank.local_rank)),
        ("world size", str(rank.world_size)),
        ("restarts", str(rank.restart_count)),
        ("calls", str(rank.calls)),
        ("started", _stamp(rank.started_ns)),
    ]
    if not rank.process.alive:
        status = exit_status(rank)
        how = "unknown" if status is None else f"status {status}"
        if rank.process.signal is not None:
            how = signal_name(rank.process.signal)
        rows += [("ended", _stamp(rank.process.ended_ns or 0)), ("exit", how)]
    elif rank.heartbeat_ns:
        rows.append(("heartbeat", f"{duration(picture.now_ns - rank.heartbeat_ns)} ago"))
    row = picture.rows.get(detail.rank)
    if row is not None:
        rows += figures(row)
        rows += [("threads", str(row.usage.threads))] if row.usage.threads is not None else []
    names = dict(picture.groups)
    for key, group in rank.groups.items():
        about = f"{group.backend}, {ranks_text(group.ranks)}, {group.issued} collectives"
        name = names.get(key) or safe(group_name(key[0], group.desc), 80)
        rows.append((f"group {name}", safe(about)))
    shown = {"host", "job"}
    rows += [
        (safe(name, 20), safe(_flat(value)))
        for name, value in detail.identity.items()
        if name not in shown
    ]
    rows += [(f"${safe(name, 80)}", safe(value)) for name, value in detail.environment.items()]
    rows += [(f"note: {safe(note.kind, 16)}", safe(note.message)) for note in rank.notes]
    lines: list[Line] = []
    for name, value in rows:
        first, *rest = wrap(value, max(20, width - 22)) or [""]
        if cell_len(name) > 20:
            lines.append(line((name, "dim")))
            name = ""
        lines.append(line((fit(name, 21), "dim"), first))
        lines += [line((" " * 21, ""), text) for text in rest]
    return lines


def _flat(value: object) -> str:
    """A recorded value in words: the environment, for one, is an object."""
    if isinstance(value, dict):
        return "  ".join(f"{name}={value[name]}" for name in sorted(value))
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _stamp(time_ns: int) -> str:
    if not time_ns:
        return "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ns / 1e9))
