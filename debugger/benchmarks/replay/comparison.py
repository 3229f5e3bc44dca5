"""The times of a run and its replay, call for call: per group and op, recorded beside replayed.

Of the time of a collective one part is spent until the last of its ranks has come to it, which is
the program's; the rest is what the call itself took, which is the backend's and the network's. The
same holds of a receive until its send is made.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...record.layout import RING, CallState
from ...record.signature import call_bytes
from ...record.snapshot import GroupKey, Rank, tie_of
from ...record.wording import group_name
from .plan import DEFAULT

Row = tuple[GroupKey, str]
"""A group, as the recorded run has it, and an op."""
_NS = 1e9


@dataclass(slots=True)
class Figures:
    """The figures of all ranks together. `late_s`: the part of `seconds` in which a rank was still
    awaited."""

    calls: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    late_s: float = 0.0


def figures(
    ranks: Mapping[int, Rank],
    names: Mapping[int, Mapping[GroupKey, GroupKey]],
    kept: Mapping[int, Collection[int]] | None = None,
) -> dict[Row, Figures]:
    """Adds up the figures by group and op. `names`: for each rank its groups, as they are called in
    the result; of others, and of calls whose number is not `kept`, nothing is said."""
    found: dict[Row, Figures] = {}
    calls = [
        (number, call, names[number][call.group])
        for number, rank in ranks.items()
        for call in (rank.history.recent(RING) if rank.history is not None else ())
        if call.group in names.get(number, ()) and (kept is None or call.number in kept[number])
    ]
    last: dict[Hashable, int] = {}
    for number, call, group in calls:
        awaited = tie_of(number, call, group)
        last[awaited] = max(last.get(awaited, 0), call.issued_ns)
    for number, call, group in calls:
        one = found.setdefault((group, call.signature.op), Figures())
        one.calls += 1
        one.size_bytes += call_bytes(call.signature)
        if call.state is CallState.COMPLETED and call.completed_ns:
            one.seconds += max(call.completed_ns - call.issued_ns, 0) / _NS
            here_ns = min(last[tie_of(number, call, group)], call.completed_ns)
            one.late_s += max(here_ns - call.issued_ns, 0) / _NS
    return found


def same_names(ranks: Mapping[int, Rank]) -> dict[int, dict[GroupKey, GroupKey]]:
    """The groups of a recorded run, as what they are."""
    return {number: {key: key for key in rank.groups} for number, rank in ranks.items()}


def recorded_names(
    recorded: Mapping[int, Rank], replayed: Mapping[int, Rank]
) -> dict[int, dict[GroupKey, GroupKey]]:
    """Returns for each rank of the replay its groups, by the recorded ones that they stand for:
    both were made in one order."""
    return {
        number: dict(zip(_in_order(replayed[number]), _in_order(rank), strict=False))
        for number, rank in recorded.items()
        if number in replayed
    }


def _in_order(rank: Rank) -> list[GroupKey]:
    defaults = [key for key, group in rank.groups.items() if group.desc == DEFAULT]
    made = [one.group for one in rank.creations if one.group in rank.groups]
    among = [key for key in rank.groups if key not in made and key not in defaults]
    return [*defaults, *made, *sorted(among, key=lambda key: (rank.groups[key].ranks, key))]


# -- the table ----------------------------------------------------------------------------------

_HEAD = (
    f"{'group':<18}{'op':<26}{'calls':>9}{'bytes':>16}"
    f"{'recorded s':>13}{'of it late':>12}{'replayed s':>13}{'of it late':>12}"
)


def table(
    ranks: Mapping[int, Rank], recorded: Mapping[Row, Figures], replayed: Mapping[Row, Figures]
) -> Iterator[str]:
    """The lines: a row for each group and op, then what they come to."""
    titles = {
        key: group_name(key[0], group.desc)
        for rank in ranks.values()
        for key, group in rank.groups.items()
    }
    yield _HEAD
    for row in sorted(recorded, key=lambda row: (row[0], -recorded[row].seconds, row[1])):
        then, now = recorded[row], replayed.get(row, Figures())
        title = titles[row[0]]
        shown = title if len(title) < 18 else f"{title[:14]}..."
        yield (
            f"{shown:<18}{row[1]:<26}{_both(then.calls, now.calls):>9}"
            f"{_both(then.size_bytes, now.size_bytes):>16}"
            f"{then.seconds:>13.3f}{then.late_s:>12.3f}{now.seconds:>13.3f}{now.late_s:>12.3f}"
        )
    yield ""
    yield from _conclusions(titles, recorded, replayed)


def _both(then: int, now: int) -> str:
    return str(then) if then == now else f"{then}/{now}"


def _conclusions(
    titles: Mapping[GroupKey, str],
    recorded: Mapping[Row, Figures],
    replayed: Mapping[Row, Figures],
) -> Iterator[str]:
    then_bytes, now_bytes = by_group(recorded), by_group(replayed)
    apart = [key for key in then_bytes if then_bytes[key] != now_bytes.get(key, 0)]
    for key in apart:
        yield (
            f'group "{titles[key]}": {then_bytes[key]} bytes recorded, '
            f"{now_bytes.get(key, 0)} replayed"
        )
    if then_bytes and not apart:
        yield f"the same {sum(then_bytes.values())} bytes, group by group"
    for what, rows in (("recorded", recorded), ("replayed", replayed)):
        seconds = sum(one.seconds for one in rows.values())
        late_s = sum(one.late_s for one in rows.values())
        if seconds:
            yield (
                f"{what}: {seconds:.3f} s in calls, all ranks together; in {late_s:.3f} s of it "
                f"({late_s / seconds:.0%}) a rank was awaited (the program), in "
                f"{seconds - late_s:.3f} s the calls moved data (the backend and the network)"
            )


def by_group(rows: Mapping[Row, Figures]) -> dict[GroupKey, int]:
    """The bytes of each group."""
    found: dict[GroupKey, int] = {}
    for (group, _), one in rows.items():
        found[group] = found.get(group, 0) + one.size_bytes
    return found


def as_json(
    ranks: Mapping[int, Rank], recorded: Mapping[Row, Figures], replayed: Mapping[Row, Figures]
) -> Sequence[dict[str, Any]]:
    """The rows of the table."""
    descs = {key: group.desc for rank in ranks.values() for key, group in rank.groups.items()}
    return [
        {
            "group": {"name": row[0][0], "again": row[0][1], "desc": descs[row[0]]},
            "op": row[1],
            **{
                what: {
                    "calls": one.calls,
                    "bytes": one.size_bytes,
                    "seconds": one.seconds,
                    "late_seconds": one.late_s,
                }
                for what, one in (
                    ("recorded", recorded[row]),
                    ("replayed", replayed.get(row, Figures())),
                )
            },
        }
        for row in sorted(recorded)
    ]
