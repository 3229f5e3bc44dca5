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

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise, takewhile
from math import lcm

from ...record.lines import place_at
from ...record.snapshot import CallSite, LineLog, Place, Surprise

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
UNKNOWN = 0
"""Stands for a place that is not known: it belongs to any."""
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
    until: int | None = None
    strong: bool = False
    crosses: bool = False
    instead: Place | None = None


@dataclass(frozen=True)
class Rows:
    """The places of all classes, each by its key, call by call, without whole periods within long
    stretches.

    `classes`: the ranks of each. `irregular`: how often a call of each came from a known place that
    was not expected. `seqs`: the calls. `before`: places that are straight by calls before these.
    `issued`: the calls of each class in all. `full`: there are no more rows, though there are more
    calls. `horizon`: from that call on none is a row any more, until there is a surprise."""

    classes: Sequence[Sequence[int]]
    irregular: Sequence[int]
    seqs: Sequence[int]
    rows: Sequence[Row]
    before: frozenset[int]
    issued: Sequence[int]
    places: Mapping[int, Place]
    full: bool
    horizon: int
    own: Sequence[Row] = ()
    """The same before places were given one key: lines of both ends of messages, and ways to one
    line."""

    @cached_property
    def columns(self) -> Sequence[Row]:
        """The places of each class."""
        return list(zip(*self.rows, strict=True))

    @cached_property
    def sizes(self) -> Sequence[int]:
        """The number of ranks of each class."""
        return [len(ranks) for ranks in self.classes]

    @cached_property
    def straight(self) -> frozenset[int]:
        """The places from which all classes have made one call."""
        return self.before.union(row[0] for row in self.rows if _is_one(row)) - {UNKNOWN}

    def renamed(self, keys: Mapping[int, int]) -> Rows:
        """The same with other keys for these places."""
        return replace(self, rows=[tuple(keys.get(one, one) for one in row) for row in self.rows])


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
            if rows is not None:
                pairs = _paired if messages else (lambda found: found)
                slip, mixed = find(pairs(rows))
                # A block of two functions in another order is called from lines of its own.
                if slip is None and not mixed:
                    slip, _ = find(pairs(_innermost(rows)))
            known = self._known[owner] = _Known(marks, calls, None if mixed else rows, slip, mixed)
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
        if self.mixed or (self.marks, self.issued) == (marks, issued):
            return True
        if self.rows is None or len(set(issued)) > 1 or len(set(self.issued)) > 1:
            return False
        expected = self.marks == marks and min(self.issued) >= self.rows.horizon
        return self.rows.full or expected


def _paired(rows: Rows) -> Rows | None:
    if len(rows.classes) != 2:
        return None
    receiver: dict[int, int] = {}
    sender: dict[int, int] = {}
    met: Counter[tuple[int | None, int]] = Counter()
    for sent, received in rows.rows:
        same = receiver.setdefault(sent, received) == received
        if not same or sender.setdefault(received, sent) != sent:
            usual = (sent, receiver[sent]), (sender.get(received), received)
            if any(met[pair] < MET for pair in usual):
                return None
            break
        met[sent, received] += 1
    else:
        return None
    if any(received not in sender for _, received in rows.rows):
        return None
    renamed = [(sent, sender[received]) for sent, received in rows.rows]
    return replace(rows, rows=renamed, own=rows.rows)


