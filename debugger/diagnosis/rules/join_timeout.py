"""Does the world come together? Ranks that wait in init_process_group, and who keeps them waiting.

Rules:
1. Two live processes that claim one rank of one job, or two that both took part in it and were
   there at a time: at once. Where one took part and is gone, and the other waits in vain: once it
   has waited for the hang timeout.
2. A rank that finished without ever joining, while others wait: at once.
3. An init that failed because its port was taken: at once, the rank that wanted it. Who holds the
   port, the supervisor looks up (`shared_findings.heard_at`).
4. Ranks that wait at different addresses, or with different world sizes: those outside the
   largest agreeing set, once they have waited for the hang timeout, or failed; of an error that
   says nothing of the time, where they have different sizes at one address. At once where such
   ranks have made their default groups all the same, and one waits in a call of its own.
5. An init that failed or hangs on a FileStore which an earlier run left behind: that store.
6. Ranks that have not come within `hang_timeout_s`, or within the program's own timeout: suspected.
7. A rank that waits although all others have joined before, and some have ended: it came too late.
8. Of a job on several nodes, of which some are not watched: where each rank that is watched has
   waited for the hang timeout, the world lacks one of those that are not. It is the culprit where
   there is one alone, since absence itself accuses nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from ...record.dispute import vote
from ...record.layout import Activity, GroupState, Phase
from ...record.limits import MOST_RANKS
from ...record.notes import StaleStoreNote, raised
from ...record.snapshot import Note, Rank, Wait
from ...record.wording import at_site, printable, ranks_text, seconds, verb
from ..facts.evidence import chosen, stand, standing
from ..facts.exceptions import TIMED_OUT, gave_up, last_exception, last_to_come
from ..facts.needs import Needs
from ..facts.world import DEFAULT_GROUP, GroupView, World
from ..findings import Finding
from ..limits import Candidate


def joins(world: World, needs: Needs) -> list[Candidate]:
    """Returns what keeps the default group from forming."""
    found = _rivals(world)
    waiting = world.engaged(Activity.INIT)
    failed = {
        rank: note
        for rank in world.eventful
        if not world.ranks[rank].groups and (note := last_exception(world, rank))
    }
    found += _port_taken(world, failed, waiting)
    found += _stale_store(world, failed, waiting)
    if not found:
        found += (
            _of_other_sizes(world)
            or _elsewhere(world, waiting, failed)
            or _never_came(world, needs, waiting)
            or _own_timeout(world, failed)
        )
    return found


def _rivals(world: World) -> list[Candidate]:
    found = []
    for rival in world.snapshot.rivals:
        rank = world.ranks.get(rival.rank)
        if rank is None or (rank.job, rank.restart_count) != (rival.job, rival.restart_count):
            continue
        alive = rank.process.alive and rival.process.alive
        both = alive and max(rank.phase, rival.phase) < Phase.EXITING
        observable_ns = max(rank.started_ns, rival.started_ns)
        waits = not (both or _took_part_together(world, rank, rival))
        if waits:
            wait = world.activity(rank.rank, Activity.INIT)
            if wait is None or not rival.groups or world.waited_ns(wait) < world.limits.hang_ns:
                continue
            observable_ns += world.limits.hang_ns
        pids = sorted((rank.pid, rival.pid))
        others = tuple(sorted(set(world.ranks) - {rank.rank}))
        message = (
            f"two processes say that they are rank {rank.rank} of {world.size}: "
            f"pid {pids[0]} and pid {pids[1]}"
        )
        if waits:
            message += f"; pid {rival.pid} took part, pid {rank.pid} waits in vain"
        if rank.host != rival.host:
            hosts = (printable(rank.host, 80), printable(rival.host, 80))
            message += f" (on {hosts[0]} and {hosts[1]})"
        ns = observable_ns or world.now_ns
        data = {"pids": pids}
        found.append(_found(world, "duplicate", message, (rank.rank,), others, ns, data=data))
    return found


def _took_part_together(world: World, one: Rank, other: Rank) -> bool:
    """Both were in the group, and there at a time. For longer than one that ends and one that
    follows it may be, unless the group was made for others as well who have made it only once."""
    ends = [rank.process.ended_ns or world.now_ns for rank in (one, other)]
    together_ns = min(ends) - max(one.started_ns, other.started_ns)
    enough_ns = 0 if _has_one_life(world) else world.limits.settle_ns
    return bool(one.groups and other.groups) and together_ns > enough_ns


def _has_one_life(world: World) -> bool:
    """A process that stands alone for its rank has made one default group: nobody has followed
    anybody in it."""
    doubled = {rival.rank for rival in world.snapshot.rivals}
    return any(
        [group.desc for group in record.groups.values()].count(DEFAULT_GROUP) == 1
        for number, record in world.ranks.items()
        if number not in doubled
    )


def _port_taken(
    world: World, failed: dict[int, Note], waiting: Mapping[int, Wait]
) -> list[Candidate]:
    found = []
    for rank, note in failed.items():
        error = raised(note)
        if not error.address_in_use:
            continue
        others = tuple(sorted((set(waiting) | set(failed)) - {rank}))
        message = (
            f"rank {rank} could not open the port of the rendezvous{at_site(note.site)}: "
            f"{printable(note.message, 200)}"
        )
        data = {**note.data, "address": error.rendezvous or ""}
        found.append(_found(world, "port", message, (rank,), others, note.time_ns, data=data))
    return found


def _stale_store(
    world: World, failed: dict[int, Note], waiting: Mapping[int, Wait]
) -> list[Candidate]:
    users = {
        rank: notes[-1] for rank in world.eventful if (notes := world.notes(rank, StaleStoreNote))
    }
    # Whoever comes first finds the old file; who fails first is another matter.
    times = [note.time_ns for note in failed.values()]
    times += [
        wait.since_ns + world.limits.hang_ns
        for wait in waiting.values()
        if world.waited_ns(wait) >= world.limits.hang_ns
    ]
    if not (users and times):
        return []
    note = users[min(users)]
    store = StaleStoreNote.read(note.data) or StaleStoreNote()
    where = f" ({printable(store.path, 200)})" if store.path else ""
    if store.foreign:
        whose = f"file holds what no FileStore has written{where}: delete it, or use a fresh one "
        whose += "for each run"
    elif store.attempt:
        whose = f"file holds the addresses of the ranks of an earlier attempt{where}: use a fresh "
        whose += "one for each attempt, TORCHELASTIC_RESTART_COUNT tells which it is"
    else:
        stores = filter(None, (StaleStoreNote.read(one.data) for one in users.values()))
        left = min((one.users for one in stores), default=0)
        facts = ["was written before this run"] if not store.by_count else []
        facts += [f"has {left} entries for {world.ranks[min(users)].world_size} ranks"] * bool(left)
        whose = f"file {' and '.join(facts)}{where}, left by an earlier one or by something else: "
        whose += "delete it, or use a fresh one for each run"
    others = tuple(sorted(set(world.ranks) - set(users)))
    message = (
        f"{ranks_text(users)} {verb(tuple(users), 'joins', 'join')} through a FileStore whose "
        f"{whose}"
    )
    data = dict(note.data)
    return [_found(world, "stale_store", message, sorted(users), others, min(times), data=data)]


def _elsewhere(
    world: World, waiting: Mapping[int, Wait], failed: dict[int, Note]
) -> list[Candidate]:
    """Returns the finding of ranks that try to meet at different addresses, or wait for different
    numbers of ranks. Where enough have come for some of them, these have joined, and are counted
    as well."""
    late = [w for w in waiting.values() if world.waited_ns(w) >= world.limits.hang_ns]
    lost = {rank: note for rank, note in failed.items() if TIMED_OUT.search(note.message)}
    refused = {rank: note for rank, note in failed.items() if raised(note).rendezvous is not None}
    if world.paused or not (late or lost or refused):
        return []
    answers: dict[tuple[str, int], list[int]] = {}
    for rank in sorted({*waiting, *lost, *refused}):
        record = world.ranks[rank]
        # At DETAIL a group is there before its initialisation is over, and nothing called on it.
        if any(
            group.state is GroupState.DESTROYED or group.last is not None
            for group in record.groups.values()
        ):
            return []  # what the record says is the first initialisation's
        if rank in waiting and waiting[rank].detail.get("op") == "TCPStore":
            continue  # it has not said yet where it will join
        answers.setdefault((record.job, record.world_size), []).append(rank)
    # Those that have joined at an address where others wait: enough had come for their world.
    jobs = {job for job, _ in answers}
    counted = {rank for ranks in answers.values() for rank in ranks}
    joined = [
        rank
        for rank, record in sorted(world.ranks.items())
        if record.groups
        and rank not in counted
        and record.job in jobs
        # Whoever ended before any of them had come was of an earlier world there.
        and (not world.ended(rank) or _ended_after(world, rank, waiting))
    ]
    for rank in joined:
        answers.setdefault((world.ranks[rank].job, world.ranks[rank].world_size), []).append(rank)
    of_two_sizes = len({job for job, _ in answers}) < len(answers)
    if len(answers) < 2 or not (late or lost or of_two_sizes):
        return []
    times = [wait.since_ns + world.limits.hang_ns for wait in late]
    times += [note.time_ns for note in lost.values()]
    if not times:  # they had come before one of them was refused
        came = [
            waiting[rank].since_ns if rank in waiting else world.ranks[rank].started_ns
            for ranks in answers.values()
            for rank in ranks
        ]
        times = [max(came)]
    return [_different_worlds(world, answers, joined, min(times), proven=False)]


def _ended_after(world: World, rank: int, waiting: Mapping[int, Wait]) -> bool:
    ended_ns = world.ranks[rank].process.ended_ns or 0
    return any(ended_ns > world.ranks[waiter].started_ns for waiter in waiting)


def _of_other_sizes(world: World) -> list[Candidate]:
    """Returns the finding of ranks that have made their first default groups at one address, each
    with ranks that have made another one, where one of them waits in a call of its own. A backend
    that connects its ranks at the first call does not see it before."""
    made: dict[tuple[str, int], list[GroupView]] = {}
    for view in world.groups:
        if view.any.desc == DEFAULT_GROUP and view.key[1] == 0:
            first = world.ranks[min(view.states)]
            made.setdefault((first.job, first.restart_count), []).append(view)
    for (job, _), views in made.items():
        sizes = {(job, len(view.ranks)): sorted(view.states) for view in views}
        since_ns = [
            row.wait.since_ns
            for row in world.all_pending
            if row.call is not None
            and (own := world.view(row.rank, row.call.group)) in views
            and any(
                view is not own and not view.states.keys().isdisjoint(own.ranks) for view in views
            )
        ]
        if len(sizes) > 1 and since_ns:
            everyone = [rank for ranks in sizes.values() for rank in ranks]
            return [_different_worlds(world, sizes, everyone, min(since_ns), proven=True)]
    return []


def _different_worlds(
    world: World,
    answers: Mapping[tuple[str, int], list[int]],
    joined: Collection[int],
    observable_ns: int,
    *,
    proven: bool,
) -> Candidate:
    """Returns the finding of ranks that gave these answers to where they join, and how many."""
    result = vote(answers, 0)
    parts = [
        f"{ranks_text(ranks)} {_does(ranks, joined)} at {printable(job, 120) or '?'} "
        f"for a world of {size}"
        for (job, size), ranks in result.parties[:4]
    ]
    message = (
        f"{'' if proven else 'suspected: '}ranks do not join the same world: {'; '.join(parts)}"
    )
    culprits, others = result.culprits, result.others
    return _found(world, "elsewhere", message, culprits, others, observable_ns, proven=proven)


def _does(ranks: Sequence[int], joined: Collection[int]) -> str:
    if all(rank in joined for rank in ranks):
        return verb(ranks, "has joined", "have joined")
    return verb(ranks, "waits", "wait")


def _never_came(world: World, needs: Needs, waiting: Mapping[int, Wait]) -> list[Candidate]:
    if not waiting:
        return []
    first = min(waiting, key=lambda rank: waiting[rank].since_ns)
    absent = {rank for waiter in waiting for rank in needs.not_initialised(waiter)}
    left = sorted(rank for rank in absent if world.finished(rank))
    if left:
        times = [world.ranks[rank].process.ended_ns or 0 for rank in left]
        finished = verb(left, "finished", "finished")
        what = f"{ranks_text(left)} {finished} without joining"
        observable = max(waiting[first].since_ns, *times)
        return [_absent(world, set(waiting), left, what, observable, proven=True)]
    last = last_to_come(waiting)
    if world.paused or world.waited_ns(last) < world.limits.hang_ns:
        return []
    lost = {rank for rank in absent if rank in world.ranks and gave_up(world, rank)}
    missing = sorted(rank for rank in absent - lost if not world.ended(rank))
    if not missing:
        return [] if absent else _too_late(world, waiting) or _unwatched(world, waiting, last)
    waited = seconds(world.now_ns - last.since_ns)
    what = (
        f"suspected: {ranks_text(missing)} {verb(missing, 'has', 'have')} not joined for {waited}"
    )
    observable = last.since_ns + world.limits.hang_ns
    return [_absent(world, set(waiting), missing, what, observable, proven=False)]


def _unwatched(world: World, waiting: Mapping[int, Wait], last: Wait) -> list[Candidate]:
    """Returns the finding of ranks that no supervisor of this job knows, while all known ranks wait
    in the store in which they would meet."""
    sizes = {world.ranks[rank].world_size for rank in waiting}
    if world.size or world.snapshot.lost or len(sizes) > 1 or set(waiting) != set(world.ranks):
        return []
    details = [wait.detail for wait in waiting.values()]
    if any(one.get("all_clients") or one.get("op") == "FileStore" for one in details):
        return []  # it may be that nobody serves that store
    known = {*world.ranks, *world.snapshot.unreadable}
    unseen = tuple(sorted(set(range(min(*sizes, MOST_RANKS))) - known))
    if not unseen:
        return []
    who = ranks_text(unseen) if len(unseen) == 1 else f"one of {ranks_text(unseen)}"
    victims = tuple(sorted(waiting))
    message = (
        f"suspected: {who} has not joined for {seconds(world.now_ns - last.since_ns)} while "
        f"{ranks_text(victims)} {verb(victims, 'waits', 'wait')} in init_process_group (world "
        f"size {min(sizes)}): no distdebug of this job watches "
        f"{'its node' if len(unseen) == 1 else 'their nodes'}"
    )
    since_ns, culprits = last.since_ns + world.limits.hang_ns, unseen if len(unseen) == 1 else ()
    return [_found(world, "absent", message, culprits, victims, since_ns, unseen, proven=False)]


def _too_late(world: World, waiting: Mapping[int, Wait]) -> list[Candidate]:
    """Everybody else has been there already, and nobody will come again."""
    others = tuple(sorted(set(world.ranks) - set(waiting)))
    gone = [rank for rank in others if world.ended(rank) and rank not in world.unrecorded]
    if not gone:
        return []
    late = sorted(waiting)
    since_ns = min(wait.since_ns for wait in waiting.values())
    message = (
        f"suspected: {ranks_text(late)} {verb(late, 'waits', 'wait')} in init_process_group "
        f"for {seconds(world.now_ns - since_ns)}, but {ranks_text(others)} joined earlier and "
        f"{ranks_text(gone)} {verb(gone, 'has', 'have')} ended"
    )
    since_ns += world.limits.hang_ns
    return [_found(world, "late", message, late, others, since_ns, proven=False)]


def _own_timeout(world: World, failed: dict[int, Note]) -> list[Candidate]:
    """The program's own timeout for the rendezvous ran out: who had not come?"""
    late = {rank: note for rank, note in failed.items() if TIMED_OUT.search(note.message)}
    if not late:
        return []
    absent = [
        rank
        for rank in world.expected
        if rank not in world.unrecorded
        and (
            rank not in world.ranks
            or not (
                rank in failed
                or world.ended(rank)
                or world.ranks[rank].groups  # it has joined
                or world.activity(rank, Activity.INIT)
            )
        )
    ]
    if not absent:
        return []
    what = (
        f"suspected: {ranks_text(absent)} {verb(absent, 'has', 'have')} not joined within the "
        "program's own timeout"
    )
    observable = min(note.time_ns for note in late.values())
    return [_absent(world, set(late), absent, what, observable, proven=False)]


