"""Do the ranks of a group make each call from lines that belong together? And what follows if not.

Rules:
1. Where lines part (see `facts.slips`), and enough speaks for it, it is a warning at that call:
   nothing need fail by it, but what the calls exchange from there on is not what is meant. Who
   slipped is the minority; without one nobody is to blame.
2. Barriers carry no data: that two of them meet from other lines is no fault.
3. Two ranks that take turns as the root of a call come from the lines of each other: where no line
   of theirs is straight, nothing is said.
4. Every other finding of that group, at a later call, says it first, and the warning is left out.
   Where most ranks made the right calls, and lines still are apart there, who slipped is the
   culprit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...record.kinds import KINDS
from ...record.snapshot import Call, Group
from ...record.wording import at_site, group_name, numbered, ranks_text
from ..facts.call_histories import parting_before, site_of, slip_of, slip_text
from ..facts.evidence import OF_MESSAGES, chosen, last_call, of_call, stand, view_of
from ..facts.slips import Slip
from ..facts.world import GroupView, World
from ..findings import CallIs, Finding, group_evidence
from ..limits import Candidate
from ..story import step

LOOKED_AT = 8
"""Calls of a slip of which the op is asked for."""


def misaligned(world: World) -> list[Candidate]:
    """At most one warning for each group, and for each pair of ranks that exchange messages."""
    found = (parting_of(world, view) for view in world.groups)
    return [Candidate(one) for one in found if one is not None] + _messages(world)


def parting_of(world: World, view: GroupView) -> Finding | None:
    """The warning for one group."""
    _, slip = slip_of(world, view)
    if slip is None or not slip.strong or not _matters(world, view, slip):
        return None
    calls = {rank: world.call_at(rank, view.key, slip.seq) for rank in chosen(slip.odd, slip.usual)}
    where = numbered(view.any, slip.seq)
    return _of_slip(world, slip, where, f"called #{slip.seq}", view.any, calls)


def _matters(world: World, view: GroupView, slip: Slip) -> bool:
    made = [
        call.signature
        for rank in (slip.odd[0], slip.usual[0])
        for seq in range(slip.seq, slip.seq + LOOKED_AT)
        if (call := world.call_at(rank, view.key, seq)) is not None
    ]
    if made and all(one.op == "barrier" for one in made):
        return False
    turns = len(view.ranks) == 2 and any(one.root is not None for one in made)
    return slip.crosses or not turns


def _of_slip(
    world: World,
    slip: Slip,
    where: str,
    state: str,
    group: Group,
    calls: dict[int, Call | None],
) -> Finding:
    ranks = {
        rank: of_call(state, call, site_of(slip, slip.at.get(rank)), CallIs.ALL)
        for rank, call in calls.items()
    }
    sides = (
        f"{ranks_text(of)}{called}{at_site(site_of(slip, slip.at[of[0]]))}"
        for of, called in ((slip.odd, " called it"), (slip.usual, ""))
    )
    headline = f"{slip_text(slip)} at {where}: the ranks' lines part"
    issued_ns = [call.issued_ns for call in calls.values() if call is not None]
    few = slip.odd if slip.majority else ()
    back = () if slip.until is None else (f"they belong together again from #{slip.until} on",)
    return Finding(
        kind="misaligned",
        message=f"{headline}; {', '.join(sides)}",
        culprits=few,
        victims=tuple(sorted({*slip.odd, *slip.usual}.difference(few))),
        severity="warning",
        group=group_evidence(group),
        seq=slip.seq,
        ranks=ranks,
        details=back,
        headline=headline,
        observable_ns=max(issued_ns, default=world.now_ns),
        data={"slip": slip.what, "parted_at": slip.seq},
    )


def _messages(world: World) -> list[Candidate]:
    found = []
    for slip, (sender, receiver), group in _slips_of_messages(world):
        name = group_name(group.key[0], group.desc)
        where = f'message #{slip.seq} from rank {sender} to rank {receiver} in group "{name}"'
        calls: dict[int, Call | None] = dict.fromkeys((sender, receiver))
        state = f"message #{slip.seq}"
        found.append(Candidate(_of_slip(world, slip, where, state, group, calls)))
    return found


def _slips_of_messages(world: World) -> Iterator[tuple[Slip, tuple[int, int], Group]]:
    """Yields those of sends and receives between two ranks in one group and with one tag."""
    ends = {
        (one.group, one.op, number, one.peer, one.tag): one
        for number, rank in world.ranks.items()
        for one in rank.channels
        if one.lines is not None and one.issued
    }
    for (key, op, receiver, sender, tag), received in ends.items():
        sent = ends.get((key, "send", sender, receiver, tag)) if op == "recv" else None
        group = world.ranks[receiver].groups.get(key)
        if sent is None or sent.lines is None or received.lines is None or group is None:
            continue
        pair, least = (sender, receiver), min(sent.issued, received.issued)
        owner = (received.place, pair, *(world.ranks[rank].pid for rank in pair))
        logs = {sender: sent.lines, receiver: received.lines}
        _, slip = world.slips.of(owner, logs, dict.fromkeys(pair, least), messages=True)
        if slip is not None and slip.strong and slip.crosses:
            yield slip, pair, group


@step("lines")
def with_parting(world: World, finding: Finding) -> Finding:
    """The finding with where the lines of its group had parted before. A rank's exception is about
    the group of its last calls."""
    if finding.kind == "misaligned":
        return finding
    slip, seq = _slip_before(world, finding)
    if slip is None:
        return finding
    text = f"the ranks' lines part at #{slip.seq}: {slip_text(slip)}"
    data = {**finding.data, "parted_at": slip.seq, "slip": slip.what}
    finding = replace(finding, details=(text, *finding.details), data=data)
    apart = slip.until is None or (seq is not None and slip.until > seq)
    if not KINDS[finding.kind].by_slip or not slip.majority or not slip.what or not apart:
        return finding
    involved = {*finding.culprits, *finding.victims, *slip.odd}
    return replace(
        finding,
        culprits=slip.odd,
        victims=tuple(sorted(involved.difference(slip.odd))),
        ranks={**stand(world, slip.odd), **finding.ranks},
    )


def _slip_before(world: World, finding: Finding) -> tuple[Slip | None, int | None]:
    """Returns what came before the finding in its group, or between its two ranks, and at which
    call of the group that was found."""
    if finding.kind in OF_MESSAGES:
        about = {*finding.culprits, *finding.victims}
        for slip, ends, group in _slips_of_messages(world):
            if about.issuperset(ends) and group_evidence(group) == finding.group:
                return slip, None
        return None, None
    for view in _views(world, finding):
        seq = finding.seq
        if finding.kind == "rank_exception":
            seq = max(state.issued for state in view.states.values())
        found = slip_of(world, view)[1] if seq is None else parting_before(world, view, seq)
        if found is not None:
            return found, seq
    return None, None


def _views(world: World, finding: Finding) -> list[GroupView]:
    """Returns the group that the finding is about; without one those of its ranks' last calls, in
    which they wait for each other, or which an error may have come from."""
    if finding.group is not None:
        found = [view_of(world, finding.group)]
    elif finding.about.ends_all or finding.about.stuck:
        calls = [(rank, last_call(world, rank)) for rank in finding.culprits if rank in world.ranks]
        found = [
            world.view(rank, call.group)
            for rank, call in calls
            if call is not None and call.signature.peer is None
        ]
    else:
        found = []
    return [view for view in found if view is not None]


def without_carried(findings: Sequence[Finding]) -> list[Finding]:
    """The findings but for the warnings that another one of their group carries."""
    carried = {
        one.data["parted_at"] if one.group is None else (one.group, one.data["parted_at"])
        for one in findings
        if one.kind != "misaligned" and "parted_at" in one.data and one.severity == "error"
    }
    return [
        one
        for one in findings
        if one.kind != "misaligned" or not carried & {one.seq, (one.group, one.seq)}
    ]