def _rows(logs: Mapping[int, LineLog], issued: Mapping[int, int], end: int) -> Rows | None:
    """None where all have the same lines, or too many each their own, or none."""
    by_mark: dict[Hashable, list[int]] = {}
    for rank, log in logs.items():
        by_mark.setdefault(log.mark, []).append(rank)
    if len(by_mark) < 2:
        return None
    # Ranks that have made the same calls up to `end` may be apart by the surprises after it.
    by_log: dict[tuple[Surprise, ...], list[int]] = {}
    for ranks in by_mark.values():
        surprises = tuple(one for one in logs[ranks[0]].surprises if one.seq < end)
        by_log.setdefault(surprises, []).extend(ranks)
    if not 2 <= len(by_log) <= MOST_CLASSES or not all(by_log):
        return None
    tracks, classes = [*by_log], [sorted(ranks) for ranks in by_log.values()]
    # What all logs have in common is straight, and of that only the end is looked at.
    common = [*takewhile(lambda each: len(set(each)) == 1, zip(*tracks, strict=False))]
    ends = (track[len(common)].seq for track in tracks if len(track) > len(common))
    period = common[-1][0].period if common else 1
    near = min(ends, default=end) - 2 * max(period, WINDOW) - FAR // 2
    begin = max(near, *(track[0].seq for track in tracks))
    seqs: list[int] = []
    most = min(MOST_ROWS, MOST_CELLS // len(tracks))
    starts = [[one.seq for one in track] for track in tracks]
    bounds = sorted({begin, *(seq for each in starts for seq in each if begin < seq < end)})
    full, horizon = False, end
    for start, until in pairwise([*bounds, end]):
        last = [bisect_right(each, start) - 1 for each in starts]
        shared = lcm(*(track[at].period for track, at in zip(tracks, last, strict=True)))
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
    columns = [[_key(place_at(track, seq)) for seq in seqs] for track in tracks]
    return Rows(
        classes,
        [_irregular(track, seqs) for track in tracks],
        seqs,
        list(zip(*columns, strict=True)),
        frozenset(_key(each[0].place) for each in common) - {UNKNOWN},
        [max(issued[rank] for rank in ranks) for ranks in classes],
        {one.place.key: one.place for track in tracks for one in track if one.place is not None},
        full,
        horizon,
    )


def _key(place: Place | None) -> int:
    return UNKNOWN if place is None else place.key


def _irregular(track: Sequence[Surprise], seqs: Sequence[int]) -> int:
    known, found = set(), 0
    for one in track:
        found += one.place in known and seqs[0] < one.seq <= seqs[-1]
        known.add(one.place)
    return found


def _innermost(rows: Rows) -> Rows:
    """The same with the innermost line of each place alone."""
    inner = {key: Place(place.sites[:1]) for key, place in rows.places.items()}
    keys = {key: place.key for key, place in inner.items()}
    return replace(
        rows.renamed(keys),
        before=frozenset(keys[one] for one in rows.before),
        places={place.key: place for place in inner.values()},
    )


def find(rows: Rows | None) -> tuple[Slip | None, bool]:
    """The first slip, if lines cross and enough speaks for it; and whether the ranks are known to
    mix freely, so that there is no point in looking again."""
    if rows is None:
        return None, False
    straight = rows.straight
    rows = _by_any_way(rows)
    found, mixed = _judged(rows, straight)
    if found is not None or mixed or _crossing(rows, straight) is not None:
        return found, mixed
    # Ranks that have slipped at the first call of a loop never come from one line in it.
    shared = frozenset.intersection(*map(frozenset, rows.columns)) - {UNKNOWN}
    return _judged(rows, straight | shared, at_first=True)[0], False


def _by_any_way(rows: Rows) -> Rows:
    """The same with one key for a line of which one place alone is straight, by whatever way a rank
    has come to it: a `return finish()` in a branch that only some take."""
    if rows.own:
        return rows
    ends: dict[CallSite, list[int]] = {}
    for key in rows.straight:
        ends.setdefault(rows.places[key].sites[0], []).append(key)
    names = {}
    for key, place in rows.places.items():
        same = ends.get(place.sites[0], ())
        if len(same) == 1 and key not in rows.straight:
            names[key] = same[0]
    return replace(rows.renamed(names), own=rows.rows) if names else rows


def _crossing(rows: Rows, straight: frozenset[int]) -> int | None:
    return next((i for i, row in enumerate(rows.rows) if len(straight.intersection(row)) > 1), None)


def parting(rows: Rows, before: int, reach: int) -> Slip | None:
    """The first of the last calls before this one at which lines met that never had, though one of
    them is straight, or both sides have used it: what may explain an error there."""
    usual = max(range(len(rows.sizes)), key=lambda index: (rows.sizes[index], -index))
    theirs, end = rows.columns[usual], bisect_left(rows.seqs, before)
    theirs_or_straight = rows.straight.union(theirs)
    odd: dict[int, list[int]] = {}
    for index, column in enumerate(rows.columns):
        ours_or_straight = rows.straight.union(column)
        for (one, other), at in _first_met(column, theirs, end).items():
            known = one in theirs_or_straight or other in ours_or_straight
            if one and other and known and rows.seqs[at] >= before - reach:
                odd.setdefault(at, []).append(index)
    return _slip(rows, min(odd), odd[min(odd)]) if odd else None


def _first_met(ours: Sequence[int], theirs: Sequence[int], end: int) -> dict[tuple[int, int], int]:
    """Returns where two different places met first, before that row."""
    first: dict[tuple[int, int], int] = {}
    for index, pair in enumerate(zip(ours[:end], theirs[:end], strict=True)):
        if pair[0] != pair[1]:
            first.setdefault(pair, index)
    return first


def _is_one(row: Row) -> bool:
    return row.count(row[0]) == len(row)


@dataclass(frozen=True, slots=True)
class _Event:
    """At row `at` of this class, and row `there` of the usual one, calls do not match; they go on
    `ours` rows later in this class, and `theirs` in the usual one. `calls` match from there on,
    with so many `changes` of line; `pending`: too few to tell, since there are no more."""

    at: int
    there: int
    what: str | None
    ours: int
    theirs: int
    explained: bool
    pending: bool
    changes: int = 0
    calls: int = 0

    @property
    def after(self) -> tuple[int, int]:
        """The rows of both from which on they match again."""
        return self.at + self.ours, self.there + self.theirs

    @property
    def size(self) -> int:
        return max(self.ours, self.theirs)

    @property
    def kind(self) -> tuple[str | None, int, int]:
        return self.what, self.ours, self.theirs


def _usual(rows: Rows, crossing: int, straight: frozenset[int]) -> tuple[int, bool, bool]:
    """Returns the class that is right where lines cross; whether it has most of the ranks, and
    whether it is known to be right: it has, or it alone has gone on as both had before."""
    row, sizes = rows.rows[crossing], rows.sizes
    votes: Counter[int] = Counter()
    for place, size in zip(row, sizes, strict=True):
        if place in straight:
            votes[place] += size
    (usual, most), *others = votes.most_common()
    majority = certain = most > others[0][1]
    if not majority:
        tied = [place for place, count in votes.items() if count == most]
        fits = [one for one in tied if _expected(rows.columns[row.index(one)], crossing) == one]
        if len(fits) == 1:
            usual, certain = fits[0], True
    which = max((i for i, place in enumerate(row) if place == usual), key=lambda i: sizes[i])
    return which, majority, certain


def _judged(
    rows: Rows, straight: frozenset[int], *, at_first: bool = False
) -> tuple[Slip | None, bool]:
    crossing = _crossing(rows, straight)
    if crossing is None:
        return None, False
    which, majority, certain = _usual(rows, crossing, straight)
    columns, sizes = rows.columns, rows.sizes
    if at_first and sum(sizes) > 2 and 2 * sizes[which] <= sum(sizes):
        return None, False  # ranks may take turns
    theirs = columns[which]
    irregular = rows.irregular[which] * 8 > sum(a != b for a, b in pairwise(theirs)) + 24
    found: dict[int, list[_Event]] = {}
    strong, mixed = True, False
    for index, ours in enumerate(columns):
        if index == which:
            continue
        start, met = _start(ours, theirs, crossing, straight)
        if start is None:
            return None, False
        events, evidence = _events(ours, theirs, start, straight, met)
        sure = [one for one in events if not one.pending]
        needed = sum(_needed(one, irregular, ours, straight) for one in sure)
        strong = strong and evidence * (sizes[index] + sizes[which] - 1) >= needed
        # One that does the same in each epoch, such as a batch less, never comes back into step.
        mixed |= len(events) >= MOST_EVENTS and len({one.kind for one in sure}) > 1
        if events:
            found[index] = events
    if not found or (mixed and not strong):
        return None, mixed and not strong
    index = min(found, key=lambda one: found[one][0].at)
    ours, events, event = columns[index], found[index], found[index][0]
    over = rows.issued[index] - rows.issued[which]
    other = _other_reading(event, ours, theirs)
    if other is not None and (over > 0 if event.what == "skipped" else over < 0):
        event, other = other, event
    if over <= 0:
        other = None  # without more calls in all, one that was skipped says it best
    if not event.explained or not strong or at_first:
        # What an error may still be explained by: few calls around it say so.
        sure = [one for one in events if not one.pending]
        again = len(sure) > 2 and len({one.kind for one in sure}) == 1
        mixes = any(not one.explained for one in (sure if again else events)[1:])
        few = min(event.at, LOOKAHEAD) + event.calls < WEAK
        if not event.changes or event.what == "replaced" or mixes or few:
            return None, False
        strong = strong and event.explained
    if at_first:
        strong = _keeps_distance(rows, event, theirs, strong)
    skipped, made = theirs[event.there :][: event.theirs], ours[event.at :][: event.ours]
    lines = skipped if event.what == "skipped" else made
    odd = [one for one, of in found.items() if of[0].at == event.at]
    instead = None
    if other is not None:
        instead = rows.places.get(
            theirs[event.there] if other.what == "skipped" else ours[event.at]
        )
    end, its_end = events[-1].after
    return replace(
        _slip(rows, event.at, odd, event.what, lines),
        majority=majority,
        certain=certain,
        until=rows.seqs[end] if end == its_end < len(rows.seqs) else None,
        strong=strong,
        crosses=not at_first,
        instead=instead,
    ), False


def _keeps_distance(rows: Rows, event: _Event, theirs: Row, strong: bool) -> bool:
    """Whether enough speaks for a slip at the first call of a loop. `strong`: enough would, later
    on."""
    ranks = sum(rows.sizes)
    # Lines that roles use in turns are as far apart, but have others among them.
    near = theirs[max(0, event.at - 1) : event.at + event.calls]
    alone = ranks > 2 or rows.straight.isdisjoint(near)
    # Ranks that have kept step until then may leave a loop one after the other.
    together = any(map(_is_one, rows.rows[: event.at]))
    # Two parties that take turns at more than a line are half a round apart.
    round_ = 2 * event.size
    near_by = theirs[event.at : event.at + 2 * round_]
    turns = event.size > 1 and near_by[round_:] == near_by[: len(near_by) - round_]
    far = event.explained and event.calls >= FIRST_SHIFT
    return far and (strong or not together) and alone and not turns


def _slip(
    rows: Rows, at: int, odd: Sequence[int], what: str | None = None, lines: Sequence[int] = ()
) -> Slip:
    """`odd`: classes, and `lines` as in the first of them."""
    ranks = sorted(rank for index in odd for rank in rows.classes[index])
    others = sorted({rank for of in rows.classes for rank in of}.difference(ranks))
    own = rows.own or rows.rows
    both = zip(reversed(rows.rows), reversed(own), strict=True)
    names = {one[odd[0]]: each[odd[0]] for one, each in both}
    keys = dict.fromkeys(names.get(key, key) for key in dict.fromkeys(lines))
    majority = len(others) > len(ranks)
    return Slip(
        seq=rows.seqs[at],
        what=what,
        odd=tuple(ranks),
        usual=tuple(others),
        lines=tuple(rows.places[key] for key in keys if key),
        at={
            rank: rows.places.get(key)
            for of, key in zip(rows.classes, own[at], strict=True)
            for rank in of
        },
        majority=majority,
        certain=majority,
    )


def _needed(event: _Event, irregular: bool, ours: Sequence[int], straight: frozenset[int]) -> int:
    least = OF_IRREGULAR if irregular else EVIDENCE
    if not event.explained:
        return 3 * least
    strange = not straight.issuperset(ours[event.at : event.at + event.ours])
    if event.what == "repeated" and strange:
        least = max(least, OF_STRANGE)
    return least + 4 * (event.size - 1)


def _start(
    ours: Sequence[int], theirs: Sequence[int], crossing: int, straight: frozenset[int]
) -> tuple[int | None, set[tuple[int, int]]]:
    """Returns where lines that never had met begin to do so, shortly before they cross; and the
    pairs of lines that had met until then. No start: lines had met others all the time."""
    first = _first_met(ours, theirs, crossing)
    near = (
        index
        for pair, index in first.items()
        if index >= crossing - WINDOW and not straight.isdisjoint(pair)
    )
    start = min(near, default=crossing)
    met = {pair for pair, index in first.items() if index < start and all(pair)}
    pairs = set(zip(ours[:start], theirs[:start], strict=True))
    partners = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    mixed = any(partners[0][one] > 1 or partners[1][other] > 1 for one, other in met)
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

    def __init__(self, straight: frozenset[int], met: set[tuple[int, int]]) -> None:
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
    straight: frozenset[int],
    met: set[tuple[int, int]],
) -> tuple[list[_Event], int]:
    """The events from `start` on, and the evidence that the two keep step."""
    match = _Match(straight, met)
    made = set(pairwise(theirs))
    ways_on = Counter(one for one, _ in made.union(pairwise(ours)))
    joint: Counter[tuple[int, int]] = Counter()
    events: list[_Event] = []
    at = there = evidence = 0
    while at < len(ours) and there < len(theirs) and len(events) < MOST_EVENTS:
        if at < start or match(ours[at], theirs[there]):
            step = before, now = ours[at - 1], ours[at]
            if at and there and step == (theirs[there - 1], theirs[there]):
                joint[step] += 1
                evidence += now != before and ways_on[before] > 1
            at, there = at + 1, there + 1
            continue
        events.append(_event(match, ours, theirs, at, there))
        at, there = events[-1].after
        if not events[-1].what:
            rest = zip(ours[at + 1 :], theirs[there + 1 :], strict=False)
            apart = 1 + sum(1 for _ in takewhile(lambda pair: not match(*pair), rest))
            at, there = at + apart, there + apart
    for event in events:
        at, there = event.at, event.there
        before = ours[at - 1]
        if at and there and before == theirs[there - 1] and (before, ours[at]) in made:
            # Both do this at times, as ranks that leave a loop: then they must do so together.
            together = min(joint[before, ours[at]], joint[before, theirs[there]])
            evidence = min(evidence, 2 * together)
    return events, evidence


