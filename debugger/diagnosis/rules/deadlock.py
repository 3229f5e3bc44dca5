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
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Cycle:
    """Ranks that wait for each other, by the waits in `links`, each for the one in `targets`; and
    the `victims` that wait for them."""

    ranks: list[int]
    targets: list[int]
    links: list[Pending]
    victims: tuple[int, ...]
    proven: bool

    def since_ns(self, world: World) -> int:
        last_ns = max(link.wait.since_ns for link in self.links)
        return last_ns if self.proven or not world.knows.clock else last_ns + world.limits.hang_ns


def deadlocks(world: World, needs: Needs) -> list[Candidate]:
    """Returns one finding for each independent cycle: proven ones, else suspected ones."""
    waiting = {}
    for number, rank in world.ranks.items():
        if rank.free_threads == 0 and rank.waits and _may_be_judged(world, number):
            rows = needs.of_all(number)
            if rows is not None and world.stable(number):
                waiting[number] = rows
    found = _cycles(needs, waiting, proven=True)
    if found or world.paused:
        return found
    return _cycles(needs, _suspected(world, needs), proven=False)


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


def _cycles(needs: Needs, waiting: Waiting, *, proven: bool) -> list[Candidate]:
    world = needs.world
    if len(waiting) < 2:
        return []
    gone = frozenset(
        rank for rank in world.ranks if world.ended(rank) and rank not in world.unrecorded
    )
    stuck = stuck_ranks(waiting, gone)
    # The same, where a receive from any source waits for those that have sent it the fewest.
    blamed = {
        number: [
            _of_the_fewest(needs.channels, row, need)
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
        targets = [*cycle[1:], cycle[0]]
        links = [_link(needs, *step) for step in zip(cycle, targets, strict=True)]
        one = Cycle(cycle, targets, links, victims, proven)
        found.append(Candidate(_tags(needs, one) or _creation(needs, one) or _deadlock(needs, one)))
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


def _link(needs: Needs, rank: int, target: int) -> Pending:
    """The wait by which the rank waits for the next one of the cycle."""
    rows = needs.world.pending(rank)
    for pending in rows:
        need = needs.of(pending)
        if need and target in need.ranks:
            return pending
    return rows[0]


def _deadlock(needs: Needs, cycle: Cycle) -> Finding:
    world, links, victims = needs.world, cycle.links, cycle.victims
    steps = [
        f"rank {link.rank} {doing(world, link)} waits for rank {target}{_less(needs, link)}"
        for link, target in zip(links, cycle.targets, strict=True)
    ]
    shown = steps if len(steps) <= 6 else [*steps[:5], f"... ({len(steps)} ranks in the cycle)"]
    suspected = "" if cycle.proven else "suspected: "
    views = [world.view(link.rank, link.call.group) for link in links if link.call]
    same = views[0] if views and len({id(view) for view in views}) == 1 else None
    headline = f"{suspected}ranks wait for each other in a cycle"
    chain = [_step(world, link, target) for link, target in zip(links, cycle.targets, strict=True)]
    details = [step.detail for step in chain]
    if victims:
        details.append(f"{ranks_text(victims)} {verb(victims, 'waits', 'wait')} for them")
    details += [text for link in links for text in _left_over(needs, link)]
    return Finding(
        kind="deadlock",
        message=f"{headline}: {'; '.join(shown)}",
        culprits=tuple(cycle.ranks),
        victims=victims,
        proven=cycle.proven,
        group=group_evidence(same.any) if same else None,
        seq=None,
        ranks=evidence(world, links, cycle.ranks, victims),
        details=tuple(details),
        headline=headline,
        cycle=tuple(chain),
        observable_ns=cycle.since_ns(world),
    )


def _left_over(needs: Needs, link: Pending) -> Iterator[str]:
    """A rank that waits for a message of one rank, while another one's lies there for it, may only
    have named the wrong one."""
    call = link.call
    if call is None or call.signature.peer in (None, ANY_SOURCE):
        return
    for other, channel in needs.channels.left_over(link.rank, call)[:MOST_LEFT_OVER]:
        history = needs.world.ranks[other].history
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


def _tags(needs: Needs, cycle: Cycle) -> Finding | None:
    """Two ranks, one waits in a send to the other, which waits in a receive with another tag."""
    for link in cycle.links:
        call = link.call
        if call is None or call.signature.op not in ("send", "recv") or call.signature.peer is None:
            continue
        tags = needs.channels.other_tags(link.rank, call)
        if tags and call.signature.peer in cycle.ranks:
            others, peer = (*cycle.ranks, *cycle.victims), call.signature.peer
            return tag_mismatch(needs.world, link, peer, tags, others, proven=cycle.proven)
    return None


def _creation(needs: Needs, cycle: Cycle) -> Finding | None:
    """A rank waits in new_group for ranks that wait elsewhere: they did not come. Where those that
    did come are fewer, they came too early, or should not have come at all."""
    rows = (row for row in cycle.links if row.wait.activity is Activity.NEW_GROUP)
    link = next(rows, None)
    if link is None or link.call is not None:
        return None
    inside = {*cycle.ranks, *cycle.victims}
    absent = tuple(sorted(needs.not_created(link) & inside))
    if not absent:
        return None
    waiting = tuple(sorted(inside - set(absent)))
    ranks = evidence(needs.world, cycle.links, list(absent), waiting)
    since_ns = cycle.since_ns(needs.world)
    found = not_created(needs, link, absent, waiting, ranks, since_ns, proven=cycle.proven)
    creation = needs.creation(link)
    if creation is None:
        return found  # its members alone create it
    came = {rank for rank in needs.world.ranks if needs.came(rank, creation.group[0], creation)}
    if len(came) >= len(inside - came):
        return found
    return replace(found, culprits=tuple(sorted(came)), victims=tuple(sorted(inside - came)))
