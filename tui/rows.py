"""From a snapshot to what screens show: of each rank its state, its call, how far behind; and for
one screen alone a group's last collectives, or a rank in detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..diagnosis.facts.call_histories import odd_ranks
from ..diagnosis.facts.waits import Waits
from ..diagnosis.facts.world import DEFAULT_GROUP, exit_status
from ..diagnosis.findings import Finding
from ..record.kinds import kind_of
from ..record.layout import Activity, GroupState, Phase
from ..record.limits import SHOWN_RANKS
from ..record.notes import FindingRaisedNote
from ..record.ops import POINT_TO_POINT
from ..record.reading.reader import FlightReader
from ..record.snapshot import Call, GroupKey, Rank
from ..record.wording import RankState, call_text, group_name, signal_name, site_text, spans
from .files import RankLogs
from .limits import LATE_AFTER_NS
from .picture import Matrix, Problem, Progress, RankDetail, RankRow, State, Stood, Usage
from .text import apart, safe

MOST_ROWS = 64
"""The most ranks that all have rows; of a larger world only the odd ones; the heat map shows
all."""
MOST_ODD = 200
MOST_NAME = 80
_STOPPED = frozenset("Tt")
_ODD = frozenset({State.LATE, State.STOPPED, State.DEAD, State.BREAKPOINT})
_STARTING = frozenset({Activity.INIT, Activity.NEW_GROUP})
OVER = frozenset({State.DEAD, State.ENDED, State.FINISHED})
"""States of a process that is no more."""


def state_of(
    rank: Rank | None,
    waits: Waits,
    number: int,
    now_ns: int,
    found: Sequence[Problem] = (),
    over: bool = False,
    stopped: bool = False,
) -> State:
    """The state of a rank; None: it has not been seen yet. `found`: the errors so far;
    `over`: the run is; `stopped`: by its user."""
    if rank is None:
        return State.UNSEEN if over else State.STARTING
    if not rank.process.alive:
        status = exit_status(rank)
        failed = rank.process.signal is not None or (status is not None and status != 0)
        ended = status == 0 or (status is None and rank.phase is Phase.ENDED)
        if ended and not failed:
            return State.FINISHED
        # Whether a finding says that the process ended by itself. Else it raised what was found, or
        # was stopped for it, by distdebug or by a launcher: consequences are no findings.
        consequence = (found or stopped) and not any(
            kind_of(one.kind).ends_culprits and rank.rank in one.culprits for one in found
        )
        return State.ENDED if consequence else State.DEAD
    if rank.process.state in _STOPPED:
        return State.STOPPED
    rows = waits.rows.get(number, ())
    if any(row.activity is Activity.PAUSED for row in rows):
        return State.BREAKPOINT
    if any(row.for_ranks for row in rows):
        return State.STARTING if rows[0].activity in _STARTING else State.WAITING
    since_ns = waits.awaited.get(number)
    if since_ns is not None and now_ns - since_ns >= LATE_AFTER_NS:
        return State.LATE
    if rows:
        return State.STARTING if rows[0].activity in _STARTING else State.IN_CALL
    if not rank.groups:
        return State.STARTING
    return State.COMPUTING


def told(rank: Rank) -> bool:
    """Whether the rank has raised the verdict: what it did after that says nothing."""
    return bool(FindingRaisedNote.among(rank.notes))


def fronts(ranks: Mapping[int, Rank]) -> dict[GroupKey, int]:
    """Per group, how many collectives its front runner has issued."""
    found: dict[GroupKey, int] = {}
    for rank in ranks.values():
        for key, group in rank.groups.items():
            if group.issued > found.get(key, -1):
                found[key] = group.issued
    return found


def lag_of(rank: Rank, front: Mapping[GroupKey, int]) -> int:
    """Returns by how many collectives the rank is behind, in the group where it is furthest
    behind."""
    return max(
        (
            front.get(key, 0) - group.issued
            for key, group in rank.groups.items()
            if group.state is not GroupState.DESTROYED
        ),
        default=0,
    )


def odd_ones(
    states: Mapping[int, State], culprits: Iterable[int], lags: Mapping[int, int]
) -> list[int]:
    """The ranks worth a row in a world that is too large for all: culprits, states that need a
    look, and, where those are few, who is furthest behind."""
    found = dict.fromkeys(rank for rank in sorted(culprits) if rank in states)
    dead = sum(1 for state in states.values() if state is State.DEAD)
    all_dead = dead > MOST_ODD  # the end of a run: then the culprits alone say something
    for rank, state in states.items():
        if len(found) >= MOST_ODD:
            break
        if state in _ODD and not (all_dead and state is State.DEAD):
            found.setdefault(rank)
    if len(found) < MOST_ROWS:
        behind = sorted((rank for rank in lags if lags[rank] > 0), key=lambda r: (-lags[r], r))
        for rank in behind[: MOST_ROWS - len(found)]:
            found.setdefault(rank)
    return list(found)


def row_of(
    number: int,
    rank: Rank | None,
    state: State,
    waits: Waits,
    lag: int,
    culprit: bool,
    usage: Usage,
    progress: Progress,
    groups: Mapping[GroupKey, str],
    stood: Stood | None = None,
) -> RankRow:
    """The overview's row of one rank; `groups`: what to call each; `stood`: how it did when the
    verdict was told."""
    if rank is None:
        words = str(state.value) if state is State.UNSEEN else "not seen yet"
        return RankRow(number, state, words, culprit=culprit)
    rows = waits.rows.get(number, ())
    call = _current_call(rank, state)
    since_ns = rows[0].since_ns if rows else (call.completed_ns or call.issued_ns if call else 0)
    if state is State.LATE and not since_ns:
        since_ns = waits.awaited.get(number, 0)
    if state in OVER:
        since_ns = rank.process.ended_ns or rank.heartbeat_ns
    site = rows[0].site if rows and rows[0].site else None
    if site is None and not (state in OVER and (told(rank) or rank.process.signal is None)):
        site = rank.location  # else that is where it printed its traceback, or cleaned up
    site = site or (call.site if call else None)
    where = safe(site_text(site)) if site else ""
    if state in OVER and stood is not None and stood.site:
        where = stood.site
    ending, status = "", _status(rank)
    if state is State.DEAD and rank.process.signal is not None and not rank.exit_code:
        ending = signal_name(rank.process.signal)
    elif state is State.DEAD and status is not None:
        ending = f"status {status}"
    return RankRow(
        rank=number,
        state=state,
        words=words_of(rank, state, waits, number),
        call=safe(call_text(call)) if call else "",
        group=groups.get(call.group, "") if call else "",
        seq=call.seq if call else None,
        since_ns=since_ns,
        lag=lag,
        site=where,
        culprit=culprit,
        usage=usage,
        progress=progress,
        host=safe(rank.host, 80),
        pid=rank.pid,
        is_message=call is not None and call.signature.op in POINT_TO_POINT,
        ending=ending,
    )


def _status(rank: Rank) -> int | None:
    """Returns the rank's status. It was on its way out when the others' end, or a launcher, made it
    short."""
    return rank.exit_code or exit_status(rank)


def words_of(rank: Rank, state: State, waits: Waits, number: int) -> str:
    """The state in a few words more: who is waited for, how it ended."""
    if state is State.DEAD:
        if rank.process.signal is not None and not rank.exit_code:
            return f"killed by {signal_name(rank.process.signal)}"
        status = _status(rank)
        return "gone" if status is None else f"exited with {status}"
    if state is State.ENDED:
        if told(rank):
            return "raised the verdict"
        if rank.process.signal is not None:
            return f"ended by {signal_name(rank.process.signal)}"
        return "ended with the run"
    if state is State.FINISHED:
        return RankState.FINISHED
    if state is State.STOPPED:
        return RankState.STOPPED
    if state is State.LATE:
        return "others wait for it"
    if state is State.BREAKPOINT:
        return RankState.AT_BREAKPOINT
    awaited = next((row for row in waits.rows.get(number, ()) if row.for_ranks), None)
    if awaited is not None:
        what = "one of " if awaited.any_of and len(awaited.for_ranks) > 1 else ""
        word = "joins, waits" if state is State.STARTING else "waits"
        return f"{word} for {what}{spans(awaited.for_ranks)}"
    return str(state.value)


def _current_call(rank: Rank, state: State) -> Call | None:
    """The call that a thread is in, or else the last one."""
    if rank.history is None:
        return None
    if state not in OVER:
        for wait in rank.waits:
            if wait.call is not None:
                call = rank.history.call(wait.call)
                if call is not None:
                    return call
    return rank.history.call(rank.calls - 1) if rank.calls else None


def groups_of(ranks: Mapping[int, Rank]) -> list[tuple[GroupKey, str]]:
    """Every group with what the user would call it, the default group first; names that several
    groups have are numbered."""
    found: dict[GroupKey, tuple[bool, str]] = {}
    for rank in ranks.values():
        for key, group in rank.groups.items():
            if key not in found:
                name = safe(group_name(key[0], group.desc), MOST_NAME)
                found[key] = (group.desc != DEFAULT_GROUP, name)
    order: Sequence[GroupKey] = sorted(found, key=lambda key: (found[key][0], len(key[0]), key))
    return list(zip(order, apart([found[key][1] for key in order], MOST_NAME), strict=True))


def first_used(groups: Iterable[GroupKey], ranks: Mapping[int, Rank]) -> GroupKey:
    """Returns the first of these groups in which a collective was called; else the first."""
    keys = list(groups)
    used = (
        key
        for key in keys
        for rank in ranks.values()
        if key in rank.groups and rank.groups[key].issued
    )
    return next(used, keys[0])


COLUMNS = 64
"""The number of a group's last collectives that are shown."""
RECENT = 64


def matrix_of(
    key: GroupKey,
    name: str,
    ranks: Mapping[int, Rank],
    first: Sequence[int],
    parting: Finding | None = None,
) -> Matrix | None:
    """The last collectives of the group; of a large one the ranks `first`, then the lowest.
    `parting`: the warning that its lines part."""
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
    odd = {}
    for seq in seqs:
        made = [number for number in rows if (number, seq) in calls]
        differ = odd_ranks({number: calls[number, seq].signature for number in made})
        if differ:
            odd[seq] = differ
    return Matrix(
        group=key,
        name=name,
        size=len(members),
        ranks=rows,
        seqs=seqs,
        calls=calls,
        issued={number: group.issued for number, group in states.items()},
        odd=odd,
        parted=(parting.seq or 0, safe(parting.headline)) if parting is not None else None,
    )


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