def _event(
    match: _Match, ours: Sequence[int], theirs: Sequence[int], at: int, there: int
) -> _Event:
    """Returns what explains best that these two calls do not match: the least that lets some calls
    with changes of line match again, else what lets the most."""
    best: tuple[int, ...] = ()
    found = _Event(at, there, None, 0, 0, False, len(ours) - max(at, there) <= WINDOW)
    for what, skip, skip_theirs in _attempts(match, ours, theirs, at, there):
        changes, calls, ends = match.run(ours, theirs, at + skip, there + skip_theirs)
        swapped, size = what == "swapped", max(skip, skip_theirs)
        if swapped:
            calls += skip
            changes += sum(a != b for a, b in pairwise(ours[at : at + skip]))
        elif not calls:
            continue
        enough = changes >= 3 and calls >= max(4, size)
        # Where slips follow one another, more of them explain it better than one that is larger.
        worth = calls if swapped else calls - 2 * (size - 1)
        sure, replaced = (-size if enough else 0), what == "replaced"
        key = (enough, sure, replaced and enough, changes > 0, worth, replaced, -size)
        if key > best:
            best = key
            # Three calls of a loop are in another order after a slip, too: only what comes tells.
            least = skip + 2 if swapped else max(2, min(LOOKAHEAD, size))
            explained = not replaced and changes > 0 and calls >= least
            pending = bool(ends) and not explained
            kind = (what, skip, skip_theirs)
            found = _Event(at, there, *kind, explained, pending, changes, calls)
    return found


