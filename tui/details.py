"""The details that the reader gathers for one screen alone: a group's last collectives, or a
rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..record.dispute import vote
from ..record.limits import SHOWN_RANKS
from ..record.ops import OPS
from ..record.reading.reader import FlightReader
from ..record.signature import exact_key
from ..record.snapshot import Call, GroupKey, Rank
from .files import RankLogs
from .picture import Matrix, RankDetail

COLUMNS = 64
"""The number of a group's last collectives that are shown."""
RECENT = 64


def matrix_of(
    key: GroupKey, name: str, ranks: Mapping[int, Rank], first: Sequence[int]
) -> Matrix | None:
    """The last collectives of the group; of a large one the ranks `first`, then the lowest."""
    states = {number: rank.groups[key] for number, rank in ranks.items() if key in rank.groups}
    if not states:
        return None
    members = sorted({rank for group in states.values() for rank in group.ranks} | set(states))
    shown = list(dict.fromkeys([*(rank for rank in first if rank in members), *members]))
    rows = tuple(members if len(members) <= SHOWN_RANKS else shown[:SHOWN_RANKS])
    front = max(group.issued for group in states.values())
    start = max(0, front - COLUMNS)
    seqs = tuple(range(start, front))
    calls = {}
    for number in rows:
        history = ranks[number].history if number in states else None
        if history is not None:
            for call in history.recent(front - start, key):
                if start <= call.seq < front:
                    calls[number, call.seq] = call
    return Matrix(
        group=key,
        name=name,
        size=len(members),
        ranks=rows,
        seqs=seqs,
        calls=calls,
        issued={number: group.issued for number, group in states.items()},
        odd=_odd(calls, rows, seqs),
    )


def _odd(
    calls: Mapping[tuple[int, int], Call], ranks: Sequence[int], seqs: Sequence[int]
) -> dict[int, frozenset[int]]:
    found = {}
    for seq in seqs:
        answers: dict[tuple[object, ...], list[int]] = {}
        for rank in ranks:
            call = calls.get((rank, seq))
            if call is not None:
                op = call.signature.op
                key = exact_key(call.signature) if op in OPS else (op,)
                answers.setdefault(key, []).append(rank)
        if len(answers) > 1:
            found[seq] = frozenset(vote(answers, 0).culprits)
    return found


def detail_of(number: int, rank: Rank | None, logs: RankLogs) -> RankDetail:
    """Returns the details of one rank."""
    history = rank.history if rank is not None else None
    return RankDetail(
        rank=number,
        calls=tuple(history.recent(RECENT)) if history is not None else (),
        identity=dict(history.identity) if isinstance(history, FlightReader) else {},
        environment=dict(history.environment) if isinstance(history, FlightReader) else {},
        logs=logs.lines(number),
    )
