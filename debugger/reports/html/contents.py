"""The rest of what the page shows of a run: who waits for whom, stacks, the ends of logs, curves of
the host, versions and variables. All of it is read within bounds, and every text is printable; what
has the form of a secret is redacted, since the page is made to be sent to others.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...diagnosis.facts.waits import Waits
from ...record.kinds import Family, kind_of
from ...record.log_file import readable
from ...record.reading.reader import FlightReader
from ...record.runs.log_reader import record_on
from ...record.runs.run_directory import RunDirectory, read_object
from ...record.safe_files import end_of, object_of, open_regular, whole_or_none
from ...record.safe_text import clean, shown_of
from ...record.secret_words import allowed_variables, masked_text
from ...record.snapshot import Rank, is_own
from ...record.wording import RankState, ranks_text, site_text, spans
from ..table import TableRow

LOGS_BYTES = 640 << 10
LOG_BYTES = 16 << 10
MOST_LINE = 1000
MOST_SAMPLES = 160
MOST_VALUES = 48_000
MOST_SAMPLE_BYTES = 1 << 20
MOST_CURVES = 12
"""Of so many ranks each has a curve of its own; of more the middle one and the span of all."""
MOST_DEPTH = 200
MOST_WAITS = 12
_QUIET = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen")
_STREAMS = {"out": "stdout", "err": "stderr", "jsonl": "log"}
WIDTH, HEIGHT = 480, 96


@dataclass(frozen=True, slots=True)
class WaitRow:
    """Ranks that wait for the same. `for_ranks`: all of them must come, or with `any_of` one; `in
    cycle`: they wait for each other."""

    ranks: tuple[int, ...]
    what: str
    where: str
    for_ranks: tuple[int, ...] = ()
    any_of: bool = False
    in_cycle: bool = False


# -- who waits for whom -------------------------------------------------------------------------


def waits_now(graph: Waits) -> list[WaitRow]:
    """Returns the graph of a snapshot, those that wait for the same together."""
    found: dict[tuple[str, str, frozenset[int], bool, int], list[int]] = {}
    for rows in graph.rows.values():
        for row in rows:
            where = clean(site_text(row.site)) if row.site else ""
            own = row.rank if row.rank in graph.cycle else -1  # in a cycle each is a row of its own
            found.setdefault((clean(row.what), where, row.for_ranks, row.any_of, own), []).append(
                row.rank
            )
    made = [
        WaitRow(tuple(ranks), what, where, tuple(sorted(awaited)), any_of, own >= 0)
        for (what, where, awaited, any_of, own), ranks in found.items()
    ]
    return sorted(made, key=lambda row: (not row.in_cycle, not row.for_ranks, row.ranks))


def waits_then(verdict: Mapping[str, Any] | None, rows: Sequence[TableRow]) -> list[WaitRow]:
    """Returns who waited for whom at the verdict, as far as the report tells it: `rows` are the
    classes of ranks."""
    if verdict is None:
        return []
    if verdict.get("cycle"):
        wheres = {rank: row.where for row in rows for rank in row.ranks}
        return [
            WaitRow(
                (one["rank"],),
                one["doing"],
                wheres.get(one["rank"], ""),
                (one["waits_for"],),
                False,
                True,
            )
            for one in verdict["cycle"]
        ]
    kind = kind_of(verdict["kind"])
    if kind.family not in (Family.MISMATCH, Family.ABSENCE):
        return []
    group = set(verdict["group"]["ranks"]) if verdict.get("group") else None
    culprits = {*verdict["culprits"], *verdict.get("missing", ())}
    found = []
    for row in rows:
        waiting = row.what.startswith((RankState.WAITS_IN, "wait in", RankState.WAITS_FOR_STORE))
        ranks = tuple(rank for rank in row.ranks if group is None or rank in group)
        # Where all are culprits, there is no majority: each waits for those that do otherwise.
        awaited = tuple(sorted(culprits - set(row.ranks)))
        if waiting and ranks and awaited and (not row.culprit or kind.voted):
            found.append(WaitRow(ranks, row.what, row.where, awaited))
    return found


@dataclass(frozen=True, slots=True)
class Node:
    """A box of the drawing, at a place in it; `lines`: what stands in it."""

    x: int
    y: int
    lines: tuple[str, ...]
    culprit: bool


def drawing(waits: Sequence[WaitRow], rows: Sequence[TableRow]) -> dict[str, Any] | None:
    """Returns boxes and arrows: who waits to the left, who is waited for to the right; a cycle is a
    column with an arrow back. None where nobody waits for anybody."""
    shown = [row for row in waits if row.for_ranks][:MOST_WAITS]
    if not shown:
        return None
    culprits = {rank for row in rows if row.culprit for rank in row.ranks}
    inside = {rank: at for at, row in enumerate(shown) for rank in row.ranks}
    cyclic = all(row.in_cycle for row in shown)
    nodes, arrows = [], []
    for at, row in enumerate(shown):
        lines = (ranks_text(row.ranks), _cut(row.what), _cut(row.where))
        nodes.append(Node(0, at, lines, cyclic or bool(culprits & set(row.ranks))))
    others: dict[tuple[str, str], set[int]] = {}
    for party in rows:
        for rank in set(party.ranks) & {one for wait in shown for one in wait.for_ranks}:
            if rank not in inside:
                others.setdefault((party.what, party.where), set()).add(rank)
    right = []
    for (what, where), ranks in list(others.items())[:MOST_WAITS]:
        right.append((ranks, len(nodes)))
        lines = (ranks_text(ranks), _cut(what), _cut(where))
        nodes.append(Node(1, len(right) - 1, lines, bool(culprits & ranks)))
    for at, row in enumerate(shown):
        targets = {inside[rank] for rank in row.for_ranks if rank in inside} - {at}
        targets |= {number for ranks, number in right if ranks & set(row.for_ranks)}
        arrows += [(at, target) for target in sorted(targets)]
    return {"nodes": nodes, "arrows": arrows, "rows": max(len(shown), len(right))}


def _cut(text: str, most: int = 44) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# -- stacks -------------------------------------------------------------------------------------


def stacks(directory: RunDirectory) -> list[dict[str, Any]]:
    """Returns the merged stacks of each thread, outermost frame first: `name`, `who`, `tree`."""
    found = []
    for thread in _rows(read_object(directory.stacks_json).get("threads")):
        name = clean(str(thread.get("name", "?")), 80)
        tree = list(_nodes(thread.get("tree"), 0))
        if tree and not name.startswith("distdebug"):
            found.append(
                {"name": name, "who": ranks_text(_ranks(thread.get("ranks"))), "tree": tree}
            )
    return found


def _nodes(rows: Any, depth: int) -> Iterator[dict[str, Any]]:
    for row in _rows(rows) if depth < MOST_DEPTH else ():
        frames = []
        for frame in _rows(row.get("frames")):
            file = str(frame.get("file", ""))
            quiet = (
                bool(frame.get("native")) or is_own(file) or any(part in file for part in _QUIET)
            )
            place = f"{os.path.basename(file)}:{frame.get('line', '?')}"
            source = masked_text(clean(str(frame.get("source") or "").strip(), 200))
            function = clean(str(frame.get("function", "?")), 200)
            frames.append(
                {"function": function, "place": clean(place, 200), "source": source, "quiet": quiet}
            )
        yield {
            "who": ranks_text(_ranks(row.get("ranks"))),
            "frames": frames,
            "notes": [clean(str(note), 200) for note in row.get("notes") or ()],
            "children": list(_nodes(row.get("children"), depth + 1)),
        }


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _ranks(value: Any) -> list[int]:
    return [one for one in value if type(one) is int] if isinstance(value, list) else []


# -- logs ---------------------------------------------------------------------------------------


def logs(
    directory: RunDirectory, first: Iterable[int], ranks: Iterable[int]
) -> list[dict[str, Any]]:
    """Returns the last lines of each log, ranks that said the same together; those of `first` come
    first, and are marked so."""
    chosen = list(dict.fromkeys(first))
    order = list(dict.fromkeys([*chosen, *sorted(ranks)]))
    most = min(LOG_BYTES, LOGS_BYTES // max(1, len(order)))
    said: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in order:
        parts = [(_STREAMS[end], _said(directory.logs / f"{rank}.{end}", most)) for end in _STREAMS]
        if any(text for _, text in parts):
            said.setdefault(tuple(part for part in parts if part[1]), []).append(rank)
    return [
        {"who": ranks_text(who), "parts": parts, "first": bool(set(chosen) & set(who))}
        for parts, who in said.items()
    ]


def _said(path: Path, most_bytes: int) -> str:
    """The last lines of a log as text; "" where there are none."""
    try:
        data, before = end_of(path, most_bytes)
    except OSError:
        return ""
    lines = data.rstrip(b"\n").split(b"\n")
    shown = ["…", *map(_line(path), lines[1:])] if before else map(_line(path), lines)
    return masked_text("\n".join(filter(None, shown)))


def _line(path: Path) -> Any:
    if path.suffix != ".jsonl":
        return lambda line: clean(shown_of(line), MOST_LINE)
    return lambda line: (
        clean(readable(row), MOST_LINE, newlines=True) if (row := record_on(line)) else ""
    )


# -- curves -------------------------------------------------------------------------------------


_Series = dict[str, list[tuple[float, float]]]
_Quantities = tuple[tuple[str, str, float], ...]
_OF_RANKS: _Quantities = (
    ("CPU, % of a core", "cpu_percent", 1.0),
    ("Memory, GiB", "rss_bytes", 2.0**-30),
)
_OF_GPUS: _Quantities = (
    ("GPU in use, %", "use_percent", 1.0),
    ("GPU memory, GiB", "memory_bytes", 2.0**-30),
    ("GPU power, W", "power_w", 1.0),
)


def curves(directory: RunDirectory, culprits: Iterable[int], count: int) -> list[dict[str, Any]]:
    """Returns a figure for each quantity that was sampled, with the points of its lines. `count`:
    about how many ranks there are."""
    series: dict[str, _Series] = {}
    most = min(MOST_SAMPLES, max(32, MOST_VALUES // max(1, count)))
    for sample in _samples(directory.host, most):
        ranks, at_s = sample.get("ranks"), (whole_or_none(sample.get("time_ns")) or 0) / 1e9
        of_ranks = ranks.items() if isinstance(ranks, dict) else ()
        seen = [(f"rank {clean(rank, 20)}", one, _OF_RANKS) for rank, one in of_ranks]
        seen += [
            (f"GPU {clean(str(one.get('index')), 20)}", one, _OF_GPUS)
            for one in _rows(sample.get("gpus"))
        ]
        for who, one, quantities in seen:
            for name, key, factor in quantities:
                value = one.get(key) if isinstance(one, dict) else None
                if not (isinstance(value, int | float) and 0 <= value < 1 << 60):
                    continue
                if value or key != "rss_bytes":  # a process that has just ended has no memory
                    series.setdefault(name, {}).setdefault(who, []).append((at_s, value * factor))
    marked = {f"rank {rank}" for rank in culprits}
    rows = [(name, lines) for name, lines in series.items() if max(map(len, lines.values())) > 1]
    return [_figure(name, lines, marked) for name, lines in rows]


def _samples(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Yields samples at even distances over the whole file, which may be of days and gigabytes."""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            at = 0
            for number in range(most):
                file.seek(max(at, number * size // most))
                if file.tell() > at:
                    file.readline(MOST_SAMPLE_BYTES)  # from the middle of a line to its end
                line = file.readline(MOST_SAMPLE_BYTES)
                at = file.tell()
                if not line:
                    return
                yield object_of(line)
    except OSError:
        return


def _figure(name: str, lines: _Series, marked: set[str]) -> dict[str, Any]:
    times = [at for points in lines.values() for at, _ in points]
    top = max(value for points in lines.values() for _, value in points) or 1.0
    begin, span = min(times), (max(times) - min(times)) or 1.0

    def drawn(points: Iterable[tuple[float, float]]) -> str:
        return " ".join(
            f"{(at - begin) / span * WIDTH:.0f},{HEIGHT - value / top * (HEIGHT - 4):.1f}"
            for at, value in points
        )

    shown, band = sorted(lines, key=lambda who: (len(who), who)), ""
    if len(lines) > MOST_CURVES:
        shown = [who for who in shown if who in marked][:MOST_CURVES]
    made = [{"who": who, "points": drawn(lines[who]), "marked": who in marked} for who in shown]
    if len(lines) > MOST_CURVES:
        at_once: dict[float, list[float]] = {}
        for at, value in itertools.chain.from_iterable(lines.values()):
            at_once.setdefault(at, []).append(value)
        rows = sorted(at_once.items())
        highest = drawn((at, max(each)) for at, each in rows)
        band = f"{highest} {drawn((at, min(each)) for at, each in rows[::-1])}"
        middle = drawn((at, statistics.median(each)) for at, each in rows)
        made.insert(0, {"who": f"median of {len(lines)}", "points": middle, "marked": False})
    last = sorted((points[-1][1], who) for who, points in lines.items())
    ends = " to ".join(f"{value:.3g} ({who})" for value, who in dict.fromkeys((last[0], last[-1])))
    return {
        "name": name,
        "top": f"{top:.3g}",
        "lines": made,
        "band": band,
        "span_s": span,
        "ends": f"at the end {ends}",
    }


# -- surroundings -------------------------------------------------------------------------------

_VERSIONS = ("distdebug", "python", "platform", "level", "checks", "hang_timeout_s")


def surroundings(run: Mapping[str, Any], ranks: Mapping[int, Rank]) -> list[tuple[str, str]]:
    """Returns versions and options of the run, and the variables of an allow-list that ranks have
    on record: who has which value."""
    found = [(name, _flat(run[name])) for name in _VERSIONS if run.get(name)]
    versions = run.get("versions")
    found += (
        [(str(name), _flat(one)) for name, one in versions.items()]
        if isinstance(versions, dict)
        else []
    )
    values: dict[str, dict[str, list[int]]] = {}
    for number, rank in ranks.items():
        if isinstance(rank.history, FlightReader):
            # Once more, for the record may be another program's.
            given = {str(name): str(value) for name, value in rank.history.environment.items()}
            for name, value in allowed_variables(given).items():
                if not name.startswith("DISTDEBUG_"):  # our own: what they say is among the options
                    values.setdefault(name, {}).setdefault(value, []).append(number)
    for name, by_value in sorted(values.items()):
        everybody = len(by_value) == 1 and len(next(iter(by_value.values()))) == len(ranks)
        shown = [
            value if everybody else f"{value} ({ranks_text(who)})"
            for value, who in list(by_value.items())[:8]
        ]
        more = f"; and {len(by_value) - 8} more values" if len(by_value) > 8 else ""
        found.append((f"${name}", "; ".join(shown) + more))
    return [(clean(name, 100), masked_text(clean(value, 2000))) for name, value in found]


def _flat(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def hosts(document: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Returns each host, which ranks are on it, and how many."""
    rows = document.get("hosts")
    return (
        [(host, spans(who), len(who)) for host, who in rows.items()]
        if isinstance(rows, dict)
        else []
    )
