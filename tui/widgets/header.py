"""Draws what stands above every screen: the run's figures, the screens' names, and the findings."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ...record.kinds import kind_of
from ...record.wording import LOOK_HERE, counted, ranks_text
from ..picture import Picture, Problem, Stage
from ..text import Line, called_at, clip, duration, fit, line, width_of, wrap

BADGES = {
    Stage.LIVE: ("LIVE", "good", "it goes on"),
    Stage.ENDED: ("ENDED", "title", "it has ended; shown as at its end"),
    Stage.KILLED: ("KILLED", "bad", "distdebug was killed with it; shown as at its last heartbeat"),
    Stage.GONE: ("GONE", "bad", "its directory is no longer there; shown as it was seen last"),
    Stage.READING: ("READING", "busy", "it is being read for the first time"),
    Stage.NOTHING: ("NO RUN", "warn", "there is no run there yet, or it cannot be read"),
}
"""The stages of the run: the word of each, its tone, and its meaning."""
MOST_BANNER = 6
MOST_DOUBTS = 2
_KILLED = "distdebug was killed, and left no report; ranks are shown as at the last sign of life"


def header_lines(
    picture: Picture,
    tabs: Sequence[tuple[str, str]],
    here: str,
    missed: str,
    width: int,
    wanted: str = "",
    told: str = "",
) -> list[Line]:
    """Three lines. `tabs` are (key, title); `missed`: what `missed_text` says.
    `wanted`: the filter of this screen; `told`: what else it says of itself."""
    badge, tone, _ = BADGES[picture.stage]
    head: list[tuple[str, str]] = [(f" {badge} ", tone)]
    if missed:
        head.append((f" {missed} ", "cursor"))
    room = width - sum(len(text) for text, _ in head) - 1
    command = picture.command or str(picture.directory)
    if len(command) > room and picture.command:  # the directories of files are left out
        words = command.split(" ")
        command = " ".join(one.rpartition("/")[2] if one[:1] == "/" else one for one in words)
    head.append((f" {command}", "title"))
    names: list[tuple[str, str]] = []
    for key, title in tabs:
        names += [(f" {key}", "key"), (f" {title} ", "cursor" if title == here else "")]
    names += [(f"  only: {wanted}", "warn")] if wanted else []
    names += [(f"  {told}", "key")] if told else []
    return [clip(tuple(head), width), clip(_figures(picture), width), clip(tuple(names), width)]


def missed_text(shown: Picture, newest: Picture, missed: int | None) -> str:
    """Tells that the screen is frozen, how many newer pictures there are, and whether the run has
    ended or a fault was found meanwhile; "" where it is not frozen."""
    if missed is None:
        return ""
    news = [BADGES[newest.stage][0]] if newest.stage is not shown.stage else []
    if newest.verdict is not None and shown.verdict is None:
        news.append(newest.verdict.title)
    return f"PAUSED, {missed} newer" + (f"; now {' '.join(news)}" if news else "")


def _figures(picture: Picture) -> Line:
    parts: list[tuple[str, str]] = []
    kind = picture.outcome or (picture.verdict.kind if picture.verdict else "")
    outcome = kind_of(kind).title if kind else ""
    if picture.stage is Stage.KILLED:
        parts.append(("no report", "bad"))
    if outcome:
        code = "" if picture.exit_code is None else f", exit code {picture.exit_code}"
        parts.append((f"{outcome}{code}", "good" if kind == "ok" else "bad"))
    elif picture.stage is Stage.LIVE:
        late = bool(picture.notices)
        parts.append(
            ("nothing proven so far", "warn") if late else ("nothing wrong so far", "good")
        )
    if picture.started_ns:
        until_ns = picture.ended_ns or picture.now_ns
        parts.append((duration(until_ns - picture.started_ns), ""))
    if picture.states:
        count = len(picture.states)
        seen = len(picture.ranks)
        parts.append((counted(count, "rank") + (f" ({seen} seen)" if seen < count else ""), ""))
    if picture.backend:
        parts.append((picture.backend, ""))
    if picture.calls:
        rate = picture.calls_per_s
        parts.append((counted(picture.calls, "call"), ""))
        if rate is not None:
            parts.append((f"{rate:,.0f} calls/s" if rate >= 10 else f"{rate:.1f} calls/s", ""))
    if picture.host:
        parts.append((picture.host, "dim"))
    pieces: list[tuple[str, str]] = [(" ", "")]
    for part in parts:
        pieces += [part, ("  ", "")]
    return tuple(pieces[:-1])


def banner_lines(picture: Picture, width: int) -> list[Line]:
    """Returns the lines of what is wrong: the verdict in its own words, else notices; and what
    cannot be read."""
    lines: list[Line] = []
    if picture.problem:
        lines += _text("! ", picture.problem, "warn", width)
    if picture.stage is Stage.KILLED:
        lines += _text("! ", _KILLED, "bad", width)
    verdict = picture.verdict
    if verdict is not None:
        lines += _found(verdict, width, _where(picture, width))
    errors = [one for one in picture.found if one.is_error and one is not verdict]
    warnings = [one for one in picture.found if not one.is_error]
    if verdict is None:
        for one in warnings[:2]:
            lines += _found(one, width)
        warnings = warnings[2:]
        for text in picture.notices[:2]:
            lines += _text("… ", text, "warn", width)[:2]
    more = [counted(len(errors), "more error")] if errors else []
    more += [counted(len(warnings), "warning")] if warnings else []
    if more:
        lines.append(line((f"  and {' and '.join(more)}", "dim")))
    lines += _told_lines(picture, width)
    for fault in picture.faults[:1]:
        rest = f" (and {len(picture.faults) - 1} more)" if len(picture.faults) > 1 else ""
        lines += _text("! ", fault + rest, "warn", width)[:2]
    return lines


def _told_lines(picture: Picture, width: int) -> list[Line]:
    """Returns what the report says beside its findings, a line each: doubts first, the rest with
    `d`."""
    doubts = [one for one in picture.told if one.doubt]
    others = [one for one in picture.told if not one.doubt]
    shown = [*doubts[:MOST_DOUBTS], *others[:1]]
    lines = []
    for one in shown:
        tone = "warn" if one.doubt else "dim"
        row = line(("… ", tone), (one.word, tone), (one.text, "" if one.doubt else "dim"))
        cut = width_of(row) > width
        lines.append((*clip(row, width - 2), (" …", "dim")) if cut else row)
    left = len(picture.told) - len(shown)
    more = [f"{left} more"] if left else []
    more += ["calls, bytes and times by group and op"] if picture.table else []
    if more:
        lines.append(line((f"  and {', and '.join(more)}; d shows all", "dim")))
    return lines


def _where(picture: Picture, width: int) -> list[Line]:
    """The line at which to look, and where most others are; nothing where culprits differ: then it
    is not known which of them to look at, or each waits for the next."""
    parties = picture.parties()
    if [here for _, _, here in parties].count(True) != 1:
        return []
    shown = [parties[0], *sorted(parties[1:], key=lambda party: -len(party[1]))[:1]]
    names = [ranks_text(ranks) for _, ranks, _ in shown]
    column = max(map(len, names))
    lines = []
    for name, (stood, _, here) in zip(names, shown, strict=True):
        end = f"  {LOOK_HERE}" if here else ""
        text = called_at(stood.doing, stood.site, max(20, width - column - len(end) - 2))
        tone = "bad" if here else "dim"
        lines.append(clip(line("  ", (fit(name, column), tone), (text, tone), (end, tone)), width))
    return lines


def _found(found: Problem, width: int, below: Sequence[Line] = ()) -> list[Line]:
    """The finding in the most lines that it may have, those that stand `below` it included."""
    tone = "bad" if found.is_error else "warn"
    who = f"  ▸ {ranks_text(found.culprits)}" if found.culprits else ""
    title = line((f" {found.title} ", "mark" if found.is_error else "warn"), (who, tone))
    head = width_of(title) + 2
    rows = wrap(found.message, max(20, width - 2))
    if head + len(found.message) <= width:
        return [(*title, ("  ", ""), (found.message, "")), *below]
    lines: list[Line] = [title, *(line("  ", (row, "")) for row in rows)]
    most = MOST_BANNER - 1 - len(below)
    if len(lines) > most:
        lines = lines[:most]
        lines[-1] = (*clip(lines[-1], width - 2), (" …", "dim"))
    return [*lines, *below]


def _text(sign: str, text: str, tone: str, width: int) -> list[Line]:
    rows = wrap(text, max(20, width - 2))
    return [line((sign if not at else "  ", tone), (row, tone)) for at, row in enumerate(rows)]


def bar_lines(
    keys: Sequence[tuple[str, str]], width: int, most: int = 1, idle: Container[str] = ()
) -> tuple[list[Line], list[tuple[int, int, int, int]]]:
    """The keys at the foot in at most so many lines, grey those that can do nothing now, and where
    each of them is: (line, from column, to column, index)."""
    rows: list[list[tuple[str, str]]] = [[]]
    places = []
    at = 0
    for index, (key, label) in enumerate(keys):
        text = f" {key} "
        size = len(text) + len(label)
        if at + size + 1 > width:
            if len(rows) == most:
                break
            rows.append([])
            at = 0
        tones = ("dim", "dim") if key in idle else ("key", "")
        rows[-1] += [(text, tones[0]), (f"{label} ", tones[1])]
        places.append((len(rows) - 1, at, at + size, index))
        at += size + 1
    return [tuple(row) for row in rows], places
