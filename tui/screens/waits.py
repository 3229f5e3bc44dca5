"""The wait-for graph as indented text: who waits for whom, in what; a cycle in contrast."""

from __future__ import annotations

from collections.abc import Sequence

from ...diagnosis.facts.waits import RankWait
from ...record.wording import ranks_text, site_text
from ..picture import Picture, Stage, State
from ..text import Line, duration, line, safe, within
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
        lines = self.matching(wait_lines(picture))
        return Body(lines=[part for row in lines for part in within(row, width)])


def wait_lines(picture: Picture) -> list[Line]:
    """The graph of this picture."""
    graph = picture.waits
    if picture.stage is Stage.READING:
        return [line(("reading ...", "dim"))]
    if picture.stage is Stage.ENDED:
        return _stood_lines(picture)
    if not graph.rows:
        return [line(("nobody waits", "dim"))]
    lines: list[Line] = _cycle_lines(graph.cycle)
    inside = set(graph.cycle)
    for waiting in _alike(picture):
        one = waiting[0]
        ranks = [row.rank for row in waiting]
        tone = "bad" if inside & set(ranks) else ""
        site = safe(site_text(one.site)) if one.site else ""
        lasts = duration(picture.now_ns - min(row.since_ns for row in waiting))
        lines.append(
            line(
                (f"{ranks_text(ranks)} ", "title"),
                (f"{lasts} ", "dim"),
                (safe(one.what), tone or "busy"),
                *((("  ", "dim"), (site, "place")) if site else ()),
            )
        )
        if not one.for_ranks:
            lines.append(line(("  may end by itself, or nobody can tell", "dim")))
        word = "waits for one of" if one.any_of and len(one.for_ranks) > 1 else "waits for"
        parties: dict[tuple[str, str, str], list[int]] = {}
        for rank in sorted(one.for_ranks):
            row = picture.rows.get(rank)
            state = picture.states.get(rank)
            words = row.words if row else state.value if state else "not seen yet"
            words = "late, in code of its own" if state is State.LATE else words
            tone = heat.TONE[state] if state else "dim"
            parties.setdefault((words, row.site if row else "", tone), []).append(rank)
        for (words, site, tone), awaited in list(parties.items())[:8]:
            mark = "mark" if inside & set(awaited) else "title"
            at = ((" at ", "dim"), (site, "place")) if site else ()
            waited = (f"  {word} ", "dim")
            lines.append(line(waited, (ranks_text(awaited), mark), (f": {words}", tone), *at))
    return lines


def _cycle_lines(cycle: Sequence[int]) -> list[Line]:
    if not cycle:
        return []
    order = " → ".join(map(str, (*cycle, cycle[0])))
    return [line((" CYCLE ", "mark"), (f" ranks wait for each other: {order}", "bad"))]


def _stood_lines(picture: Picture) -> list[Line]:
    """A run that is over: nobody waits any more, but the report tells how all stood."""
    verdict = picture.verdict
    if verdict is None or not picture.stood:
        return [line(("the run has ended: nobody waits", "dim"))]
    lines = [line((f"the run has ended; at the verdict ({verdict.title}):", "dim"))]
    details, parties = verdict.details, picture.parties()
    if verdict.kind == "deadlock":
        lines += _cycle_lines(verdict.culprits)
        lines += [line(("▸", "mark"), (one, "bad")) for one in details]
        details, parties = (), [party for party in parties if not party[2]]
    for stood, ranks, here in parties[:MOST_PARTIES]:
        at = ((" at ", "dim"), (stood.site, "place")) if stood.site else ()
        lines.append(
            line(
                ("▸" if here else " ", "mark" if here else ""),
                (f"{ranks_text(ranks)} ", "title"),
                (stood.doing, "bad" if here else "busy"),
                *at,
            )
        )
    lines += [line((f"    {one}", "dim")) for one in details]
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
