"""The call histories of two ranks side by side, as a unified diff, and what the diff shows; and
where their lines part, which may be earlier than their calls do; and whose call is not that of
most.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from ...record.dispute import vote
from ...record.ops import OPS
from ...record.signature import Signature, agreement_key, exact_key
from ...record.snapshot import Call, CallSite
from ...record.wording import at_site, call_text, ranks_text
from .world import GroupView, World

BEFORE, AFTER = 3, 6
MOST_LINES = 64
"""How many calls before a mismatch are looked at for lines that part."""


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


def lines_part(
    world: World, view: GroupView, usual: tuple[int, ...], odd: tuple[int, ...], seq: int
) -> str:
    """Names the lines at which the two parties made an equal call, shortly before their calls came
    to differ: an extra call is noticed only once the next one differs. "" if there are none.

    Ranks may make one call at two lines throughout (`if rank == 0: ... else: ...`), so a pair of
    lines counts only the first time that it is seen.
    """
    if seq == 0:
        return ""
    sites = {call.seq: call.site for call in _before(world, view, usual[0], seq)}
    known: set[tuple[CallSite, CallSite]] = set()
    parted: Call | None = None
    other: CallSite | None = None
    for call in _before(world, view, odd[0], seq):
        site = sites.get(call.seq)
        if site is None or call.site is None or site == call.site:
            continue
        if (site, call.site) not in known and parted is None and call.seq >= seq - MOST_LINES:
            parted, other = call, site
        known.add((site, call.site))
    if parted is None:
        return ""
    return (
        f"the lines part earlier: {ranks_text(odd)} made #{parted.seq} {call_text(parted)}"
        f"{at_site(parted.site)}, {ranks_text(usual)}{at_site(other)}"
    )


def _before(world: World, view: GroupView, rank: int, seq: int) -> list[Call]:
    """The rank's calls in the group before this one, as far as they are on record."""
    history = world.ranks[rank].history
    if history is None:
        return []
    return [c for c in history.recent(view.states[rank].issued, view.key) if c.seq < seq]


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


def odd_ranks(calls: Mapping[int, Signature]) -> frozenset[int]:
    """Returns the ranks whose call of a collective is not that of most; without a majority all."""
    answers: dict[tuple[object, ...], list[int]] = {}
    for rank, signature in calls.items():
        answer = exact_key(signature) if signature.op in OPS else (signature.op,)
        answers.setdefault(answer, []).append(rank)
    return frozenset(vote(answers, 0).culprits) if len(answers) > 1 else frozenset()
