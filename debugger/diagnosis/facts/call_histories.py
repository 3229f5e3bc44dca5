"""The call histories of two ranks side by side, as a unified diff, and what the diff shows; and
where their lines part, which may be earlier than their calls do; and whose call is not that of
most.

`first_divergence` finds the first call at which two ranks differ, from their hash chains. Chains
that are equal after n calls were equal after every number below n, so the first difference is found
by stepping back from the end in growing steps and then halving. What a rank's ring has overwritten
is unknown; the checkpoints of a chain, every 64th call, still narrow it down.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...record.dispute import vote
from ...record.layout import GroupState
from ...record.ops import OPS
from ...record.signature import Signature, agreement_key, exact_key
from ...record.snapshot import Call, CallSite, Place
from ...record.wording import at_site, call_text, ranks_text, site_text
from .slips import Rows, Slip, parting
from .world import GroupView, World

BEFORE, AFTER = 3, 6
MOST_LINES = 64
"""Calls before an error among which lines that part may explain it though nothing else says so."""


@dataclass(frozen=True, slots=True)
class Story:
    """`sentence` says what one rank did differently, where the diff shows it ("" otherwise)."""

    details: tuple[str, ...]
    sentence: str


def compare_histories(
    world: World,
    view: GroupView,
    reference: tuple[int, ...],
    odd: tuple[int, ...],
    seq: int,
    *,
    blame: bool,
) -> Story:
    """The largest party's calls around the mismatch against those of another. `blame`: the largest
    one is right."""
    left = _calls(world, view, reference[0], seq)
    right = _calls(world, view, odd[0], seq)
    rows = list(
        difflib.unified_diff(
            [call_text(call) for call in left],
            [call_text(call) for call in right],
            lineterm="",
            n=BEFORE,
        )
    )
    if not rows:
        return Story((), "")
    start = max(0, seq - BEFORE)
    lines = [
        f"--- {ranks_text(reference)}, from #{start}",
        f"+++ {ranks_text(odd)}, from #{start}",
        *(row for row in rows[2:] if not row.startswith("@@")),
    ]
    sentence = _sentence(left, right, seq, odd) if blame else ""
    return Story(tuple(lines), sentence)


def slip_of(world: World, view: GroupView) -> tuple[Rows | None, Slip | None]:
    """The lines of the group's calls, and where they part. None: they do not, or are not known."""
    states = view.states
    logs = {rank: log for rank, state in states.items() if (log := state.lines) is not None}
    least = min((state.issued for state in states.values()), default=0)
    if len(logs) < len(view.ranks) or len(logs) < 2 or not least:
        return None, None
    # How many calls a rank has made in the end says more; before, it is one more for a moment.
    over = any(
        world.ended(rank) or state.state is GroupState.DESTROYED for rank, state in states.items()
    )
    issued = {rank: state.issued if over else least for rank, state in states.items()}
    owner = (view.key, view.ranks, *(world.ranks[rank].pid for rank in view.ranks))
    return world.slips.of(owner, logs, issued)


def parting_before(world: World, view: GroupView, seq: int) -> Slip | None:
    """Returns where lines parted that may explain an error at this call of the group."""
    rows, slip = slip_of(world, view)
    if slip is not None and slip.seq < seq:
        return slip
    return parting(rows, seq, MOST_LINES) if rows is not None else None


def lines_known(view: GroupView) -> bool:
    return all(state.lines is not None for state in view.states.values())


def lines_agree(view: GroupView, seq: int) -> bool:
    """Whether all calls before this one came from the same places on all ranks: where they do not,
    one of them is a surprise."""
    logs = {state.lines.mark: state.lines for state in view.states.values() if state.lines}
    made = {
        tuple((one.seq, one.place) for one in log.surprises if one.seq < seq)
        for log in logs.values()
    }
    return len(made) < 2


def site_of(slip: Slip, place: Place | None) -> CallSite | None:
    """The line of a place that tells it from the one that it met: where a layer makes all calls
    from one line, that which called it."""
    if place is None:
        return None
    met = [slip.at[ranks[0]] for ranks in (slip.odd, slip.usual) if ranks]
    sides = [one.sites for one in met if one is not None]
    for level, site in enumerate(place.sites):
        if len({one[level] if level < len(one) else None for one in sides}) > 1:
            return site
    return place.sites[0]


MOST_NAMED = 3


