"""Slips: where the lines from which ranks make the calls of a group part, and what a rank did then.

Ranks are expected to come to each call of a group from one line, or from lines that belong together
(`if rank == 0: broadcast(x) else: broadcast(y)`). A *straight* place is one from which all of them
have made one and the same call, somewhere in the run. Where two straight places meet in one call,
lines *cross*: a rank has skipped a call, made one too many, or taken two in another order; or the
program lets its ranks mix their calls as they come.

1. The logs, periodic between two surprises, are replayed side by side into rows, one a call. Ranks
   of equal logs are one class. Whole periods within a long stretch are left out, which leaves a
   shorter run of the same program.
2. Where lines cross, each class is aligned with the usual one, as `diff` does it. An event is a
   call that does not match. It is *explained* if from there on the class makes the calls of the
   usual one some calls earlier (skipped) or later (repeated), or after a block in another order
   (swapped).
3. Programs that mix freely have events all the time. So each must be outweighed by evidence that
   the ranks keep step: a call that came from another line than the last one, behind a line that is
   also followed by others, and that all the same matched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm

from ...record.snapshot import CallSite, LineLog, Place

MOST_ROWS, MOST_CELLS = 8192, 65_536
MOST_PERIOD = 2048
"""Classes whose periods have no common multiple up to this do not keep step."""
MOST_CLASSES = 64
MOST_EVENTS = 12
WINDOW = 32
"""Calls by which a class is ahead or behind after a slip, but where it has left a loop; and calls
that may have been made in another order."""
FAR, MOST_FAR = 2048, 8
"""Within so many calls the others come to where a class is that has left a loop; so many calls from
the same line are tried."""
LOOKAHEAD = 64
EVIDENCE, OF_IRREGULAR, OF_STRANGE = 8, 20, 14
"""So much evidence outweighs an event; where the usual class is irregular itself; and where the
call came from a line that the others never made a call from. In 1,379 random runs of four
kinds of programs that mix freely (see its test), judged at seven moments each, these left none."""
WEAK = 4
"""The same where an error in the group has been found, which the event may explain."""
FIRST_SHIFT = 12
"""Calls through which the distance must be kept of ranks that have no straight place."""
_RULED_OUT = frozenset({0})
"""The number of a place that is not known: it belongs to any."""
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slip:
    """An event: at call `seq` the `odd` ranks came from other lines than the `usual` ones.

    `what`: "skipped", "repeated" or "swapped", and None where it is not explained; `lines`: the
    places of those calls, `at`: of each rank's call there. `majority`: the usual ranks are the
    most; `certain`: they are, or they alone have gone on as both had before. `until`: from this
    call on lines belong together again; None: they do not. `strong`: it is known without an error.
    `crosses`: the lines are straight. `instead`: in a loop of two lines one that was skipped looks
    like the other one made twice; which that would be.
    """

    seq: int
    what: str | None
    odd: tuple[int, ...]
    usual: tuple[int, ...]
    lines: tuple[Place, ...]
    at: Mapping[int, Place | None]
    majority: bool
    certain: bool
    until: int | None
    strong: bool
    crosses: bool
    instead: Place | None = None


class _Track:
    """The log of a class, as numbers of places: 0 for one that is not known."""

    def __init__(self, log: LineLog, end: int, numbers: dict[Place, int]) -> None:
        rows = [one for one in log.surprises if one.seq < end]
        self.starts = [one.seq for one in rows]
        self.periods = [one.period for one in rows]
        self.places = [
            0 if one.place is None else numbers.setdefault(one.place, len(numbers) + 1)
            for one in rows
        ]

    def at(self, seq: int) -> int:
        while True:
            index = bisect_right(self.starts, seq) - 1
            start = self.starts[index]
            if start == seq:
                return self.places[index]
            seq += (start - seq) // self.periods[index] * self.periods[index]

    def irregular(self, seqs: Sequence[int]) -> int:
        """Returns how often a call of these came from a known place that was not expected."""
        known, found = set(), 0
        for seq, place in zip(self.starts, self.places, strict=True):
            found += place in known and seqs[0] < seq <= seqs[-1]
            known.add(place)
        return found


@dataclass(frozen=True, slots=True)
class Rows:
    """The places of all classes, call by call, without whole periods within long stretches.

    `classes`: the ranks of each. `seqs`: the calls. `before`: places that are straight by calls
    before these. `issued`: the calls of each class in all. `full`: there are no more
    rows, though there are more calls. `horizon`: from that call on none is a row any more, until
    there is a surprise."""

    classes: Sequence[Sequence[int]]
    tracks: Sequence[_Track]
    seqs: Sequence[int]
    rows: Sequence[Row]
    before: frozenset[int]
    issued: Sequence[int]
    places: Sequence[Place]
    full: bool
    horizon: int
    own: Sequence[Row] = ()
    """The same before places were given one number: lines of both ends of messages, and ways to one
    line."""

    def place(self, number: int) -> Place | None:
        return self.places[number - 1] if number else None


class Slips:
    """The slips keep what was found of each group for as long as its logs are the same: to compare
    those of ranks that mix freely takes some milliseconds. Nothing but that time changes by it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def of(
        self,
        owner: Hashable,
        logs: Mapping[int, LineLog],
        issued: Mapping[int, int],
        *,
        messages: bool = False,
    ) -> tuple[Rows | None, Slip | None]:
        """The rows and the slip of ranks that should make the same calls. `issued`: the calls of
        each, the same for all but where one will not make any more. `messages`: it is one rank that
        sends and one that receives; lines of both that have met at least `MET` times, and no
        others, count as one place."""
        marks = tuple((rank, log.mark) for rank, log in logs.items())
        calls, known = list(issued.values()), self._known.get(owner)
        if known is None or not known.lasts(marks, calls):
            rows, slip, mixed = _rows(logs, issued, min(calls)), None, False
            if rows is not None and not (messages and len(rows.classes) != 2):
                pairs = _paired if messages else (lambda found: found)
                if (whole := pairs(rows)) is not None:
                    slip, mixed = find(whole)
                # A block of two functions in another order is called from lines of its own.
                if slip is None and not mixed and (inner := pairs(_innermost(rows))) is not None:
                    slip, _ = find(inner)
            rows = None if mixed else rows
            known = self._known[owner] = _Known(marks, calls, rows, slip, mixed)
        return known.rows, known.slip


