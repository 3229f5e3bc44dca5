"""Judges the programs of a plan, by the same diagnosis as of any run.

1. The programs are executed as at best they run (`model`). Who is stuck then, is stuck for ever.
2. Where somebody stands still and nothing is proven, the clock goes on until it may be suspected:
   nothing can come any more that would say otherwise.
3. Where nothing is wrong at best, they are executed with the calls of a device one after the other:
   who is stuck then is stuck for ever where nothing but calls of one stream is to come.
4. Where nothing is wrong then, they are executed as at worst: what is stuck by that needs luck, and
   is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.diagnose import verdict, verdict_first
from ..diagnosis.facts.blocking import Model, backend_of, on_device
from ..diagnosis.findings import Finding
from ..diagnosis.judging import judge
from ..diagnosis.limits import SECOND_NS, Limits
from ..diagnosis.story import step
from ..record.kinds import KINDS
from ..record.notes import ExceptionNote
from ..record.notes import raised as raised_by
from ..record.signature import Signature
from ..record.snapshot import CallSite, GroupKey, Rank
from ..record.wording import at_site, printable
from .limits import NEVER_S
from .meetings import Standing
from .outcome import Outcome, simulate
from .program import Created, CutOff, Event, Made, Program, Waited

NEEDS_LUCK = frozenset(name for name, kind in KINDS.items() if kind.by_order)


@dataclass(frozen=True, slots=True)
class UndecidedPlace:
    """A decision that hangs on a value which the plan does not have, and the ranks that took it."""

    site: CallSite
    what: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings, the verdict first; `outcome`: what the ranks came to."""

    findings: Sequence[Finding]
    outcome: Outcome
    undecided: Sequence[UndecidedPlace]

    @property
    def verdict(self) -> Finding | None:
        return verdict(self.findings)


def judge_programs(
    programs: Mapping[int, Program], model: Model | None = None, start_ns: int = 0
) -> Judgement:
    """Execute and judge them. `start_ns`: when they began, in Unix time."""
    model = model or Model()
    outcome = simulate(programs, model, start_ns)
    findings = [one for one in _findings(outcome) if not _is_behind_the_steps(one, programs)]
    if verdict(findings) is None and not outcome.through:
        suspected = (one for one in _suspected(outcome) if one.severity == "error")
        findings += [one for one in suspected if not _is_behind_the_steps(one, programs)]
    if verdict(findings) is None and outcome.through and on_devices(programs):
        in_order = simulate(programs, replace(model, in_order=True), start_ns)
        if stuck_for_ever(in_order, model):
            outcome = in_order
            findings += [one for one in _findings(in_order) if one.kind in NEEDS_LUCK]
    if verdict(findings) is None and outcome.through and may_need_luck(programs):
        at_worst = simulate(programs, replace(model, strict=True), start_ns)
        findings += [_needs_luck(one) for one in _findings(at_worst) if one.kind in NEEDS_LUCK]
    if _took_another_way(outcome):
        findings = [_by_order_of_messages(one) for one in findings]
    findings = [_alike(one, outcome) for one in verdict_first(findings)]
    return Judgement(findings, outcome, undecided(programs))


def may_need_luck(programs: Mapping[int, Program]) -> bool:
    """Whether anybody makes a call that waits for less than its whole group, at best."""
    seen: set[int] = set()
    for program in programs.values():
        on_device = any("nccl" in group.backend for group in program.groups.values())
        if on_device and len(program.groups) > 1:
            return True
        for event in program.events:
            if not isinstance(event, Made) or id(event.call.signature) in seen:
                continue
            signature = event.call.signature
            seen.add(id(signature))
            if signature.root is not None or signature.op == "send":
                return True
    return False


def undecided(programs: Mapping[int, Program]) -> list[UndecidedPlace]:
    """Each place once, in the order of files and lines."""
    found: dict[tuple[CallSite, str], list[int]] = {}
    for number, program in sorted(programs.items()):
        for one in program.undecided:
            ranks = found.setdefault((one.site, one.what), [])
            if not ranks or ranks[-1] != number:
                ranks.append(number)
    rows = [UndecidedPlace(site, what, tuple(ranks)) for (site, what), ranks in found.items()]
    return sorted(rows, key=lambda row: (row.site.file, row.site.line, row.what))


def _findings(outcome: Outcome) -> list[Finding]:
    limits = Limits(hang_timeout_s=NEVER_S, notice_after_s=NEVER_S)
    return judge([outcome.now], [outcome.before], limits).findings


def _suspected(outcome: Outcome) -> list[Finding]:
    """Returns what a run would suspect, once its hang timeout is over."""
    limits = Limits()
    taken_ns = outcome.last_ns + limits.hang_ns + SECOND_NS
    ranks = {
        number: replace(rank, heartbeat_ns=taken_ns) if rank.process.alive else rank
        for number, rank in outcome.now.ranks.items()
    }
    now = replace(outcome.now, taken_ns=taken_ns, ranks=ranks)
    return judge([now], [outcome.before], limits).findings


