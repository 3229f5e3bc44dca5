"""`fold` decides which findings are consequences of which, so that a cause is reported once.

Rules, on the findings in order of time:
1. The first error is a cause. Its scope is its group, its culprits and its victims.
2. Endings, waits and absences after it, of ranks in its scope, are consequences, and widen it.
   After a death or an exception that is the whole world: the launcher ends the others. A death
   of its own (SIGKILL, an exception of the user's) of a rank out of scope is a second cause.
3. A mismatch after it is a consequence if one of its culprits is a culprit of the first: that rank
   has left the common path already. In the same group it is one whoever the culprits are, for the
   ranks' calls are no longer each other's. Otherwise it is a second cause. So is it in the same
   group where the ranks refused both calls, or a message: none was made, and those who agreed
   still do; and after wrong data, which do not change whose calls meet. That a rank is a
   culprit of both proves nothing where no rank is singled out: then it is a second cause if they
   have made a call alike in between.
4. Weak endings (see `endings`) are consequences of any stronger finding up to two seconds later,
   too: that a peer is dead is often seen by its partners first. Only a polite signal (SIGTERM)
   must come sooner: the launcher sends it to the others once it has seen a failure.
5. A NaN after a NaN or an overflow is a consequence: calls carry it to all ranks.
6. A suspicion explains nothing that came before it. Warnings are never folded.

Where one fault is a consequence of another only by the clocks of two hosts, which are not known
well enough to tell which came first, `in_doubt` says so.

`alike`: a mistake that several ranks make in the same call, on the same line, is one finding.

Every rank reports its own: the tensor that it gives, the buffer that it reads too early, the child
that it has forked. Along one axis of a device mesh every row of ranks is a group of its own, and
what all of them get from one line (a learning rate, say) differs in each; so does a call that a
wrong branch makes in every row, and ranks of every row wait for each other on the same lines, or
for one that has left at the same line. The earliest finding stands for all, and every rank that
made the same mistake is a culprit of it.

`explained`: an exception whose cleanup ran on. The `finally` called a collective, or destroyed the
group.

To the other ranks that looks like a call that does not fit, or like an early end, long before the
exception comes out of the program. The rank has put the exception on record (note `unwinding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..record.exits import POLITE_SIGNALS
from ..record.kinds import Family
from ..record.layout import Activity, CallState
from ..record.limits import SHOWN_RANKS
from ..record.notes import UnwindingNote
from ..record.snapshot import Note
from ..record.wording import OF_MESH, RankState, at_site, printable, ranks_text
from .facts.evidence import call_of
from .facts.exceptions import is_communication_error
from .facts.world import DEFAULT_GROUP, World
from .findings import Finding, RankEvidence
from .limits import AFTERMATH_NS, TOGETHER_NS, Candidate
from .story import changed, step


def fold(candidates: list[Candidate]) -> list[Candidate]:
    """The causes, first by time first, and all warnings after them in order of time."""
    errors = sorted((c for c in candidates if c.finding.severity == "error"), key=_order)
    # Marks what the records show of a call that ranks have reported as refused: it is about
    # the same refusal.
    refused = {_call(one.finding) for one in errors if one.refused}
    errors = [
        replace(one, refused=True)
        if one.finding.about.by_agreement and _call(one.finding) in refused
        else one
        for one in errors
    ]
    warnings = sorted((c for c in candidates if c.finding.severity != "error"), key=_order)
    causes: list[Candidate] = []
    scopes: list[set[int]] = []
    for candidate in errors:
        if candidate.weakness and _seen_first(candidate, errors):
            continue
        for cause, scope in zip(causes, scopes, strict=True):
            if _follows(candidate, cause, scope):
                scope |= _ranks(candidate.finding)
                break
        else:
            causes.append(candidate)
            scopes.append(_ranks(candidate.finding))
    return causes + warnings


def each_explains_the_other(one: Candidate, other: Candidate) -> bool:
    """Whether of two errors the one that came first is the cause, whichever that is."""
    if one.finding.severity != "error" or other.finding.severity != "error":
        return False
    if one.weakness != other.weakness or not set(one.finding.culprits).isdisjoint(
        other.finding.culprits
    ):
        return False
    return _follows(other, one, _ranks(one.finding)) and _follows(one, other, _ranks(other.finding))


def _call(finding: Finding) -> tuple[object, ...]:
    """The call that it is about, whoever tells of it; messages, which several rules number each in
    its own way, by the ranks between which they are."""
    group = finding.group.name if finding.group else ""
    if finding.kind == "p2p_mismatch":
        return (group, frozenset(finding.culprits))
    return (group, finding.seq)


def _order(candidate: Candidate) -> tuple[int, int, tuple[int, ...]]:
    """By time; at one time what explains comes before what follows from it."""
    finding = candidate.finding
    return (finding.observable_ns, finding.about.follows, finding.culprits)


def _seen_first(weak: Candidate, errors: list[Candidate]) -> bool:
    ranks = _ranks(weak.finding)
    return any(
        other.weakness < weak.weakness
        and other.finding.observable_ns <= weak.finding.observable_ns + _lead_ns(other)
        and not ranks.isdisjoint(_ranks(other.finding))
        for other in errors
    )


def _lead_ns(candidate: Candidate) -> int:
    polite = candidate.finding.data.get("signal") in POLITE_SIGNALS
    return TOGETHER_NS if polite else AFTERMATH_NS


def _follows(candidate: Candidate, cause: Candidate, scope: set[int]) -> bool:
    finding, first = candidate.finding, cause.finding
    if candidate.apart:
        return False
    if candidate.refused and cause.refused and _call(finding) != _call(first):
        return _gone_on_wrong(candidate, first)
    if finding.about.family is first.about.family is Family.DEADLOCK:
        return False  # the wait graph has told independent cycles apart
    if finding.about.spreads and first.about.spreads:
        return True
    if finding.about.follows:
        if first.about.ends_all or candidate.weakness:
            return True
        touched = finding.culprits if finding.about.ends_all else _ranks(finding)
        return not scope.isdisjoint(touched)
    if finding.about.family is Family.MISMATCH:
        message = cause.refused and first.kind == "p2p_mismatch"
        if message or first.about.family is Family.DATA:
            return _gone_on_wrong(candidate, first)
        same = (
            finding.group is not None
            and first.group is not None
            and finding.group.name == first.group.name
        )
        return same or not set(first.culprits).isdisjoint(finding.culprits)
    return False


def _gone_on_wrong(candidate: Candidate, first: Finding) -> bool:
    """Whether a disagreement comes of ranks that went wrong before, though the calls of all still
    met."""
    finding = candidate.finding
    if set(first.culprits).isdisjoint(finding.culprits):
        return False
    known = _singled_out(first) and _singled_out(finding)
    return known or candidate.agreed_ns <= first.observable_ns


def _singled_out(finding: Finding) -> bool:
    """Others of the group are right: not so of a message, nor without a majority."""
    if finding.kind == "p2p_mismatch" or finding.group is None:
        return False
    return set(finding.culprits) < set(finding.group.ranks)


def _ranks(finding: Finding) -> set[int]:
    group = finding.group.ranks if finding.group else ()
    return {*finding.culprits, *finding.victims, *finding.missing, *group}


@step("clocks")
def in_doubt(world: World, candidates: Sequence[Candidate], cause: Candidate) -> Candidate:
    """The cause, with the nearest fault that may have come before it. `candidates`: all that was
    found, before consequences were folded."""
    if not world.snapshot.clock_errors_ns:
        return cause
    finding, doubtful = cause.finding, []
    for other in candidates:
        later_ns = other.finding.observable_ns - finding.observable_ns
        if later_ns < 0 or not each_explains_the_other(cause, other):
            continue
        error_ns = world.snapshot.between_clocks_ns(finding.culprits, other.finding.culprits)
        if later_ns < error_ns:
            doubtful.append((later_ns, error_ns, other.finding.message))
    if not doubtful:
        return cause
    later_ns, error_ns, message = min(doubtful)
    detail = (
        f"this may have come first: {message} ({later_ns / 1e6:.1f} ms later, by clocks of two "
        f"hosts that are known to within {error_ns / 1e6:.1f} ms)"
    )
    return replace(cause, finding=replace(finding, details=(*finding.details, detail)))


MOST_REFUSED = 64
"""Calls before it that are looked at: those that were refused in a row."""


def with_agreement(world: World, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, each disagreement with the time from which its culprits had all entered the
    last call that they made alike. One error alone has nothing to be told from."""
    if sum(one.finding.severity == "error" for one in candidates) < 2:
        return candidates
    return [
        replace(one, agreed_ns=_agreed_ns(world, one.finding))
        if one.finding.about.family is Family.MISMATCH
        else one
        for one in candidates
    ]