def slip_text(slip: Slip, name: Callable[[Sequence[int]], str] = ranks_text) -> str:
    """`rank 1 skipped train.py:10 in step`; `name` is what ranks are called."""
    who, others = name(slip.odd), name(slip.usual)
    if slip.what is None:
        sides = ((who, slip.odd), (others, slip.usual))
        return ", ".join(f"{side}{at_site(site_of(slip, slip.at[of[0]]))}" for side, of in sides)
    names = [site_text(site) for place in slip.lines if (site := site_of(slip, place))]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    what = (" and " if len(names) == 2 else ", ").join(names[:MOST_NAMED]) + more
    text = f"{who} {slip.what} {what}"
    instead = {"skipped": "repeated", "repeated": "skipped", "swapped": "swapped"}[slip.what]
    if not slip.certain:
        return f"{text}, or {others} {instead} {'it' if len(names) == 1 else 'them'}"
    other = site_of(slip, slip.instead)
    return f"{text}, or {instead} {site_text(other)}" if other is not None else text


def _calls(world: World, view: GroupView, rank: int, seq: int) -> list[Call]:
    """The rank's calls from a few before the mismatch to a few after it."""
    history = world.ranks[rank].history
    if history is None:
        return []
    behind = view.states[rank].issued - seq
    rows = history.recent(behind + BEFORE, view.key)
    return [call for call in rows if seq - BEFORE <= call.seq < seq + AFTER]


def _sentence(left: list[Call], right: list[Call], seq: int, odd: tuple[int, ...]) -> str:
    """Only what two calls in a row show counts: one equal call may be chance."""
    usual = [agreement_key(call.signature) for call in left if call.seq >= seq]
    strange = [agreement_key(call.signature) for call in right if call.seq >= seq]
    if not usual or not strange:
        return ""
    who = ranks_text(odd)
    skipped = len(usual) > 1 and usual[1 : 1 + len(strange)] == strange[: len(usual) - 1]
    added = len(strange) > 1 and strange[1 : 1 + len(usual)] == usual[: len(strange) - 1]
    if skipped and not added:
        return f"{who} skipped {call_text(next(c for c in left if c.seq == seq))}"
    if added and not skipped:
        return f"{who} made an extra {call_text(next(c for c in right if c.seq == seq))}"
    return ""


Chain = Callable[[int], int | None]
"""The running hash after that many calls, or None when it was overwritten."""

CHECKPOINT_EVERY = 64
CHECKPOINTS = 16


@dataclass(frozen=True, slots=True)
class Divergence:
    """The calls `seq` are the first known to differ. Not `exact`: they may have differed before."""

    seq: int
    exact: bool


def first_divergence(one: Chain, other: Chain, issued: int) -> Divergence | None:
    """The first difference among the first `issued` calls; None where none is known."""

    def same(count: int) -> bool | None:
        if count == 0:
            return True
        left, right = one(count), other(count)
        return None if left is None or right is None else left == right

    if same(issued) is not False:
        return None
    differ, low, step = issued, 0, 1
    while differ - step > 0:
        answer = same(differ - step)
        if answer is True:
            low = differ - step
            break
        if answer is None:
            low = differ - step  # nothing is known there: look only above it
            break
        differ -= step
        step *= 2
    while differ - low > 1:
        middle = (low + differ) // 2
        answer = same(middle)
        if answer is False:
            differ = middle
        else:
            low = middle
    if same(differ - 1) is not None:
        return Divergence(differ - 1, exact=True)
    return _by_checkpoints(same, differ)


def _by_checkpoints(same: Callable[[int], bool | None], differ: int) -> Divergence:
    at = (differ - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    for _ in range(CHECKPOINTS + 1):
        answer = same(at)
        if answer is True or at <= 0:
            return Divergence(differ - 1, exact=False)
        if answer is False:
            differ = at
        at -= CHECKPOINT_EVERY
    return Divergence(differ - 1, exact=False)


def odd_ranks(calls: Mapping[int, Signature]) -> frozenset[int]:
    """Returns the ranks whose call of a collective is not that of most; without a majority all."""
    answers: dict[tuple[object, ...], list[int]] = {}
    for rank, signature in calls.items():
        answer = exact_key(signature) if signature.op in OPS else (signature.op,)
        answers.setdefault(answer, []).append(rank)
    return frozenset(vote(answers, 0).culprits) if len(answers) > 1 else frozenset()
