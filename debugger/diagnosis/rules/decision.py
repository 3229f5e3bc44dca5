"""Why did ranks decide otherwise? What is known of the branch at which they parted, for findings
about calls that do not belong together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ...record.kinds import KINDS, Family
from ...record.snapshot import Branch, Branches, CallSite, Taken
from ...record.wording import printable, ranks_text
from ..facts.decisions import NOT_RAISED, CallPath, Parted, parted, up_to_call
from ..facts.evidence import OF_MESSAGES, view_of
from ..facts.world import GroupView, World
from ..findings import Finding
from ..story import step

MOST_RANKS = 64
"""Ranks whose branches are read, of one finding."""
MOST_WAYS = 8
"""Calls in a row that may have come by other ways."""
_FAMILIES = (Family.MISMATCH, Family.DEADLOCK, Family.ABSENCE)
_STATEMENTS = ("if ", "elif ", "while ", "for ", "case ", "assert ", "with ", "try")
NOT_KNOWN = "not known"


@step("decision")
def with_decision(world: World, finding: Finding) -> Finding:
    """The finding with the branch that decided it. Without branches on record as it is."""
    about = KINDS[finding.kind]
    if "parted_at" not in finding.data and (about.family not in _FAMILIES or about.ends_all):
        return finding
    view, after = _last_common(world, finding)
    if view is None or "decision" in finding.data:
        return finding
    branches = {
        rank: one
        for rank in (*finding.culprits, *view.ranks)[: 2 * MOST_RANKS]
        if (state := world.ranks.get(rank)) is not None
        and (one := state.branches) is not None
        and one.on_record
    }
    if len(branches) < 2:
        return finding
    package = _in_a_package(world, view, after)
    found = _of_pairs(world, finding, view, after, branches)
    if found is None and (earlier := _other_way(world, view, after)) < after:
        found = _of_pairs(world, finding, view, earlier, branches)
    if found is not None and package is not None and not found["source"].startswith(_STATEMENTS):
        found = None  # it chose a value, which the package was given
    decision = found or package or {"location": None, "source": None, "sides": []}
    data = {**finding.data, "decision": decision}
    first = finding.details[: "parted_at" in finding.data and finding.kind != "misaligned"]
    rest = finding.details[len(first) :]
    return replace(finding, data=data, details=(*first, text_of(decision), *rest))


def text_of(decision: Mapping[str, Any]) -> str:
    """Returns the line of the report."""
    place = decision["location"]
    if place is None:
        return (
            f"decided at a place that is {NOT_KNOWN}: no branch of the program's that is on record"
        )
    where = f"{os.path.basename(place['file'])}:{place['line']}"
    sides = [
        f"{ranks_text(side['ranks'])}: {side['outcome']}{_values_text(side)}"
        for side in decision["sides"]
    ]
    return "   ".join(map(printable, [f"decided at {where}", decision["source"], *sides]))


def _values_text(side: Mapping[str, Any]) -> str:
    shown = side.get("shown") or ", ".join(
        f"{name} = {one}" for name, one in side["values"].items()
    )
    return f" ({shown})" if shown else ""


def _last_common(world: World, finding: Finding) -> tuple[GroupView | None, int]:
    """The group, and its last call that the ranks have made together."""
    if finding.group is not None:
        view = view_of(world, finding.group)
    else:
        about = {*finding.culprits, *finding.victims, *finding.ranks}
        views = [one for one in world.groups if about.issubset(one.ranks)]
        view = max(views, key=lambda one: (len(one.ranks), one.key), default=None)
    if view is None:
        return None, -1
    least = min((state.issued for state in view.states.values()), default=0)
    seq = finding.data.get("parted_at", finding.seq)
    if finding.group is None or seq is None or finding.kind in OF_MESSAGES:
        return view, least - 1
    return view, min(seq, least) - 1


def _of_pairs(
    world: World,
    finding: Finding,
    view: GroupView,
    after: int,
    branches: Mapping[int, Branches],
) -> dict[str, Any] | None:
    culprits = [rank for rank in finding.culprits if rank in branches]
    others = [rank for rank in branches if rank not in culprits]
    if not culprits or not others:
        culprits, others = [*branches][1:], [*branches][:1]
    for ours, theirs in product(culprits[:4], others[:4]):
        way = _way(world, finding, view, after, ours, theirs)
        found = parted(branches[ours], branches[theirs], way, after)
        if found is not None:
            return _described(found, ours, theirs, view, branches)
    return None


def _way(
    world: World, finding: Finding, view: GroupView, after: int, ours: int, theirs: int
) -> CallPath:
    stacks = []
    for rank in (ours, theirs):
        call = world.call_at(rank, view.key, after + 1)
        stands = finding.ranks[rank].location if rank in finding.ranks else None
        place = call.place.sites if call is not None and call.place is not None else (stands,)
        stacks.append([site for site in place if site is not None])
    return CallPath(view.key, {site.function for stack in stacks for site in stack})


def _described(
    found: Parted, ours: int, theirs: int, view: GroupView, branches: Mapping[int, Branches]
) -> dict[str, Any]:
    taken: dict[int, Taken | None] = {ours: found.ours, theirs: found.theirs}
    key, raised = found.branch.key, found.ours is None or found.theirs is None
    for rank, branch in branches.items():
        if rank not in taken:
            rows = up_to_call(branch, view.key, found.after)
            if rows is not None:
                same = [one for one in rows if one.branch.key == key]
                taken[rank] = same[found.nth] if found.nth < len(same) else None
    sides: dict[str, dict[str, Any]] = {}
    for rank in sorted(taken, key=lambda rank: (rank != ours, rank)):
        one = taken[rank]
        outcome = one.outcome if one is not None else NOT_RAISED if raised else NOT_KNOWN
        if one is not None and one.branch.part and not raised:
            outcome = f"{one.branch.part}: {outcome}"
        side = sides.setdefault(outcome, {"ranks": [], "outcome": outcome, "values": {}})
        side["ranks"].append(rank)
        if one is not None and one.values and not side["values"]:
            known = dict(zip(one.branch.names, one.values, strict=False))
            side["values"] = {name: value for name, value in known.items() if value is not None}
            side["shown"] = _shown(one.branch, one.values)
    return _decision(found.branch, found.branch.source, [*sides.values()])


def _decision(at: Branch | CallSite, source: str, sides: list[dict[str, Any]]) -> dict[str, Any]:
    place = {"file": at.file, "line": at.line, "function": at.function}
    return {"location": place, "source": source, "sides": sides}


def _shown(branch: Branch, values: tuple[str | None, ...]) -> str:
    """The comparison with values in place of names; "" where it is none."""
    if len(branch.shown) != len(branch.names) + 1:
        return ""
    pieces = [branch.shown[0]]
    for name, value, text in zip(branch.names, values, branch.shown[1:], strict=True):
        pieces += [name if value is None else value, text]
    return "".join(pieces)


def _other_way(world: World, view: GroupView, after: int) -> int:
    """Returns the call before those, up to this one, to which ranks came by different ways: a line
    that a rank has made a call too many from may count as the same by either."""
    for seq in range(after, max(-1, after - MOST_WAYS), -1):
        calls = (world.call_at(rank, view.key, seq) for rank in view.ranks)
        if len({one.place for one in calls if one is not None}) < 2:
            return seq
    return after


def _in_a_package(world: World, view: GroupView, after: int) -> dict[str, Any] | None:
    """Returns the decision of an installed package that made the call on one side: the user's line
    that has called it, and who called by it."""
    made: dict[CallSite | None, list[int]] = {}
    for rank in view.ranks:
        call = world.call_at(rank, view.key, after + 1)
        made.setdefault(call.site if call is not None else None, []).append(rank)
    sites = [site for site in made if site is not None and site.through]
    if len(made) < 2 or not sites:
        return None
    sides = []
    for other, ranks in made.items():
        through = other.through if other is not None else ""
        outcome = f"called at {through}" if through else "did not call there"
        sides.append({"ranks": ranks, "outcome": outcome, "values": {}})
    site = min(sites, key=lambda one: len(made[one]))
    return _decision(site, f"in {site.through}", sides)
