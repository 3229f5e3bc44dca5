"""The branch at which two ranks went different ways before their calls parted.

1. Of each rank the branches are taken from the last call of the group that all have made to the
   next one, or to now.
2. Two such sequences are aligned as `diff` does it, equal branches as early as may be.
3. The last branch decided to which both came and that they left in different ways, or the exception
   that one side caught: in a function from which one of the calls comes. What comes before ranks
   meet again, as turns of a loop that waits, decided nothing.
4. Where that is the end of a loop, the ranks may have made as many turns, and one of them with a
   call less, somewhere before: the first call counts to which they came by another number of turns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ...record.snapshot import NO_MORE, OFF_AND_ON, Branch, Branches, GroupKey, Interval, Taken

MOST_TAKEN = 400
"""Branches of an interval that are compared: the last ones, for to align takes their square."""
LOOKED_BACK = 2000
"""Calls before the parting in which a loop may have made another number of turns."""
RAISED, NOT_RAISED = "raised", "raised nothing"


@dataclass(frozen=True, slots=True)
class Parted:
    """A branch that two ranks left in different ways, `ours` and `theirs`, when the other one (or
    the only one that came to it) had come to it `nth` times before in the interval that begins
    after call `after`."""

    branch: Branch
    ours: Taken | None
    theirs: Taken | None
    nth: int
    after: int


@dataclass(frozen=True, slots=True)
class CallPath:
    """The way to calls of a `group`: the `functions` that lead to them."""

    group: GroupKey
    functions: Collection[str]


def parted(ours: Branches, theirs: Branches, way: CallPath, after: int) -> Parted | None:
    """Returns what decided it between two ranks; None where it is not on record."""
    found = _between(ours, theirs, way, after)
    if found is None or found.ours is None or found.theirs is None:
        return found
    loops = NO_MORE in (found.ours.outcome, found.theirs.outcome)
    if not loops and not found.branch.source.startswith("while "):
        return found
    earlier = _other_turns(found.branch, ours, theirs, way.group, after)
    return found if earlier is None else _between(ours, theirs, way, earlier, found.branch) or found


def up_to_call(rank: Branches, group: GroupKey, after: int) -> list[Taken] | None:
    """The branches between that call of the group and the next one; None: not on record."""
    intervals = rank.intervals(group, after)
    if intervals is None:
        return None
    end = next((i for i, one in enumerate(intervals) if _ends(one, group)), len(intervals) - 1)
    kept = intervals[: end + 1]
    threads = {one.thread for one in kept if one.taken}
    thread = kept[-1].thread if kept else 0
    # An engine's thread, which calls for the program, has taken no branch of the user's code.
    return [
        taken
        for one in kept
        if one.thread == thread or thread not in threads
        for taken in one.taken
    ]


def _ends(one: Interval, group: GroupKey) -> bool:
    return one.called and one.group == group and one.seq is not None


def _between(
    ours: Branches, theirs: Branches, way: CallPath, after: int, loop: Branch | None = None
) -> Parted | None:
    """`loop`: what filters the things that it goes through decided it, if that did."""
    left, right = up_to_call(ours, way.group, after), up_to_call(theirs, way.group, after)
    if left is None or right is None:
        return None
    off = {one.branch.key for one in (*left, *right) if one.outcome == OFF_AND_ON}
    left, right = (
        [one for one in side if one.branch.key not in off][-MOST_TAKEN:] for side in (left, right)
    )
    found = [
        one
        for difference in _differences(left, right)
        for one in _candidates(left, right, *difference, after)
    ]
    filters = [one for one in found if loop is not None and _fills(one.branch, loop)]
    return filters[-1] if filters else _chosen(found, way)


def _chosen(found: Sequence[Parted], way: CallPath) -> Parted | None:
    """The last branch to which both came in a function that leads to the calls, for what they left
    in different ways before that led both to it. Where its condition is the answer of a function,
    that decided it."""
    chosen = next((one for one in reversed(found) if one.branch.function in way.functions), None)
    if chosen is None or chosen.ours is None or chosen.theirs is None:
        return chosen
    for one in reversed(found[: found.index(chosen)]):
        function = one.branch.function
        if function != chosen.branch.function and f"{function}(" in chosen.branch.source:
            return one
    return chosen


def _fills(one: Branch, other: Branch) -> bool:
    """Whether it filters, in a comprehension, what the other one reads."""
    if not one.part or " for " not in one.source or " else " in one.source:
        return False
    names = [re.match(r"\w+", name) for name in other.names]
    reads = any(name and one.source.startswith(f"{name[0]} = ") for name in names)
    return reads or one.line == other.line


def _differences(
    left: Sequence[Taken], right: Sequence[Taken]
) -> Iterator[tuple[int, int, int, int]]:
    """Yields where each difference begins and ends in both."""
    ours = [(one.branch.key, one.outcome) for one in left]
    theirs = [(one.branch.key, one.outcome) for one in right]
    # Of each two ends of the sequences, how many branches they have in common.
    common = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in reversed(range(len(ours))):
        for j in reversed(range(len(theirs))):
            longer = max(common[i][j + 1], common[i + 1][j])
            common[i][j] = common[i + 1][j + 1] + 1 if ours[i] == theirs[j] else longer
    i = j = 0
    begin = i, j
    while i < len(ours) or j < len(theirs):
        if i < len(ours) and j < len(theirs) and ours[i] == theirs[j]:
            if (i, j) != begin:
                yield (*begin, i, j)
            i, j = begin = i + 1, j + 1
        elif i < len(ours) and common[i + 1][j] == common[i][j]:
            i += 1
        else:
            j += 1
    if (i, j) != begin:
        yield (*begin, i, j)


def _candidates(
    left: Sequence[Taken],
    right: Sequence[Taken],
    i: int,
    j: int,
    left_end: int,
    right_end: int,
    after: int,
) -> Iterator[Parted]:
    """Yields the branches of a difference to which both sides came and that they left in different
    ways, and the exceptions that one has caught."""

    def found(ours: Taken | None, theirs: Taken | None, at: int) -> Parted:
        one, before = (ours, left[:at]) if theirs is None else (theirs, right[:at])
        assert one is not None
        nth = sum(each.branch.key == one.branch.key for each in before)
        return Parted(one.branch, ours, theirs, nth, after)

    # What follows the difference on one side may be the other way on: a loop that ends earlier.
    last = min(len(right), max(right_end, j + 1))
    for at, one in islice(enumerate(left), i, left_end):
        if one.outcome.startswith(RAISED):
            yield found(one, None, at)
            continue
        other = next((k for k in range(j, last) if right[k].branch.key == one.branch.key), None)
        if other is not None:
            if one.outcome != right[other].outcome:
                yield found(one, right[other], other)
            j = other + 1
    for other in reversed(range(j, right_end)):
        if right[other].outcome.startswith(RAISED):
            yield found(None, right[other], other)


def _other_turns(
    loop: Branch, ours: Branches, theirs: Branches, group: GroupKey, after: int
) -> int | None:
    """The call after which the ranks made another number of turns of the loop first, or left other
    things for it to go through, though the calls are still the same."""
    start = max(-1, after - LOOKED_BACK)
    turns: list[list[list[Hashable]]] = []
    for side in (ours, theirs):
        intervals = side.intervals(group, start)
        if intervals is None:
            return None
        counts: list[list[Hashable]] = [[]]
        for one in intervals:
            for taken in one.taken:
                if taken.branch.key == loop.key:
                    counts[-1].append(loop.key)
                elif _fills(taken.branch, loop):
                    counts[-1].append((taken.branch.key, taken.outcome))
            if _ends(one, group):
                counts.append([])
        turns.append(counts)
    pairs = zip(*turns, strict=False)
    found = (start + at for at, (one, other) in enumerate(pairs) if one != other)
    return next((number for number in found if number < after), None)
