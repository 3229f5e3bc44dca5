"""The report's words on faults that were injected: which happened, which did not and why, and which
finding is explained by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..diagnosis.findings import Finding
from ..faults.actions import ACTIONS, Target
from ..faults.injected import Injected
from ..faults.plan import Fault, Moment, Plan, When
from ..record.safe_text import clean
from ..record.snapshot import Group, Rank
from ..record.wording import counted
from .stored import Document

EXIT_USAGE = 2
RUNNING = "running"


def explanation(
    finding: Finding, after_s: float | None, plan: Plan, entries: Sequence[Injected]
) -> Fault | None:
    """The fault that explains the finding; None where none does.

    It happened in a rank among the culprits (of a link, or an Inf that calls pass on to another
    rank: among all ranks of the finding), at or before the finding became observable; or, where
    none did, before it was detected, `after_s` seconds later: who waits for a late rank waits
    before that rank is. Of several it is the last one that leads to such a finding, else the last
    one.
    """
    faults = {fault.number: fault for fault in plan.faults}
    culprits = set(finding.culprits) or set(finding.ranks)
    concerned = culprits | set(finding.victims) | set(finding.missing) | set(finding.ranks)
    found = []
    for one in entries:
        fault = faults.get(one.fault)
        if fault is None or one.refused:
            continue
        if finding.about.only_by and fault.action not in finding.about.only_by:
            continue
        action = ACTIONS.get(fault.action)
        spreads = finding.about.spreads and action is not None and finding.kind in action.leads_to
        among = concerned if spreads else culprits
        if among & {one.rank} if _of_ranks(fault) else concerned & set(fault.ranks):
            found.append((one, fault))
    observable_ns = finding.observable_ns
    in_time = [pair for pair in found if not observable_ns or pair[0].time_ns <= observable_ns]
    if not in_time:
        detected_ns = observable_ns + round((after_s or 0.0) * 1e9)
        late = [pair for pair in found if pair[0].time_ns <= detected_ns]
        in_time = late[:1]
    kind = finding.kind
    best = max(in_time, key=lambda pair: (_leads_to(pair[1], kind), pair[0].time_ns), default=None)
    return best[1] if best is not None else None


def fates(
    plan: Plan, entries: Sequence[Injected], ranks: Mapping[int, Rank]
) -> list[dict[str, Any]]:
    """For each fault of the plan, what has become of it, as report.json has it.

    `not_in`: the ranks in which it was to happen and did not, with the reason in `why`; of a link
    it is enough that it happened at one end. `ranks` are as the run left them.
    """
    found = []
    for fault in plan.faults:
        own = [one for one in entries if one.fault == fault.number]
        done = sorted((one for one in own if not one.refused), key=lambda one: one.time_ns)
        refused = next((one.refused for one in own if one.refused), "")
        came = {one.rank for one in done}
        absent = [rank for rank in fault.ranks if rank not in came]
        if refused or (done and not _of_ranks(fault)):
            absent = []
        first = done[0] if done else None
        why = [why_not(fault, rank, ranks.get(rank), plan.namespaces) for rank in absent]
        found.append(
            {
                "fault": clean(fault.text),
                "number": fault.number,
                "action": clean(fault.action),
                "rank": first.rank if first else fault.ranks[0] if fault.ranks else None,
                "ranks": list(fault.ranks),
                "fired": first is not None,
                "times": len(done),
                "time_ns": first.time_ns if first else None,
                "where": clean(first.where) if first else "",
                "not_in": absent,
                "why": clean("; ".join(why)),
                "refused": clean(refused),
            }
        )
    return found


def judged(outcome: str, code: int, injected: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """The outcome and exit code of a run with these faults: one that could not happen makes it
    unusable; one that did not happen, a success worth nothing."""
    if any(one["refused"] for one in injected):
        return "failed", EXIT_USAGE
    if code == 0 and any(map(_is_missing, injected)):
        return "failed", EXIT_USAGE
    return outcome, code


def unmade(document: Mapping[str, Any]) -> list[str]:
    """A sentence about each fault that did not happen, or not in all of its ranks; what cannot
    happen in such a run at all comes first."""
    if document["outcome"] == RUNNING:
        return []
    rows: Sequence[Mapping[str, Any]] = document.get("injected", ())
    refused = [f"{one['fault']}: {one['refused']}" for one in rows if one["refused"]]
    never = []
    for one in rows:
        if not one["refused"] and _is_missing(one):
            where = f" in {_ranks(one['not_in'])}" if one["fired"] else ""
            why = f": {one['why']}" if one["why"] else ""
            never.append(f"{one['fault']} never happened{where}{why}")
    return refused + never


def failed_by_faults(document: Mapping[str, Any]) -> bool:
    """Whether faults that did not happen are all that is wrong with the run."""
    if any(one["refused"] for one in document.get("injected", ())):
        return True
    errors = any(one["severity"] == "error" for one in document["findings"])
    ended = (document["outcome"], document["exit_code"]) == ("failed", EXIT_USAGE)
    return ended and not errors and bool(unmade(document))


def _is_missing(one: Mapping[str, Any]) -> bool:
    return bool(one["not_in"]) or not one["fired"]


def add(
    document: Document,
    findings: Sequence[tuple[Finding, float | None]],
    plan: Plan,
    entries: Sequence[Injected],
    ranks: Mapping[int, Rank],
) -> None:
    """Put into the report of a run with a plan what became of it. `findings` are those that the
    document was built of, in its order. In a run that still goes on, all may still happen."""
    injected = fates(plan, entries, ranks)
    document["injected"] = injected
    for shown, (finding, after_s) in zip(document["findings"], findings, strict=True):
        fault = explanation(finding, after_s, plan, entries)
        if fault is not None:
            shown["injected"] = clean(fault.text)
    outcome, code = document["outcome"], document["exit_code"]
    if outcome != RUNNING:
        document["outcome"], document["exit_code"] = judged(outcome, code, injected)


def _of_ranks(fault: Fault) -> bool:
    action = ACTIONS.get(fault.action)
    return action is None or action.target is Target.RANKS


def _leads_to(fault: Fault, kind: str) -> bool:
    action = ACTIONS.get(fault.action)
    return action is None or not action.leads_to or kind in action.leads_to


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_ALL = 1 << 20


def why_not(fault: Fault, number: int, rank: Rank | None, namespaces: bool = False) -> str:
    """Tells what this rank, the `number`-th of the world, did instead of what the fault waited for.
    `namespaces`: as in `Plan`."""
    who = f"rank {number}"
    if rank is None:
        return f"no rank {number} was seen"
    backends = ACTIONS[fault.action].backends if fault.action in ACTIONS else ()
    used = sorted({group.backend for group in rank.groups.values() if group.backend})
    if not namespaces and backends and used and not set(used) & set(backends):
        return f"it works on {', '.join(backends)}, and {who} used {', '.join(used)}"
    moment = fault.moment
    match moment.when:
        case When.OP:
            kept = rank.history.recent(_ALL) if rank.history is not None else []
            made = sum(call.signature.op == moment.op for call in kept)
            overwritten = rank.history is not None and len(kept) < rank.calls
            least = "at least " if overwritten else ""
            count = _calls(made, f"{moment.op} call")
            return f"{who} made {least}{count}{_at_most(moment, made)}"
        case When.CALL:
            return f"{who} made {_calls(rank.calls, 'call')}{_at_most(moment, rank.calls)}"
        case When.SEQ:
            return _collectives(who, moment, rank.groups.values())
        case When.STEP:
            return f"{who} did not come to step {moment.first}"
        case When.TIME:
            return f"{who} had ended by then, or did nothing more that it could happen to"
        case When.FRAME:
            return f"{who} sent no frame {moment.first} on that link"


def _collectives(who: str, moment: Moment, groups: Iterable[Group]) -> str:
    named = [one for one in groups if not moment.group or moment.group in (one.key[0], one.desc)]
    if not named:
        return f"{who} was in no group {moment.group}".rstrip()
    most = max(named, key=lambda one: one.issued)
    made = _calls(most.issued, "collective")
    return f'{who} made {made} in group "{most.desc or most.key[0]}"{_at_most(moment, most.issued)}'


def _at_most(moment: Moment, count: int) -> str:
    """Tells that the moment came and the fault did not."""
    return ", and none that it could happen to" if count > moment.first else ""


def _calls(count: int, word: str) -> str:
    return counted(count, word) if count else f"no {word}"