MET = 3


@dataclass(frozen=True, slots=True)
class _Known:
    """The findings of logs of these marks, of which so many calls were made."""

    marks: Hashable
    issued: Sequence[int]
    rows: Rows | None
    slip: Slip | None
    mixed: bool

    def lasts(self, marks: Hashable, issued: Sequence[int]) -> bool:
        """Whether it holds for these as well: what came since was expected, and is left out of the
        rows as it is; or there are as many rows as are looked at, or the ranks mix freely."""
        rows = self.rows
        if self.marks == marks and self.issued == issued:
            return True
        if self.mixed:
            return True
        if rows is None or len(set(issued)) > 1 or len(set(self.issued)) > 1:
            return False
        return rows.full or (self.marks == marks and min(self.issued) >= rows.horizon)


def _paired(rows: Rows) -> Rows | None:
    counts: dict[int, Counter[int]] = {}
    back: dict[int, Counter[int]] = {}
    for sent, received in rows.rows:
        ours, theirs = counts.setdefault(sent, Counter()), back.setdefault(received, Counter())
        if (ours and received not in ours) or (theirs and sent not in theirs):
            known = [one for one in (ours, theirs) if one]
            if len(known) < 2 or any(len(one) > 1 or max(one.values()) < MET for one in known):
                return None
            break
        ours[received] += 1
        theirs[sent] += 1
    else:
        return None
    names = {received: next(iter(of)) for received, of in back.items() if of}
    renamed = [(sent, names.get(received, -received)) for sent, received in rows.rows]
    if any(received < 0 for _, received in renamed):
        return None
    return replace(rows, rows=renamed, own=rows.rows)


