"""The rank that hosts the rendezvous store has left, and others needed the store.

A rank says that it hosts it with a note. Whoever loses its connection to the store
outside of any call of a group, after the host has finished, is a victim of that early exit.
"""

from __future__ import annotations

from ...record.layout import CallState
from ...record.notes import StoreHostNote, raised
from ...record.snapshot import Note
from ...record.wording import at_site, printable
from ..facts.evidence import chosen, last_call, stand
from ..facts.exceptions import last_exception
from ..facts.world import World
from ..findings import Finding
from ..limits import SECOND_NS, Candidate

SEEN_LATE_NS = SECOND_NS
"""A connection breaks as the process that held it ends, which is seen a moment later."""
STORE_ERRORS = frozenset({"DistNetworkError", "DistStoreError", "StoreFailed"})


def store_hosts_that_left(world: World) -> list[Candidate]:
    """At most one finding for each host."""
    found = []
    for host in world.eventful:
        record = world.ranks[host]
        if not world.finished(host) or not world.notes(host, StoreHostNote):
            continue
        ended_ns = record.process.ended_ns or record.heartbeat_ns
        lost = {
            rank: note
            for rank in world.eventful
            if rank != host and (note := _lost_store(world, rank, ended_ns)) is not None
        }
        if lost:
            found.append(Candidate(_finding(world, host, lost)))
    return found


def _lost_store(world: World, rank: int, since_ns: int) -> Note | None:
    note = last_exception(world, rank)
    if (
        note is None
        or note.time_ns < since_ns - SEEN_LATE_NS
        or raised(note).type not in STORE_ERRORS
    ):
        return None
    call = last_call(world, rank)
    return note if call is None or call.state is CallState.COMPLETED else None


def _finding(world: World, host: int, lost: dict[int, Note]) -> Finding:
    victims = tuple(sorted(lost))
    first = min(lost, key=lambda rank: lost[rank].time_ns)
    note = lost[first]
    return Finding(
        kind="early_exit",
        message=(
            f"rank {host} finished, and the store that it hosts ended with it, but "
            f"rank {first} needed the store{at_site(note.site)}: {printable(note.message, 200)}; "
            f"let rank {host} leave last, after a barrier"
        ),
        culprits=(host,),
        victims=victims,
        ranks=stand(world, chosen((host,), victims)),
        observable_ns=note.time_ns,
        cause="store",
    )
