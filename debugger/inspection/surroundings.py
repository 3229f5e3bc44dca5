"""Looks at what can be seen of a job beside its stacks: its store, its sockets, NCCL's own count of
calls, dumps of torch's flight recorder. Each part may be absent, and is then silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import MappingProxyType

from ..foreign.flight_recorder import Dump
from ..record.safe_text import endpoint, port_of
from ..record.wording import RankState, ranks_text, verb
from ..system.proc import is_in_our
from ..system.sockets import Link, Socket, links, sockets_of
from . import dumps, nccl_ras
from .look import Stance
from .processes import Job, Process, is_loopback
from .store import Keys, keys_of

_MOST_LINES = 8
_ELSEWHERE = "is in another network (a container's): look from inside it to ask it, too"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The witnesses beside the stacks; `problems` are sentences on what could not be had."""

    keys: Keys | None = None
    sockets: Sequence[Socket] = ()
    links: Sequence[Link] = ()
    communicators: Sequence[nccl_ras.Communicator] = ()
    recorded: dumps.Recorded | None = None
    problems: Sequence[str] = field(default_factory=tuple)


def look_around(
    job: Job,
    ranks: Mapping[int, Process],
    stances: Mapping[int, Stance] = MappingProxyType({}),
    ask: bool = False,
) -> Surroundings:
    """Look at all of it. `ask`: have the ranks dump their flight recorders, which writes."""
    problems: list[str] = []
    sockets = sockets_of(one.pid for one in job.processes)
    keys = _keys(job, stances)
    if isinstance(keys, str):
        problems.append(keys)
        keys = None
    elif keys is not None and keys.refused:
        problems.append(f"nobody listens at {keys.address}, where the job's store should be")
    communicators = _communicators(job, sockets)
    if isinstance(communicators, str):
        problems.append(communicators)
        communicators = []
    answers: Mapping[int, Dump] = {}
    if ask:
        answers, said = dumps.dumps_of(keys) if keys is not None else ({}, [])
        problems += said
        silent = {rank: one for rank, one in ranks.items() if rank not in answers}
        problems += dumps.ask(silent)
    pids = {one.pid: rank for rank, one in ranks.items()}
    return Surroundings(
        keys, sockets, links(sockets, pids), communicators, dumps.recorded(ranks, answers), problems
    )


def details(
    around: Surroundings, stances: Mapping[int, Stance], pids: Mapping[int, int]
) -> list[str]:
    """Returns what bears on ranks that wait, one line each."""
    return _at_most(
        [
            *_of_store(around.keys, stances),
            *_of_links(around.links, stances),
            *_of_nccl(around.communicators, pids),
        ]
    )


