"""Do ranks wait for each other in a cycle, over groups and point-to-point calls? No timeout.

Rules:
1. A rank can act if one of its threads with user code is in no recorded wait, or if one of its
   waits may still end (`needs`). From there on everything that those ranks may set free can act,
   too. What is left can never act again.
2. The snapshots of different ranks are not taken at one moment. So only ranks whose layer did not
   move between two snapshots, and whose threads are all accounted for, can be called stuck: then
   there was a moment, between the two, at which all of them were so at once. That is a proof.
3. A wait for a rank that is dead or has finished never ends, but it is no deadlock.
4. A cycle is a deadlock; the culprits are the shortest one, in order. Two exceptions name the
   cause better: a send and a receive between the same two ranks whose tags do not meet
   (p2p_mismatch), and a group creation that only some ranks entered (group_mismatch).
5. Where threads are not accounted for, a cycle that lasts for `hang_timeout_s` is suspected,
   unless a thread that could end it was seen computing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...record.layout import Activity
from ...record.signature import ANY_SOURCE
from ...record.wording import at_site, ranks_text, verb
from ..facts.channels import Channels
from ..facts.evidence import doing
from ..facts.needs import Need, Needs
from ..facts.waits import find_cycle, reaching, stuck_ranks
from ..facts.world import STOPPED, Pending, World
from ..findings import Finding, Step, group_evidence
from ..limits import Candidate
from ..shared_findings import evidence, not_created, tag_mismatch

Waiting = Mapping[int, Sequence[Need]]
MOST_LEFT_OVER = 2


def deadlocks(world: World, channels: Channels, needs: Needs) -> list[Candidate]:
    """Returns one finding for each independent cycle: proven ones, else suspected ones."""
    waiting = {}
    for number, rank in world.ranks.items():
        if rank.free_threads == 0 and rank.waits and _may_be_judged(world, number):
            rows = needs.of_all(number)
            if rows is not None and world.stable(number):
                waiting[number] = rows
    found = _cycles(world, channels, needs, waiting, proven=True)
    if found or world.paused:
        return found
    return _cycles(world, channels, needs, _suspected(world, needs), proven=False)


def _suspected(world: World, needs: Needs) -> Waiting:
    waiting = {}
    for number, rank in world.ranks.items():
        if not rank.waits or not _may_be_judged(world, number):
            continue
        busy = rank.free_threads > 0 and (rank.process.cpu_busy or rank.process.state == "R")
        lasted = not world.knows.clock or all(
            world.waited_ns(wait) >= world.limits.hang_ns for wait in rank.waits
        )
        if busy or not lasted:
            continue
        rows = needs.of_all(number)
        if rows is not None:
            waiting[number] = rows
    return waiting


def _may_be_judged(world: World, rank: int) -> bool:
    return (
        rank not in world.unrecorded
        and not world.ended(rank)
        and world.ranks[rank].process.state not in STOPPED
    )


def _cycles(
    world: World, channels: Channels, needs: Needs, waiting: Waiting, *, proven: bool
) -> list[Candidate]:
    if len(waiting) < 2:
        return []
    gone = frozenset(
        rank for rank in world.ranks if world.ended(rank) and rank not in world.unrecorded
    )
    stuck = stuck_ranks(waiting, gone)
    # The same, where a receive from any source waits for those that have sent it the fewest.
    blamed = {
        number: [
            _of_the_fewest(channels, row, need)
            for row, need in zip(world.pending(number), every, strict=True)
        ]
        for number, every in waiting.items()
    }
    found = []
    while stuck:
        cycle = find_cycle(blamed, stuck) or find_cycle(waiting, stuck)
        if cycle is None:
            break
        behind = reaching(waiting, stuck, set(cycle))
        victims = tuple(sorted(behind - set(cycle)))
        links = [
            _link(world, needs, rank, cycle[(place + 1) % len(cycle)])
            for place, rank in enumerate(cycle)
        ]
        finding = (
            _tags(world, channels, links, (*cycle, *victims), proven=proven)
            or _creation(world, needs, links, cycle, victims, proven=proven)
            or _deadlock(world, channels, needs, links, cycle, victims, proven=proven)
        )
        found.append(Candidate(finding))
        stuck -= behind
    return found


def _less(needs: Needs, link: Pending) -> str:
    need = needs.of(link)
    narrowed = need is not None and needs.likely(link) != need.ranks
    return ", which has sent less than the others" if narrowed else ""


def _of_the_fewest(channels: Channels, row: Pending, need: Need) -> Need:
    if row.call is None or row.call.signature.peer != ANY_SOURCE:
        return need
    fewest = channels.fewest_sent(row.rank, row.call, sorted(need.ranks))
    return Need(frozenset(fewest), any_of=True)


def _link(world: World, needs: Needs, rank: int, target: int) -> Pending:
    """The wait by which the rank waits for the next one of the cycle."""
    rows = world.pending(rank)
    for pending in rows:
        need = needs.of(pending)
        if need and target in need.ranks:
            return pending
    return rows[0]


def _deadlock(
    world: World,
    channels: Channels,
    needs: Needs,
    links: list[Pending],
    cycle: list[int],
    victims: tuple[int, ...],
    *,
    proven: bool,
) -> Finding:
    targets = [*cycle[1:], cycle[0]]
    steps = [
        f"rank {link.rank} {doing(world, link)} waits for rank {target}{_less(needs, link)}"
        for link, target in zip(links, targets, strict=True)
    ]
    shown = steps if len(steps) <= 6 else [*steps[:5], f"... ({len(steps)} ranks in the cycle)"]
    suspected = "" if proven else "suspected: "
    views = [world.view(link.rank, link.call.group) for link in links if link.call]
    same = views[0] if views and len({id(view) for view in views}) == 1 else None
    headline = f"{suspected}ranks wait for each other in a cycle"
    chain = [_step(world, link, target) for link, target in zip(links, targets, strict=True)]
    details = [step.detail for step in chain]
    if victims:
        details.append(f"{ranks_text(victims)} {verb(victims, 'waits', 'wait')} for them")
    details += [text for link in links for text in _left_over(world, channels, link)]
    return Finding(
        kind="deadlock",
        message=f"{headline}: {'; '.join(shown)}",
        culprits=tuple(cycle),
        victims=victims,
        proven=proven,
        group=group_evidence(same.any) if same else None,
        seq=None,
        ranks=evidence(world, links, cycle, victims),
        details=tuple(details),
        headline=headline,
        cycle=tuple(chain),
        observable_ns=_since(world, links, proven=proven),
    )


def _left_over(world: World, channels: Channels, link: Pending) -> Iterator[str]:
    """A rank that waits for a message of one rank, while another one's lies there for it, may only
    have named the wrong one."""
    call = link.call
    if call is None or call.signature.peer in (None, ANY_SOURCE):
        return
    for other, channel in channels.left_over(link.rank, call)[:MOST_LEFT_OVER]:
        history = world.ranks[other].history
        last = history.call(channel.last) if history and channel.last is not None else None
        site = at_site(last.site) if last is not None else ""
        if call.signature.op == "send":
            yield f"rank {other} receives from rank {link.rank}{site}, which has not sent it"
        else:
            yield f"rank {other} sends to rank {link.rank}{site}, which has not received it"


def _step(world: World, link: Pending, target: int) -> Step:
    what = doing(world, link)
    detail = f"rank {link.rank} {what}{at_site(link.site)} waits for rank {target}"
    return Step(link.rank, what, target, detail)


def _tags(
    world: World,
    channels: Channels,
    links: list[Pending],
    victims: tuple[int, ...],
    *,
    proven: bool,
) -> Finding | None:
    """Two ranks, one waits in a send to the other, which waits in a receive with another tag."""
    for link in links:
        call = link.call
        if call is None or call.signature.op not in ("send", "recv") or call.signature.peer is None:
            continue
        partner = next((other for other in links if other.rank == call.signature.peer), None)
        tags = channels.other_tags(link.rank, call) if partner else []
        if not tags or partner is None:
            continue
        return tag_mismatch(world, link, call.signature.peer, tags, victims, proven=proven)
    return None


def _creation(
    world: World,
    needs: Needs,
    links: list[Pending],
    cycle: list[int],
    victims: tuple[int, ...],
    *,
    proven: bool,
) -> Finding | None:
    """A rank waits in new_group for ranks that wait elsewhere: they did not come."""
    link = next((row for row in links if row.wait.activity is Activity.NEW_GROUP), None)
    if link is None or link.call is not None:
        return None
    inside = set(cycle) | set(victims)
    absent = tuple(sorted(needs.not_created(link) & inside))
    if not absent:
        return None
    waiting = tuple(sorted(inside - set(absent)))
    ranks = evidence(world, links, list(absent), waiting)
    since = _since(world, links, proven=proven)
    return not_created(needs, link, absent, waiting, ranks, since, proven=proven)


def _since(world: World, links: list[Pending], *, proven: bool) -> int:
    last = max(link.wait.since_ns for link in links)
    return last if proven or not world.knows.clock else last + world.limits.hang_ns