def _agreed_ns(world: World, finding: Finding) -> int:
    """0: never, or not on record."""
    group, seq = finding.group, finding.seq
    if group is None or seq is None or not finding.about.of_signatures:
        return 0
    for number in range(seq - 1, max(-1, seq - 1 - MOST_REFUSED), -1):
        made = (call_of(world, group.name, number, rank) for rank in finding.culprits)
        calls = [call for call in made if call is not None]
        if len(calls) < len(finding.culprits):
            return 0
        if all(call.state is CallState.COMPLETED for call in calls):
            return min(call.issued_ns for call in calls)
    return 0


def alike(world: World, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, those alike joined into the earliest of them."""
    found: list[Candidate] = []
    parties: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda one: one.finding.observable_ns):
        key = _key(world, candidate.finding)
        while key is not None and key in parties and _overlap(candidate, parties[key]):
            key = (*key, "again")
        if key is None:
            found.append(candidate)
        else:
            parties.setdefault(key, []).append(candidate)
    return found + [_joined(party) for party in parties.values()]


def _key(world: World, finding: Finding) -> tuple[object, ...] | None:
    where = finding.ranks.get(finding.culprits[0]) if finding.culprits else None
    if where is None or where.location is None:
        return None
    if finding.about.at_one_line and len(finding.culprits) == 1:
        group = finding.group.name if finding.group else None
        return (finding.kind, group, finding.seq, where.location)
    desc = finding.group.desc if finding.group else ""
    in_doubt = finding.severity == "warning"  # a forgotten gradient is so in all groups alike
    if finding.kind == "divergence" and (in_doubt or desc.startswith(OF_MESH)):
        what = (finding.data[name] for name in ("quantity", "name", "step"))
        return (finding.kind, in_doubt or desc, *what, where.location)
    return _mismatch(finding) or _row(world, finding)


def _mismatch(finding: Finding) -> tuple[object, ...] | None:
    """Returns the key of a finding of ranks of one row of a mesh that have made different calls."""
    group = finding.group
    if not finding.about.of_signatures or group is None or group.desc == DEFAULT_GROUP:
        return None
    calls = frozenset((_op(evidence), evidence.location) for evidence in finding.ranks.values())
    size = len(group.ranks)
    return (finding.kind, finding.severity, group.desc, size, finding.seq, calls)


def _row(world: World, finding: Finding) -> tuple[object, ...] | None:
    """Returns the key of a finding of ranks that wait in vain while there are others, which may be
    another row of the mesh."""
    family, desc = finding.about.family, finding.group.desc if finding.group else ""
    if family is Family.DEADLOCK:  # no rank is in two of them
        if len(finding.culprits) + len(finding.victims) >= len(world.ranks):
            return None
        about = finding.culprits
    elif family is Family.ABSENCE and desc.startswith(OF_MESH):
        about = tuple(finding.ranks)
    else:
        return None
    rows = [finding.ranks.get(rank) for rank in about]
    if not all(row and row.location for row in rows):
        return None
    calls = Counter((_op(row), row.location) for row in rows if row)
    what = (finding.severity, finding.proven, finding.cause, finding.seq, desc)
    return (finding.kind, *what, frozenset(calls.items()))


def _op(evidence: RankEvidence) -> str:
    """Without the root, which has another number in every row."""
    return (evidence.call or "").partition("(")[0]


def _overlap(candidate: Candidate, party: list[Candidate]) -> bool:
    """Whether a rank of it is in a group of the party: that is no other row, but what became of a
    rank that had gone wrong."""
    group = candidate.finding.group
    if group is None or not candidate.finding.about.of_signatures:
        return False
    others = (one.finding.group for one in party)
    return any(other and not set(group.ranks).isdisjoint(other.ranks) for other in others)


def _joined(party: list[Candidate]) -> Candidate:
    first = party[0].finding
    culprits = {rank for one in party for rank in one.finding.culprits}
    victims = {rank for one in party for rank in one.finding.victims} - culprits
    others = sorted(culprits.difference(first.culprits))
    ranks = dict(first.ranks)
    for one in party:
        for rank, seen in one.finding.ranks.items():
            if len(ranks) < SHOWN_RANKS:
                ranks.setdefault(rank, seen)
    for one in party:  # what a finding says of its culprits, others saw in passing
        ranks |= {rank: one.finding.ranks[rank] for rank in one.finding.culprits}
    cycle = first.about.family is Family.DEADLOCK  # whose order tells who waits for whom
    again = f"{ranks_text(others)} wait for each other on the same lines"
    finding = replace(
        first,
        message=f"{first.message}; {ranks_text(others)} as well" if others else first.message,
        culprits=(*first.culprits, *others) if cycle else tuple(sorted(culprits)),
        victims=tuple(sorted(victims)),
        ranks=ranks,
        details=(*first.details, again) if cycle and others else first.details,
    )
    finding = changed("alike", first, finding)
    # Most likely all ranks run the line: which of them is first is chance.
    ready_ns = max(party[0].ready_ns, first.observable_ns + TOGETHER_NS)
    return replace(party[0], finding=finding, ready_ns=ready_ns)


MOST_CALLS = 3
"""A cleanup makes few calls: one that came later is none of this exception's."""


@step("cleanup")
def explained(world: World, candidate: Candidate) -> Candidate:
    """The candidate, or the exception that led to it."""
    finding = candidate.finding
    notes = [
        (note.time_ns, rank, note)
        for rank in finding.culprits
        if rank in world.ranks
        for note in world.notes(rank, UnwindingNote)
        if not is_communication_error(note) and _led_to(world, finding, rank, note)
    ]
    if finding.severity != "error" or not notes:
        return candidate
    _, rank, note = min(notes)
    others = tuple(sorted({*finding.culprits, *finding.victims} - {rank}))
    cause = Finding(
        kind="rank_exception",
        message=f"rank {rank} raised {printable(note.message)}{at_site(note.site)}",
        culprits=(rank,),
        victims=others,
        ranks={**finding.ranks, rank: RankEvidence(RankState.RAISED, None, note.site)},
        details=(f"before it could end, its cleanup ran: {finding.message}", *finding.details),
        observable_ns=finding.observable_ns,
        data=dict(note.data),
    )
    return replace(candidate, finding=cause)


def _led_to(world: World, finding: Finding, rank: int, note: Note) -> bool:
    unwinding = UnwindingNote.read(note.data)
    if unwinding is None or unwinding.call < 0:
        return False
    first = unwinding.call
    if finding.about.leaves:
        few = 0 <= world.ranks[rank].calls - first <= MOST_CALLS
        return few and not _makes_it_anew(world, finding, rank)
    if unwinding.destroys:
        return False
    if finding.about.stuck:
        calls = [row.call for row in world.pending(rank)]
    elif finding.about.family is Family.MISMATCH and finding.group and finding.seq is not None:
        calls = [call_of(world, finding.group.name, finding.seq, rank)]
    else:
        return False
    return any(call is not None and 0 <= call.number - first <= MOST_CALLS for call in calls)


def _makes_it_anew(world: World, finding: Finding, rank: int) -> bool:
    """Whether the rank makes, or has made, a group again in which the others still are: it recovers
    from the exception, and does not end of it."""
    if any(row.wait.activity is Activity.INIT for row in world.pending(rank)):
        return True
    name = finding.group.name if finding.group is not None else None
    made = [
        max((number for one, number in world.ranks[member].groups if one == name), default=0)
        for member in (rank, *finding.victims)
        if member in world.ranks
    ]
    return any(made[0] > other for other in made[1:])