def _attempts(
    match: _Match, ours: Sequence[int], theirs: Sequence[int], at: int, there: int
) -> Iterator[tuple[str, int, int]]:
    """Yields what may have happened, and the rows that it takes of both."""
    one, other = ours[at], theirs[there]
    for count in _ahead(theirs, there, one, lambda place: match(one, place)):
        yield "skipped", 0, count
    for count in _ahead(ours, at, other, lambda place: match(place, other)):
        yield "repeated", count, 0
    left: Counter[int] = Counter()
    most = min(len(ours) - at, len(theirs) - there)
    for count in range(1, min(WINDOW, most) + 1):
        left[ours[at + count - 1]] += 1
        left[theirs[there + count - 1]] -= 1
        if not any(left.values()):
            yield "swapped", count, count
            break
        if count < most and match(ours[at + count], theirs[there + count]):
            yield "replaced", count, count


def _ahead(
    column: Sequence[int], at: int, place: int, match: Callable[[int], bool]
) -> Iterator[int]:
    """Yields how much further on a call matches; far away only some that come from that place."""
    near = column[at + 1 : at + WINDOW + 1]
    yield from (count for count, one in enumerate(near, 1) if match(one))
    far = column[at + WINDOW + 1 : at + FAR]
    counts = (count for count, one in enumerate(far, WINDOW + 1) if one == place)
    yield from islice(counts, MOST_FAR)


def _other_reading(event: _Event, ours: Sequence[int], theirs: Sequence[int]) -> _Event | None:
    """In a loop of two lines, one that was skipped looks like the other one made twice."""
    if event.ours + event.theirs != 1:
        return None
    what = "repeated" if event.what == "skipped" else "skipped"
    other = replace(event, what=what, ours=event.theirs, theirs=event.ours)
    mine, usual = ours[event.at + other.ours :], theirs[event.there + other.theirs :]
    count = max(2, event.calls - 1)
    return other if mine and usual and mine[:count] == usual[:count] else None
