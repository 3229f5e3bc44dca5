"""The wait-for graph as indented text: who waits for whom, in what; a cycle in contrast."""

from __future__ import annotations

from debugger.diagnosis.waits import RankWait
from debugger.record.wording import ranks_text, site_text

from ..picture import Picture, Stage
from ..text import Line, clip, duration, line, safe
from ..widgets import heat
from .base import Body, View

MOST_PARTIES = 200


class WaitsView(View):
    name = "waits"
    key = "w"
    title = "Waits"
    explained = (
        "Who waits for whom, and in what call; below each, what those do that are waited for. "
        "Ranks that wait for each other in a cycle come first, in contrast."
    )

    def body(self, picture: Picture, width: int, height: int) -> Body:
        lines = wait_lines(picture)
        wanted = self.filter.lower()
        if wanted:
            lines = [row for row in lines if wanted in "".join(text for text, _ in row).lower()]
        return Body(lines=[clip(row, width) for row in lines])


def wait_lines(picture: Picture) -> list[Line]:
    """The graph of this picture."""
    graph = picture.waits
    if not graph.rows:
        over = picture.stage is Stage.ENDED
        text = "the run has ended: nobody waits" if over else "nobody waits"
        return [line((text, "dim"))]
    lines: list[Line] = []
    if graph.cycle:
        order = " → ".join(map(str, (*graph.cycle, graph.cycle[0])))
        lines.append(line((" CYCLE ", "mark"), (f" ranks wait for each other: {order}", "bad")))
    inside = set(graph.cycle)
    for waiting in _alike(picture):
        one = waiting[0]
        ranks = [row.rank for row in waiting]
        tone = "bad" if inside & set(ranks) else ""
        site = f" at {safe(site_text(one.site))}" if one.site else ""
        lasts = duration(picture.now_ns - min(row.since_ns for row in waiting))
        lines.append(
            line(
                (f"{ranks_text(ranks)} ", "title"),
                (safe(one.what), tone or "busy"),
                (f"{site}, {lasts}", "dim"),
            )
        )
        lines += _awaited(picture, one, inside)
    return lines


def _awaited(picture: Picture, one: RankWait, inside: set[int]) -> list[Line]:
    if not one.for_ranks:
        return [line(("  may end by itself, or nobody can tell", "dim"))]
    word = "waits for one of" if one.any_of and len(one.for_ranks) > 1 else "waits for"
    lines: list[Line] = []
    parties: dict[tuple[str, str, str], list[int]] = {}
    for rank in sorted(one.for_ranks):
        row = picture.rows.get(rank)
        state = picture.states.get(rank)
        words = row.words if row else state.value if state else "not seen yet"
        tone = heat.TONE[state] if state else "dim"
        site = row.site if row else ""
        parties.setdefault((words, site, tone), []).append(rank)
    for (words, site, tone), ranks in list(parties.items())[:8]:
        mark = "mark" if inside & set(ranks) else "title"
        at = f" at {site}" if site else ""
        lines.append(
            line(
                (f"  {word} ", "dim"), (ranks_text(ranks), mark), (f": {words}", tone), (at, "dim")
            )
        )
    return lines


def _alike(picture: Picture) -> list[list[RankWait]]:
    """Waits for the same, together: those of the cycle first, then the longest."""
    parties: dict[tuple[str, frozenset[int], bool], list[RankWait]] = {}
    for rows in picture.waits.rows.values():
        for row in rows:
            # In a deadlock each rank of the cycle is a line of its own.
            cyclic = row.rank in picture.waits.cycle
            key = (row.what + (f"@{row.rank}" if cyclic else ""), row.for_ranks, row.any_of)
            parties.setdefault(key, []).append(row)
    order = {rank: at for at, rank in enumerate(picture.waits.cycle)}
    found = sorted(
        parties.values(),
        key=lambda rows: (
            min(order.get(row.rank, len(order)) for row in rows),
            min(row.since_ns for row in rows),
        ),
    )
    return found[:MOST_PARTIES]