def _at_most(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more signs of this kind"]


def lagging(around: Surroundings, pids: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks of which NCCL itself says that they have launched fewer collectives than others, or do
    not answer."""
    found = set()
    for one in around.communicators:
        ranks = _ranks_of(one, pids)
        for place in {*one.behind(), *(m.rank for m in one.members if m.silent)}:
            if place in ranks:
                found.add(ranks[place])
    return tuple(sorted(found))


def nccls_count(around: Surroundings, pids: Mapping[int, int]) -> list[str]:
    """Returns what NCCL tells of a job of which nothing is found. A rank that waits for its GPU is
    seen to compute, so this may be all that shows a hang; but who has launched fewer calls may just
    as well be about to launch them, and only another look tells."""
    lines = _at_most(_of_nccl(around.communicators, pids))
    if not lines:
        return []
    return [*lines, "where NCCL tells the same at the next look, the others wait for these"]


def never_came(around: Surroundings, world_size: int) -> tuple[int, ...]:
    """Ranks of the world that have not put their address for gloo into the store, though others
    have."""
    came = around.keys.came().get("", frozenset()) if around.keys is not None else frozenset()
    if not came or max(came) >= world_size:
        return ()
    return tuple(rank for rank in range(world_size) if rank not in came)


def world_size(around: Surroundings, stances: Mapping[int, Stance]) -> int:
    """Returns the size of the world by the store, where no process tells: gloo makes one of those
    that have put their addresses there. 0 where some may still be on their way into it."""
    came = around.keys.came().get("", frozenset()) if around.keys is not None else frozenset()
    joining = any(one.doing is RankState.JOIN for one in stances.values())
    if joining or not stances or not came.issuperset(stances) or max(came) + 1 != len(came):
        return 0
    return len(came)


def with_stores(
    stances: Mapping[int, Stance], around: Surroundings, pids: Mapping[int, int]
) -> Mapping[int, Stance]:
    """The ranks, each that makes a group with the store that it talks to: its stack tells while it
    connects, later its connection does."""
    told = {one.arguments["port"] for one in stances.values() if one.arguments.get("port")}
    found = dict(stances)
    for rank, one in stances.items():
        if one.doing is not RankState.JOIN or one.arguments.get("port"):
            continue
        remotes = (of.remote for of in around.sockets if of.pid == pids[rank])
        ports = {port for remote in remotes if (port := remote.rpartition(":")[2]) in told}
        if len(ports) == 1:
            found[rank] = replace(one, arguments={**one.arguments, "port": ports.pop()})
    return found


def _keys(job: Job, stances: Mapping[int, Stance]) -> Keys | str | None:
    """Returns the keys of the store that ranks are connecting to, or of the one that their
    environment names."""
    named = [(one.arguments.get("hostname"), one.arguments.get("port")) for one in stances.values()]
    named += [(one.told.get("MASTER_ADDR"), one.told.get("MASTER_PORT")) for one in job.processes]
    here = all(is_in_our("net", one.pid) for one in job.processes)
    for host, text in named:
        port = port_of(text)
        if not host or port is None:
            continue
        if not here and is_loopback(host):
            return f"the job's store, {host}:{port}, {_ELSEWHERE}"
        keys = keys_of(host, port)
        if not here and isinstance(keys, Keys) and keys.refused:
            return f"the job's store, {host}:{port}, cannot be reached from here: it {_ELSEWHERE}"
        return keys
    return None


def _communicators(job: Job, sockets: Sequence[Socket]) -> Sequence[nccl_ras.Communicator] | str:
    """Asked only where one of the job's processes listens at NCCL's port."""
    named = next((a for one in job.processes if (a := one.told.get(nccl_ras.ADDRESS_VARIABLE))), "")
    wanted = endpoint(named)[1] or nccl_ras.PORT
    at = next((one for one in sockets if one.listens and one.port == wanted), None)
    if at is None:
        return []
    if not is_in_our("net", at.pid):
        return f"NCCL's RAS {_ELSEWHERE}"
    host = at.local.rpartition(":")[0]
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return nccl_ras.asked(host, wanted)


def _of_store(keys: Keys | None, stances: Mapping[int, Stance]) -> list[str]:
    lines = []
    for rank, one in sorted(stances.items()):
        if one.doing is not RankState.STORE or not one.keys:
            continue
        shown = ", ".join(f'"{key}"' for key in one.keys)
        if keys is None:
            lines.append(f"rank {rank} waits for {shown} of the store")
            continue
        unset = [key for key in one.keys if not keys.has(key)]
        if unset:
            shown = ", ".join(f'"{key}"' for key in unset)
            lines.append(
                f"rank {rank} waits for {shown} of the store at {keys.address}, which nobody has "
                f"set ({len(keys.names)} other keys are there)"
            )
    return lines


def _of_links(found: Sequence[Link], stances: Mapping[int, Stance]) -> list[str]:
    lines = []
    for one in found:
        whom = f"rank {one.peer}" if one.peer is not None else one.address
        if one.unsent:
            lines.append(f"{one.unsent} bytes of rank {one.rank} to {whom} are not taken")
        if one.unread and one.rank in stances and one.peer is not None:
            lines.append(
                f"{one.unread} bytes of {whom} have come to rank {one.rank}, which takes none"
            )
        if one.closed and one.peer is None:
            lines.append(
                f"{one.closed} connections of rank {one.rank} to {whom} were closed by the "
                "other side"
            )
    return lines


def _of_nccl(found: Sequence[nccl_ras.Communicator], pids: Mapping[int, int]) -> list[str]:
    lines = []
    for one in found:
        ranks = _ranks_of(one, pids)
        for place, counts in sorted(one.behind().items()):
            who = _who(place, ranks)
            shown = ", ".join(f"{n} of {most} {name}" for name, (n, most) in counts.items())
            lines.append(f"NCCL: {who} has launched {shown} in communicator {one.name}")
        for member in one.members:
            who = _who(member.rank, ranks)
            if member.silent:
                lines.append(f"NCCL: {who} of communicator {one.name} is {member.silent}")
            if member.async_error:
                lines.append(
                    f"NCCL: {who} has the asynchronous error {member.async_error} in "
                    f"communicator {one.name}"
                )
    return lines


def _who(place: int, ranks: Mapping[int, int]) -> str:
    return f"rank {ranks[place]}" if place in ranks else f"member {place}"


def _ranks_of(one: nccl_ras.Communicator, pids: Mapping[int, int]) -> Mapping[int, int]:
    """Its members that are ranks of this host, by their places. A process of another host may have
    the same pid: then nothing is said of both."""
    by_pid = {pid: rank for rank, pid in pids.items()}
    seen = [member.pid for member in one.members]
    return {
        member.rank: by_pid[member.pid]
        for member in one.members
        if member.pid in by_pid and seen.count(member.pid) == 1
    }


def summary(around: Surroundings, never_came: Sequence[int]) -> list[str]:
    """Returns what is worth a note: the ranks that have never come to make the world, and where
    dumps are."""
    notes = []
    if never_came:
        notes.append(
            f"by the store, {ranks_text(never_came)} {verb(never_came, 'has', 'have')} never come "
            "to make the default group"
        )
    if around.recorded is not None:
        notes += around.recorded.notes
    return [*notes, *around.problems]
