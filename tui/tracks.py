"""The strips of the overview: each rank over the last 30 seconds, on one common time axis.

A flight record has the last 4,096 calls with their times, and what each thread waits for now. From
these follows when a rank was in calls; and since the others' records say when they entered the
same call, the part of it in which it waited for somebody. What is between calls is the rank's own.
The reader adds at each look what is new, so that calls stay that a fast ring has lost since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..record.layout import Activity
from ..record.snapshot import GroupKey, Rank, Timing, Wait
from .picture import Letter, Timeline, Track

S = 1_000_000_000
AXES_S = (1, 5, 15, 30)
"""The lengths of the axis: as long as is needed for what is known, each a multiple of the last."""
BINS = 240
"""The axis has so many parts; the rank is said to do what it did for most of a part."""
PART_NS = S // BINS
"""The length of a part where the axis has one second: those of longer ones are whole multiples."""
MOST_TRACKS = 64
MOST_CALLS = 24_000
"""The most calls that are read at a look, of all ranks together: 50 to 100 ms. Of a rank that makes
more the newest are read, and what lies between counts as more of the same."""
_FORGET_NS = 2 * AXES_S[-1] * S

WAITING, CALLING, PAUSED, BACKGROUND, UNREAD = range(5)
NUMBERS = 5
"""The doings of a rank, by number: the times of each are summed thousands of times a second. A part
that is `UNREAD` has more calls than were read."""
_LETTERS = "".join(
    doing.value for doing in (Letter.WAITING, Letter.CALLING, Letter.PAUSED, Letter.BACKGROUND)
)
_Part = tuple[str, int, int, int]
"""Its letter; how long the rank waited and was in calls in it, and how long is known of it."""

Meeting = tuple[GroupKey, tuple[int, int, int] | None, int]
"""A collective, or a message by (source, destination, tag): the group, the message, its number."""
_JOINING = frozenset({Activity.INIT, Activity.NEW_GROUP, Activity.STORE})


class _Parts:
    """The times of a rank's doings in each part of the axis, by the part's number since 1970."""

    def __init__(self) -> None:
        self.of: dict[int, list[int]] = {}
        """The times by the numbers of what it did."""
        self.seen: dict[int, _Part] = {}
        """The results of parts that nothing was added to since."""

    def add(self, doing: int, from_ns: int, until_ns: int, part_ns: int) -> None:
        """Adds the time from then until then to a doing."""
        while from_ns < until_ns:
            part = from_ns // part_ns
            end_ns = min(until_ns, (part + 1) * part_ns)
            sums = self.of.get(part)
            if sums is None:
                sums = self.of[part] = [0] * NUMBERS
            sums[doing] += end_ns - from_ns
            self.seen.pop(part, None)
            from_ns = end_ns

    def merge(self, factor: int) -> None:
        """Each `factor` parts are one from now on."""
        before, self.of = self.of, {}
        self.seen.clear()
        for part, sums in before.items():
            into = self.of.setdefault(part // factor, [0] * NUMBERS)
            for doing, time_ns in enumerate(sums):
                into[doing] += time_ns

    def forget(self, before: int) -> None:
        """Forgets what lies before that part."""
        for parts in (self.of, self.seen):
            for part in [part for part in parts if part < before]:
                del parts[part]


@dataclass(slots=True)
class _SeenRank:
    """The state of a rank that is kept between two looks."""

    process: tuple[int, int]
    """Its id and when it began: a rank that is started again is another one."""
    known_ns: int = 0
    """Since when it is known what it did."""
    next: int = 0
    open: dict[int, Timing] = field(default_factory=dict)
    done: list[Timing] = field(default_factory=list)
    """Calls that were over at the last look, and that others had not entered as far as was read.
    They are counted at the next one: what was read of other ranks before this one may lack it."""
    last_ns: int = 0
    """When the last call that was read was over."""
    waits: dict[tuple[int, int], tuple[int, int, int, int | None]] = field(default_factory=dict)
    """By thread and serial: what it was, since when, until when it was seen, in which call."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    parts: _Parts = field(default_factory=_Parts)


@dataclass(slots=True)
class _Met:
    """The ranks that have entered a call: how many, and when the last of them did."""

    count: int = 0
    last_ns: int = 0


