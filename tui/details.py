"""What the reader gathers for one screen alone: a group's last collectives, or one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..record.majority import vote
from ..record.ops import OPS
from ..record.reading.reader import FlightReader
from ..record.signature import exact_key
from ..record.snapshot import Call, GroupKey, Rank
from .files import RankLogs
from .picture import Matrix, RankDetail

COLUMNS = 64
"""So many of a group's last collectives are looked at."""
MOST_RANKS = 128
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
    rows = tuple(members if len(members) <= MOST_RANKS else shown[:MOST_RANKS])
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
                answers.setdefault(_key(call), []).append(rank)
        if len(answers) > 1:
            found[seq] = frozenset(vote(answers, 0).culprits)
    return found


def _key(call: Call) -> tuple[object, ...]:
    known = call.signature.op in OPS
    return exact_key(call.signature) if known else (call.signature.op,)


def detail_of(number: int, rank: Rank | None, logs: RankLogs) -> RankDetail:
    """One rank from close up."""
    history = rank.history if rank is not None else None
    return RankDetail(
        rank=number,
        calls=tuple(history.recent(RECENT)) if history is not None else (),
        identity=dict(history.identity) if isinstance(history, FlightReader) else {},
        environment=dict(history.environment) if isinstance(history, FlightReader) else {},
        logs=logs.lines(number),
    )