def _rows(logs: Mapping[int, LineLog], issued: Mapping[int, int], end: int) -> Rows | None:
    """None where all have the same lines, or too many each their own, or none."""
    by_mark: dict[Hashable, list[int]] = {}
    for rank, log in logs.items():
        by_mark.setdefault(log.mark, []).append(rank)
    first = max(log.first for log in logs.values())
    if len(by_mark) < 2 or first >= end:
        return None
    # Ranks that have made the same calls up to `end` may be apart by the surprises after it.
    numbers: dict[Place, int] = {}
    by_log: dict[Hashable, tuple[_Track, list[int]]] = {}
    for ranks in by_mark.values():
        track = _Track(logs[ranks[0]], end, numbers)
        key = (tuple(track.starts), tuple(track.places), tuple(track.periods))
        by_log.setdefault(key, (track, []))[1].extend(ranks)
    if not 2 <= len(by_log) <= MOST_CLASSES:
        return None
    tracks = [track for track, _ in by_log.values()]
    classes = [sorted(ranks) for _, ranks in by_log.values()]
    # What all logs have in common is straight, and of that only the end is looked at.
    columns = [list(zip(t.starts, t.places, t.periods, strict=True)) for t in tracks]
    common = 0
    for entries in zip(*columns, strict=False):
        if any(one != entries[0] for one in entries):
            break
        common += 1
    parts = min(t.starts[common] if common < len(t.starts) else end for t in tracks)
    period = tracks[0].periods[common - 1] if common else 1
    begin = max(first, parts - 2 * max(period, WINDOW) - FAR // 2)
    before = frozenset(tracks[0].places[:common]) - _RULED_OUT
    seqs: list[int] = []
    most = min(MOST_ROWS, MOST_CELLS // len(tracks))
    bounds = sorted({begin, *(seq for t in tracks for seq in t.starts if begin < seq < end)})
    full, horizon = False, end
    for start, until in pairwise([*bounds, end]):
        at = [bisect_right(track.starts, start) - 1 for track in tracks]
        shared = lcm(*(t.periods[i] for t, i in zip(tracks, at, strict=True)))
        shared = min(shared, MOST_PERIOD)
        kept = 2 * shared + WINDOW
        seqs += range(start, min(until, start + kept))
        horizon = start + kept
        if until - start > kept and until != end:
            seqs += range(until - (until - start - kept) % shared, until)
        if len(seqs) > most:
            del seqs[most:]
            full = True
            break
    rows = list(zip(*([track.at(seq) for seq in seqs] for track in tracks), strict=True))
    counts = [max(issued[rank] for rank in ranks) for ranks in classes]
    return Rows(classes, tracks, seqs, rows, before, counts, list(numbers), full, horizon)


def _innermost(rows: Rows) -> Rows:
    """The same with the innermost line of each place alone."""
    places = [Place(place.sites[:1]) for place in rows.places]
    numbers = {place: number for number, place in reversed([*enumerate(places, 1)])}
    name = [0, *(numbers[place] for place in places)]
    return replace(
        rows,
        rows=[tuple(name[number] for number in row) for row in rows.rows],
        before=frozenset(name[number] for number in rows.before),
        places=places,
    )


def find(rows: Rows) -> tuple[Slip | None, bool]:
    """The first slip, if lines cross and enough speaks for it; and whether the ranks are known to
    mix freely, so that there is no point in looking again."""
    straight = _straight(rows)
    rows = _by_any_way(rows, straight)
    found, mixed = _judged(rows, straight)
    if found is not None or mixed or _crossing(rows, straight) is not None:
        return found, mixed
    # Ranks that have slipped at the first call of a loop never come from one line in it.
    shared = set.intersection(*map(set, zip(*rows.rows, strict=True))) - _RULED_OUT
    found, _ = _judged(rows, straight | shared, at_first=True)
    return found, False


def _by_any_way(rows: Rows, straight: set[int]) -> Rows:
    """The same with one number for a line of which one place alone is straight, by whatever way a
    rank has come to it: a `return finish()` in a branch that only some take."""
    ends: dict[CallSite, list[int]] = {}
    for number in straight:
        ends.setdefault(rows.places[number - 1].sites[0], []).append(number)
    names = [0]
    for number, place in enumerate(rows.places, 1):
        same = ends.get(place.sites[0], ())
        names.append(same[0] if len(same) == 1 and number not in straight else number)
    if rows.own or names == list(range(len(names))):
        return rows
    renamed = [tuple(names[number] for number in row) for row in rows.rows]
    return replace(rows, rows=renamed, own=rows.rows)


def _crossing(rows: Rows, straight: set[int]) -> int | None:
    crosses = {row for row in set(rows.rows) if len(straight.intersection(row)) > 1}
    return next((i for i, row in enumerate(rows.rows) if row in crosses), None)


def parting(rows: Rows, before: int, reach: int) -> Slip | None:
    """The first of the last calls before this one at which lines met that never had, though one of
    them is straight, or both sides have used it: what may explain an error there."""
    straight, sizes = _straight(rows), [len(ranks) for ranks in rows.classes]
    columns = list(zip(*rows.rows, strict=True))
    usual = max(range(len(sizes)), key=lambda index: (sizes[index], -index))
    made = [set(column) for column in columns]
    known: set[tuple[int, int, int]] = set()
    for index, row in enumerate(rows.rows):
        seq, theirs = rows.seqs[index], row[usual]
        if seq >= before:
            break
        odd = []
        for one, ours in enumerate(row):
            if ours == theirs or not ours or not theirs or (one, ours, theirs) in known:
                continue
            known.add((one, ours, theirs))
            if ours in straight | made[usual] or theirs in straight | made[one]:
                odd.append(one)
        if odd and seq >= before - reach:
            return _slip(rows, index, odd, None, ())
    return None


def _straight(rows: Rows) -> set[int]:
    all_at = {row[0] for row in set(rows.rows) if row.count(row[0]) == len(row)}
    return (all_at | rows.before) - _RULED_OUT


@dataclass(slots=True)
class _Event:
    """At row `at` the usual class is `offset` calls further; it goes on `ours` rows later in this
    class, and `theirs` in the usual one. `after`: the places before it, and of both."""

    at: int
    offset: int
    what: str | None
    ours: int
    theirs: int
    explained: bool
    pending: bool
    changes: int = 0
    calls: int = 0

    @property
    def kind(self) -> tuple[str | None, int, int]:
        return self.what, self.ours, self.theirs


def _judged(rows: Rows, straight: set[int], *, at_first: bool = False) -> tuple[Slip | None, bool]:
    crossing = _crossing(rows, straight)
    if crossing is None:
        return None, False
    row, columns = rows.rows[crossing], list(zip(*rows.rows, strict=True))
    sizes = [len(ranks) for ranks in rows.classes]
    votes: Counter[int] = Counter()
    for place, size in zip(row, sizes, strict=True):
        if place in straight:
            votes[place] += size
    (usual, most), *others = votes.most_common()
    majority = most > others[0][1]
    certain = majority
    if not majority:
        tied = [place for place, votes_of in votes.items() if votes_of == most]
        fits = [one for one in tied if _expected(columns[row.index(one)], crossing) == one]
        if len(fits) == 1:
            usual, certain = fits[0], True
    which = max((i for i, place in enumerate(row) if place == usual), key=lambda i: sizes[i])
    if at_first and sum(sizes) > 2 and 2 * sizes[which] <= sum(sizes):
        return None, False  # ranks may take turns
    theirs = columns[which]
    changes = sum(one != other for one, other in pairwise(theirs))
    irregular = rows.tracks[which].irregular(rows.seqs) * 8 > changes + 24
    firsts: list[tuple[int, int, list[_Event]]] = []
    strong = True
    for index, ours in enumerate(columns):
        if index == which:
            continue
        start, met = _start(ours, theirs, crossing, straight)
        if start is None:
            return None, len(rows.seqs) > FAR
        events, evidence = _events(ours, theirs, start, straight, met)
        sure = [one for one in events if not one.pending]
        needed = sum(
            _needed(one, irregular, ours[one.at : one.at + one.ours], straight) for one in sure
        )
        strong = strong and evidence * (sizes[index] + sizes[which] - 1) >= needed
        if events:
            firsts.append((events[0].at, index, events))
    # One that does the same in each epoch, such as a batch less, never comes back into step.
    mixed = not strong and any(
        len(events) >= MOST_EVENTS and len({one.kind for one in events if not one.pending}) > 1
        for _, _, events in firsts
    )
    if not firsts or mixed:
        return None, mixed
    at, index, events = min(firsts, key=lambda one: one[0])
    event = events[0]
    over = (
        0 if rows.issued[index] == rows.issued[which] else rows.issued[index] - rows.issued[which]
    )
    other = _other_reading(event, columns[index], theirs)
    if other is not None and (over > 0 if event.what == "skipped" else over < 0):
        event, other = other, event
    if over <= 0:
        other = None  # without more calls in all, one that was skipped says it best
    sure = [one for one in events if not one.pending]
    again = len(sure) > 2 and len({one.kind for one in sure}) == 1
    mixes = any(not one.explained for one in (sure if again else events)[1:])
    if not event.explained or not strong or at_first:
        # What an error may still be explained by: few calls around it say so.
        if not event.what or event.what == "replaced" or not event.changes or mixes:
            return None, False
        if min(at, LOOKAHEAD) + event.calls < WEAK:
            return None, False
        strong = strong and event.explained
    if at_first:
        # Lines that roles use in turns are as far apart, but have others among them.
        near = set(theirs[max(0, at - 1) : at + event.calls])
        alone = sum(sizes) > 2 or near.isdisjoint(_straight(rows))
        # Ranks that have kept step until then may leave a loop one after the other.
        together = any(row.count(row[0]) == len(row) for row in rows.rows[:at])
        strong = event.explained and event.calls >= FIRST_SHIFT and (strong or not together)
        shift = max(event.ours, event.theirs)
        near_by = theirs[at : at + 4 * shift]
        # Two parties that take turns at more than a line are half a round apart.
        turns = shift > 1 and near_by[2 * shift :] == near_by[: len(near_by) - 2 * shift]
        strong = strong and alone and not mixes and not turns
    there = at + event.offset
    ours = columns[index]
    lines = {
        "skipped": theirs[there : there + event.theirs],
        "repeated": ours[at : at + event.ours],
        "swapped": ours[at : at + event.ours],
    }[event.what or ""]
    odd = [one for first, one, _ in firsts if first == at]
    instead = None
    if other is not None:
        instead = rows.place(theirs[there] if other.what == "skipped" else ours[at])
    back = [one for one in events if one.offset + one.theirs - one.ours == 0]
    closed = events[-1].offset + events[-1].theirs - events[-1].ours == 0
    until = back[-1].at + back[-1].ours if closed and back else None
    found = _slip(
        rows,
        at,
        odd,
        event.what,
        tuple(dict.fromkeys(lines)),
        rows.seqs[until] if until is not None and until < len(rows.seqs) else None,
        strong=strong,
        certain=certain,
        majority=majority,
        crosses=not at_first,
    )
    return replace(found, instead=instead), False


def _slip(
    rows: Rows,
    at: int,
    odd: Sequence[int],
    what: str | None,
    lines: Sequence[int],
    until: int | None = None,
    *,
    strong: bool = False,
    certain: bool = False,
    majority: bool | None = None,
    crosses: bool = False,
) -> Slip:
    ranks = sorted(rank for index in odd for rank in rows.classes[index])
    others = sorted({rank for of in rows.classes for rank in of}.difference(ranks))
    if majority is None:
        majority = len(others) > len(ranks)
    row = (rows.own or rows.rows)[at]
    where = {rank: rows.place(row[index]) for index, of in enumerate(rows.classes) for rank in of}
    if rows.own and odd:
        both = zip(reversed(rows.rows), reversed(rows.own), strict=True)
        names = {one[odd[0]]: own[odd[0]] for one, own in both}
        lines = [names.get(number, number) for number in lines]
    places = [place for number in lines if (place := rows.place(number)) is not None]
    return Slip(
        rows.seqs[at],
        what,
        tuple(ranks),
        tuple(others),
        tuple(places),
        where,
        majority,
        certain or majority,
        until,
        strong,
        crosses,
    )


def _needed(event: _Event, irregular: bool, block: Sequence[int], straight: set[int]) -> int:
    least = OF_IRREGULAR if irregular else EVIDENCE
    if not event.explained:
        return 3 * least
    if event.what == "repeated" and not straight.issuperset(block):
        least = max(least, OF_STRANGE)
    needed = least + 4 * (max(event.ours, event.theirs) - 1)
    # Loops in another order are what phases of a rank's own look like, however long.
    return needed if event.what == "swapped" else min(needed, OF_IRREGULAR)


def _start(
    ours: Sequence[int], theirs: Sequence[int], crossing: int, straight: set[int]
) -> tuple[int | None, set[tuple[int, int]]]:
    """Returns where lines that never had met begin to do so, shortly before they cross; and the
    pairs of lines that had met until then. No start: lines had met others all the time."""
    first: dict[tuple[int, int], int] = {}
    for index, pair in enumerate(zip(ours[:crossing], theirs[:crossing], strict=True)):
        if pair[0] != pair[1]:
            first.setdefault(pair, index)
    near = (
        index
        for pair, index in first.items()
        if index >= crossing - WINDOW and not straight.isdisjoint(pair)
    )
    start = min(near, default=crossing)
    met = {pair for pair, index in first.items() if index < start and all(pair)}
    partners: dict[tuple[int, bool], set[int]] = {}
    for one, other in set(zip(ours[:start], theirs[:start], strict=True)):
        partners.setdefault((one, True), set()).add(other)
        partners.setdefault((other, False), set()).add(one)
    mixed = any(len(partners[a, True]) > 1 or len(partners[b, False]) > 1 for a, b in met)
    return (None if mixed else start), met


def _expected(column: Sequence[int], at: int) -> int | None:
    """Returns what came the last time that most was as before this call."""
    longest, found = 0, None
    for index in range(at - 1, max(0, at - 1024), -1):
        alike = 0
        while alike < min(index, 128) and column[index - 1 - alike] == column[at - 1 - alike]:
            alike += 1
        if alike > longest:
            longest, found = alike, column[index]
    return found


class _Match:
    """Says whether two places belong together: the same, not straight, or known to meet."""

    def __init__(self, straight: set[int], met: set[tuple[int, int]]) -> None:
        self._straight, self._met = straight, met

    def __call__(self, one: int, other: int) -> bool:
        if one == other or not one or not other or (one, other) in self._met:
            return True
        return one not in self._straight and other not in self._straight

    def run(self, ours: Sequence[int], theirs: Sequence[int], at: int, there: int) -> Row:
        """Returns how many changes of line and how many calls match from here on, and whether
        that is because there are no more."""
        calls = changes = last = 0
        most = min(LOOKAHEAD, len(ours) - at, len(theirs) - there)
        while calls < most:
            one, other = ours[at + calls], theirs[there + calls]
            if not self(one, other):
                return changes, calls, False
            if one == other:
                changes += last not in (0, one)
                last = one
            calls += 1
        return changes, calls, most < LOOKAHEAD


def _events(
    ours: Sequence[int],
    theirs: Sequence[int],
    start: int,
    straight: set[int],
    met: set[tuple[int, int]],
) -> tuple[list[_Event], int]:
    """The events from `start` on, and the evidence that the two keep step."""
    match = _Match(straight, met)
    follow: dict[int, set[int]] = {}
    made = Counter(pairwise(theirs))
    for one, other in (*made, *pairwise(ours)):
        follow.setdefault(one, set()).add(other)
    joint: Counter[tuple[int, int]] = Counter()
    events: list[_Event] = []
    at = offset = evidence = 0
    while at < len(ours) and at + offset < len(theirs) and len(events) < MOST_EVENTS:
        there = at + offset
        if at < start or match(ours[at], theirs[there]):
            before, now = ours[at - 1], ours[at]
            if at and there and now == theirs[there] and before == theirs[there - 1]:
                joint[before, now] += 1
                evidence += now != before and len(follow[before]) > 1
            at += 1
            continue
        event = _event(match, ours, theirs, at, offset)
        events.append(event)
        at += event.ours
        offset += event.theirs - event.ours
        if not event.what:
            at += 1
            while at < len(ours) and at + offset < len(theirs):
                if match(ours[at], theirs[at + offset]):
                    break
                at += 1
    for event in events:
        at, there = event.at, event.at + event.offset
        if at and there and ours[at - 1] == theirs[there - 1] and made[ours[at - 1], ours[at]]:
            # Both do this at times, as ranks that leave a loop: then they must do so together.
            before = ours[at - 1]
            together = min(joint[before, ours[at]], joint[before, theirs[there]])
            evidence = min(evidence, 2 * together)
    return events, evidence


def _event(
    match: _Match, ours: Sequence[int], theirs: Sequence[int], at: int, offset: int
) -> _Event:
    """Returns what explains best that these two calls do not match: the least that lets some calls
    with changes of line match again, else what lets the most."""
    there = at + offset
    best: tuple[tuple[int, ...], _Event] | None = None
    for what, skip, skip_theirs, inner in _attempts(match, ours, theirs, at, there):
        changes, calls, ends = match.run(ours, theirs, at + skip, there + skip_theirs)
        if not calls and what != "swapped":
            continue
        changes, calls = changes + inner, calls + (skip if what == "swapped" else 0)
        cost, replaced = max(skip, skip_theirs), what == "replaced"
        enough = changes >= 3 and calls >= max(4, cost)
        # Where slips follow one another, more of them explain it better than one that is larger.
        size = 0 if what == "swapped" else 2 * (cost - 1)
        key = (
            enough,
            -cost if enough else 0,
            replaced and enough,
            changes > 0,
            calls - size,
            replaced,
            -cost,
            what == "skipped",
        )
        if best is None or key > best[0]:
            explained = not replaced and changes > 0 and calls >= max(2, min(LOOKAHEAD, cost))
            # Three calls of a loop are in another order after a slip, too: only what comes tells.
            explained = explained and (what != "swapped" or calls >= skip + 2)
            pending = bool(ends) and not explained
            best = (
                key,
                _Event(at, offset, what, skip, skip_theirs, explained, pending, changes, calls),
            )
    if best is None:
        ending = len(ours) - max(at, there) <= WINDOW
        return _Event(at, offset, None, 0, 0, False, ending)
    return best[1]


def _attempts(
    match: _Match, ours: Sequence[int], theirs: Sequence[int], at: int, there: int
) -> Iterator[tuple[str, int, int, int]]:
    """Yields what may have happened, the rows that it takes of both, and the changes of line in
    these."""
    one, other = ours[at], theirs[there]
    for count in range(1, WINDOW + 1):
        if there + count < len(theirs) and match(one, theirs[there + count]):
            yield "skipped", 0, count, 0
        if at + count < len(ours) and match(ours[at + count], other):
            yield "repeated", count, 0, 0
    for count in _next(theirs, one, there):
        yield "skipped", 0, count, 0
    for count in _next(ours, other, at):
        yield "repeated", count, 0, 0
    left: Counter[int] = Counter()
    most = min(len(ours) - at, len(theirs) - there)
    for count in range(1, min(WINDOW, most) + 1):
        left[ours[at + count - 1]] += 1
        left[theirs[there + count - 1]] -= 1
        if not any(left.values()):
            block = ours[at : at + count]
            yield "swapped", count, count, sum(a != b for a, b in pairwise(block))
            break
        if count < most and match(ours[at + count], theirs[there + count]):
            yield "replaced", count, count, 0
    tried = 0
    for count in range(WINDOW + 1, min(FAR, most)):
        again = ours[at + count] == theirs[there + count]
        if again and ours[at + count - 1] != theirs[there + count - 1]:
            yield "replaced", count, count, 0
            tried += 1
            if tried == MOST_FAR:
                break


def _next(column: Sequence[int], place: int, at: int) -> Iterator[int]:
    index = at + WINDOW
    for _ in range(MOST_FAR):
        try:
            index = column.index(place, index + 1, at + FAR)
        except ValueError:
            return
        yield index - at


def _other_reading(event: _Event, ours: Sequence[int], theirs: Sequence[int]) -> _Event | None:
    """In a loop of two lines, one that was skipped looks like the other one made twice."""
    at, there, count = event.at, event.at + event.offset, max(2, event.calls - 1)
    if (event.what, event.ours, event.theirs) == ("skipped", 0, 1):
        other = replace(event, what="repeated", ours=1, theirs=0)
    elif (event.what, event.ours, event.theirs) == ("repeated", 1, 0):
        other = replace(event, what="skipped", ours=0, theirs=1)
    else:
        return None
    at, there = at + other.ours, there + other.theirs
    same = ours[at : at + count] == theirs[there : there + count]
    return other if same and at < len(ours) and there < len(theirs) else None