class Tracks:
    """Follows the ranks of one run, from look to look."""

    def __init__(self) -> None:
        self._seen: dict[int, _SeenRank] = {}
        self._met: dict[Meeting, _Met] = {}
        self._span_s = AXES_S[0]
        self._ranks: Mapping[int, Rank] = {}

    def look(self, ranks: Mapping[int, Rank], now_ns: int, over: bool) -> Timeline | None:
        """The strips up to now; None of more ranks than have rows. Of a run that is `over` they end
        with its last process, or with the last sign of life."""
        if not 0 < len(ranks) <= MOST_TRACKS:
            return None
        self._ranks = ranks
        if over:
            now_ns = max(_end_ns(rank, now_ns) for rank in ranks.values())
        budget = max(64, MOST_CALLS // len(ranks))
        fresh = {number: self._read(number, rank, budget, now_ns) for number, rank in ranks.items()}
        # The axis becomes as long as what is known; it never becomes shorter.
        known_ns = now_ns - min(self._seen[number].known_ns for number in ranks)
        wanted_s = next((one for one in AXES_S if one * S >= known_ns), AXES_S[-1])
        if wanted_s > self._span_s:
            for seen in self._seen.values():
                seen.parts.merge(wanted_s // self._span_s)
            self._span_s = wanted_s
        part_ns = self._span_s * PART_NS
        end = now_ns // part_ns + 1
        tracks = {}
        for number, rank in ranks.items():
            seen = self._seen[number]
            settled, seen.done = seen.done, []
            for call in fresh[number]:
                (settled if self._is_settled(rank, call) else seen.done).append(call)
            for call in settled:
                self._count(seen.parts, number, rank, call, call.completed_ns, part_ns)
            seen.parts.forget(end - BINS)
            seen.gaps = [gap for gap in seen.gaps if gap[1] > now_ns - AXES_S[-1] * S]
            present = self._present(number, rank, seen, fresh[number], now_ns, part_ns)
            tracks[number] = _track(seen, present, rank, now_ns, end, part_ns)
        if len(self._met) > 4 * MOST_CALLS:
            least_ns = now_ns - _FORGET_NS
            self._met = {key: met for key, met in self._met.items() if met.last_ns > least_ns}
        return Timeline(self._span_s * S, tracks)

    # -- what is new ---------------------------------------------------------------------------

    def _read(self, number: int, rank: Rank, budget: int, now_ns: int) -> list[Timing]:
        """Calls that are over since the last look."""
        seen = self._seen.get(number)
        process = (rank.pid, rank.started_ns)
        if seen is None or seen.process != process:
            seen = self._seen[number] = _SeenRank(process, rank.started_ns)
        history = rank.history
        if history is None:
            return []
        first = max(seen.next, rank.calls - budget)
        again = history.timings(seen.open)
        new = history.timings(range(first, rank.calls))
        if new and new[0].number > seen.next:
            # Calls before this one were lost, or were too many to read.
            issued_ns = new[0].issued_ns
            if seen.next:
                seen.gaps.append((max(seen.last_ns, seen.known_ns), issued_ns))
            else:
                seen.known_ns = issued_ns
        seen.next = rank.calls
        for call in new:
            met = self._met.setdefault(_meeting(number, call), _Met())
            met.count += 1
            met.last_ns = max(met.last_ns, call.issued_ns)
        done = [call for call in (*again, *new) if call.completed_ns]
        seen.open = {call.number: call for call in (*again, *new) if not call.completed_ns}
        if done:
            seen.last_ns = done[-1].completed_ns
        oldest_ns = now_ns - _FORGET_NS
        return [call for call in done if call.completed_ns > oldest_ns]

    # -- what it comes to ----------------------------------------------------------------------

    def _count(
        self, parts: _Parts, number: int, rank: Rank, call: Timing, until_ns: int, part_ns: int
    ) -> None:
        if not call.blocks:
            parts.add(BACKGROUND, call.issued_ns, until_ns, part_ns)
            return
        self._count_wait(parts, number, rank, call, call.issued_ns, until_ns, part_ns)

    def _count_wait(
        self,
        parts: _Parts,
        number: int,
        rank: Rank,
        call: Timing,
        from_ns: int,
        until_ns: int,
        part_ns: int,
    ) -> None:
        """In a call: until the last one came it waited, from then on the call was made."""
        met = self._met.get(_meeting(number, call))
        came_ns = met.last_ns if met is not None else from_ns
        if self._somebody_missing(rank, call, met):
            came_ns = until_ns
        came_ns = max(from_ns, min(until_ns, came_ns))
        parts.add(WAITING, from_ns, came_ns, part_ns)
        parts.add(CALLING, came_ns, until_ns, part_ns)

    def _somebody_missing(self, rank: Rank, call: Timing, met: _Met | None) -> bool:
        """Whether a rank has surely not entered this call: also one that was broken off has waited
        for it until then."""
        count = met.count if met is not None else 0
        if call.message is not None:
            op, peer, _ = call.message
            return (count < 2 and (not call.completed_ns or op == "recv")) or peer < 0
        group = rank.groups.get(call.group)
        if group is None or count >= len(group.ranks):
            return False
        for member in group.ranks:
            other = self._ranks.get(member)
            own = other.groups.get(call.group) if other is not None else None
            if own is None and not call.completed_ns:
                return True  # it has left no record of having made the group
            if own is not None and own.issued <= call.seq:
                return True
        return False

    def _is_settled(self, rank: Rank, call: Timing) -> bool:
        """Whether it is known already when the last one entered it."""
        if not call.blocks:
            return True
        met, group = self._met.get(_meeting(rank.rank, call)), rank.groups.get(call.group)
        return met is not None and group is not None and met.count >= len(group.ranks)

    def _present(
        self,
        number: int,
        rank: Rank,
        seen: _SeenRank,
        fresh: Sequence[Timing],
        now_ns: int,
        part_ns: int,
    ) -> _Parts:
        """Returns what is not counted yet: calls and waits that go on, and calls that have just
        ended."""
        parts = _Parts()
        end_ns = _end_ns(rank, now_ns)
        least_ns = now_ns - AXES_S[-1] * S
        for done in seen.done:
            self._count(parts, number, rank, done, done.completed_ns, part_ns)
        timings = {one.number: one for one in (*seen.open.values(), *fresh)}
        before, seen.waits = seen.waits, {}
        inside = set()
        for wait in rank.waits:
            call = None if wait.call is None else timings.get(wait.call)
            if wait.activity is Activity.NONE or (call and call.blocks and call.completed_ns):
                continue
            if call is not None and call.blocks:
                inside.add(call.number)
            else:
                key = (wait.thread, wait.serial)
                seen.waits[key] = (_doing(wait), wait.since_ns, end_ns, wait.call)
            since_ns = max(least_ns, wait.since_ns)
            if call is not None:
                self._count_wait(parts, number, rank, call, since_ns, end_ns, part_ns)
            else:
                parts.add(_doing(wait), since_ns, end_ns, part_ns)
        for one in seen.open.values():
            if one.number not in inside:
                late = one._replace(issued_ns=max(least_ns, one.issued_ns))
                self._count(parts, number, rank, late, end_ns, part_ns)
        # Waits that are over are not on record: they are known because they were seen.
        for key in before.keys() - seen.waits.keys():
            doing, since_ns, until_ns, of_call = before[key]
            since_ns = max(least_ns, since_ns)
            call = None if of_call is None else timings.get(of_call)
            if call is None:
                seen.parts.add(doing, since_ns, until_ns, part_ns)
            else:
                until_ns = max(until_ns, call.completed_ns)
                self._count_wait(seen.parts, number, rank, call, since_ns, until_ns, part_ns)
        return parts


def _meeting(number: int, call: Timing) -> Meeting:
    if call.message is None:
        return (call.group, None, call.seq)
    op, peer, tag = call.message
    ends = (peer, number, tag) if op == "recv" else (number, peer, tag)
    return (call.group, ends, call.seq)


def _doing(wait: Wait) -> int:
    """Returns the doing in a wait that is for no call on record."""
    if wait.activity is Activity.PAUSED:
        return PAUSED
    return WAITING if wait.activity in _JOINING else CALLING


def _end_ns(rank: Rank, now_ns: int) -> int:
    """Until when the rank did anything."""
    if rank.process.alive:
        return now_ns
    ended_ns = rank.process.ended_ns or rank.heartbeat_ns
    return min(now_ns, ended_ns) if ended_ns else now_ns


def _track(
    seen: _SeenRank, present: _Parts, rank: Rank, now_ns: int, end: int, part_ns: int
) -> Track:
    first = (seen.known_ns + part_ns - 1) // part_ns
    last = _end_ns(rank, now_ns) // part_ns
    kept, of, coming = seen.parts.seen, seen.parts.of, present.of
    for from_ns, until_ns in seen.gaps:
        present.add(UNREAD, from_ns, until_ns, part_ns)
    letters = []
    waits = calls = known = 0
    for part in range(end - BINS, end):
        if not first <= part <= last:
            letters.append(Letter.NOTHING.value)
            continue
        now, found = coming.get(part), None
        if now is None and part != last:
            found = kept.get(part)
        if found is None:
            found = _part_of(of.get(part), now, max(1, min(part_ns, now_ns - part * part_ns)))
            if now is None and part != last:
                kept[part] = found
        letters.append(found[0])
        waits += found[1]
        calls += found[2]
        known += found[3]
    # What was not read, because calls were too many, is filled with what follows.
    follows = Letter.NOTHING.value
    for at in range(len(letters) - 1, -1, -1) if "?" in letters else ():
        follows = letters[at] = follows if letters[at] == "?" else letters[at]
    return Track("".join(letters), waits / known if known else 0.0, calls / known if known else 0.0)


def _part_of(counted: list[int] | None, coming: list[int] | None, length_ns: int) -> _Part:
    """Returns what fills a part. What is in no call is the rank's own, with a call in the
    background or without. Threads may be in several calls at a time: together they fill no more
    than the part."""
    sums = counted or coming
    if sums is None:
        return (Letter.COMPUTING.value, 0, 0, length_ns)
    if counted is not None and coming is not None:
        sums = [one + other for one, other in zip(counted, coming, strict=True)]
    left_ns = known_ns = length_ns - sums[UNREAD]
    if known_ns * 10 < length_ns:
        return ("?", 0, 0, 0)
    shares = [0, 0, 0]
    for doing in (PAUSED, WAITING, CALLING):
        shares[doing] = min(left_ns, sums[doing])
        left_ns -= shares[doing]
    most = max(shares)
    if most >= left_ns:
        letter = _LETTERS[shares.index(most)]
    elif 2 * sums[BACKGROUND] > left_ns:
        letter = _LETTERS[BACKGROUND]
    else:
        letter = Letter.COMPUTING.value
    return (letter, shares[WAITING], shares[CALLING], known_ns)