def _absent(
    world: World,
    waiting: Set[int],
    absent: list[int],
    what: str,
    observable_ns: int,
    *,
    proven: bool,
) -> Candidate:
    unseen = tuple(rank for rank in absent if rank not in world.ranks)
    victims = tuple(sorted(waiting - set(absent)))
    verb_text = verb(victims, "waits", "wait")
    seen = [rank for rank in absent if rank in world.ranks]
    stands = [f"rank {rank} {standing(world, rank).state}" for rank in seen[:4]]
    if unseen:
        stands.append(f"{ranks_text(unseen)} {verb(unseen, 'has', 'have')} not imported torch")
    beyond = [rank for rank in victims if rank >= world.size > 0]
    if beyond:
        stands.append(
            f"{ranks_text(beyond)} {verb(beyond, 'is', 'are')} outside of it: "
            f"ranks count from 0 to {world.size - 1}"
        )
    message = (
        f"{what} while {ranks_text(victims)} {verb_text} in init_process_group "
        f"(world size {world.size}): {'; '.join(stands)}"
    )
    return _found(world, "absent", message, absent, victims, observable_ns, unseen, proven=proven)


def _found(
    world: World,
    cause: str,
    message: str,
    culprits: Sequence[int],
    victims: tuple[int, ...],
    observable_ns: int,
    missing: tuple[int, ...] = (),
    *,
    proven: bool = True,
    data: Mapping[str, object] | None = None,
) -> Candidate:
    finding = Finding(
        kind="join_timeout",
        message=message,
        culprits=tuple(culprits),
        victims=victims,
        missing=missing,
        proven=proven,
        cause=cause,
        ranks=stand(world, chosen(culprits, victims)),
        observable_ns=observable_ns,
        data=data or {},
    )
    return Candidate(finding)