def _is_behind_the_steps(finding: Finding, programs: Mapping[int, Program]) -> bool:
    """A rank without an optimiser goes on where the others were ended after their steps, and waits
    for them."""
    left = all(programs[rank].enough for rank in finding.culprits if rank in programs)
    waits = any(programs[rank].enough for rank in finding.victims if rank in programs)
    return finding.about.leaves and left and not waits


def _took_another_way(outcome: Outcome) -> bool:
    """A receive from any source stands still that took a message when its rank was planned: by then
    nobody had waited for anybody, and another one may come first."""
    for number, rank in outcome.now.ranks.items():
        standing = outcome.standings[number]
        for wait in rank.waits:
            call = standing.calls[wait.call] if wait.call is not None else None
            if call is not None and call.number in standing.program.came_from:
                return True
    return False


@step("order of messages")
def _by_order_of_messages(finding: Finding) -> Finding:
    if finding.kind not in NEEDS_LUCK:
        return finding
    return _warning(finding, "depends on which message a receive from any source takes first:")


@step("needs luck")
def _needs_luck(finding: Finding) -> Finding:
    luck = "needs luck: it ends well only where messages and roots need not wait for the others"
    return _warning(finding, f"{luck}; else")


def _warning(finding: Finding, when: str) -> Finding:
    return replace(
        finding,
        severity="warning",
        proven=False,
        message=f"{when} {finding.message}",
        headline=f"{when} {finding.headline or finding.message}",
    )


@step("all alike")
def _alike(finding: Finding, outcome: Outcome) -> Finding:
    """A program that fails alike on all ranks has failed once."""
    ranks = outcome.now.ranks
    if len(ranks) < 2:
        return finding
    if finding.kind == "rank_died":
        message = _ended_alike(finding, ranks)
    elif finding.kind in ("rank_exception", "invalid_argument"):
        message = _raised_alike(ranks)
    else:
        return finding
    if not message:
        return finding
    restated = replace(finding, message=message, headline=message, details=())
    return replace(restated, culprits=tuple(sorted(ranks)), victims=())


def _ended_alike(finding: Finding, ranks: Mapping[int, Rank]) -> str:
    """Returns how all of them ended, where that is the same; "" where it is not."""
    processes = [rank.process for rank in ranks.values()]
    if len({(one.exit_code, one.signal) for one in processes}) != 1:
        return ""
    was = "were " if processes[0].signal is not None else ""
    return f"all {len(ranks)} ranks {was}{finding.ranks[finding.culprits[0]].state}"


def _raised_alike(ranks: Mapping[int, Rank]) -> str:
    """Returns what all of them raised at one line; "" where they did not, or where what they raised
    names those that have failed."""
    raised: dict[tuple[str, CallSite | None], int] = {}
    for rank in ranks.values():
        for last in ExceptionNote.among(rank.notes)[-1:]:
            if raised_by(last).failed:
                return ""
            place = (last.message, last.site)
            raised[place] = raised.get(place, 0) + 1
    if list(raised.values()) != [len(ranks)]:
        return ""
    ((text, site),) = raised
    return f"all {len(ranks)} ranks raised the same{at_site(site)}: {printable(text)}"


def on_devices(programs: Mapping[int, Program]) -> bool:
    """Whether anybody has a group whose calls are on a device."""
    return any(
        on_device(name)
        for program in programs.values()
        for group in program.groups.values()
        for name in group.backend.lower().replace(":", ",").split(",")
    )


def stuck_for_ever(outcome: Outcome, model: Model) -> bool:
    """`outcome`: of programs that stand still at each call that they wait for. Whether those that
    are left in it are stuck on a real device, too."""
    left = [number for number, one in outcome.standings.items() if one.exit is None]
    return bool(left) and all(
        _is_stuck(outcome.now.ranks[number], outcome.standings[number], model) for number in left
    )


def _is_stuck(rank: Rank, standing: Standing, model: Model) -> bool:
    numbers = [wait.call for wait in rank.waits]
    if len(numbers) != 1 or numbers[0] is None:
        return False
    program, call = standing.program, standing.calls[numbers[0]]
    if not _is_on_device(program, call.group, call.signature):
        return True
    stuck = [
        (at, event.stream)
        for at, event in enumerate(program.events)
        if (isinstance(event, Made) and event.call.number == call.number)
        or (isinstance(event, Waited) and event.number == call.number)
    ]
    at, stream = stuck[-1] if call.is_async else stuck[0]
    rest = program.events[at + 1 :]
    return stream >= 0 and all(_comes_behind(event, stream, program, model) for event in rest)


def _is_on_device(program: Program, group: GroupKey, signature: Signature) -> bool:
    known = program.groups.get(group)
    return known is not None and on_device(backend_of(known.backend, signature))


def _comes_behind(event: Event, stream: int, program: Program, model: Model) -> bool:
    """Whether this cannot help anybody before the stream has got so far."""
    match event:
        case Made(call, its_stream):
            return its_stream == stream and _is_on_device(program, call.group, call.signature)
        case Created(creation):
            return not model.creation_blocks(creation.backend)
        case CutOff():
            return False
    return True
