"""Deaths of ranks of which there is no record: a launcher had started them, and they died before
they had one, or where they could not be watched. Their parent knows how."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from ...diagnosis.facts.exceptions import COMMUNICATION
from ...diagnosis.findings import Finding, RankEvidence
from ...diagnosis.story import step
from ...record.exits import POLITE_SIGNALS, ExitLog, ExitStatus
from .reach import Reach


@step("unrecorded death")
def early_death(
    found: Finding | None,
    reach: Reach,
    recorded: Collection[int],
    exits: ExitLog,
    oom_killed: Callable[[int], bool] = lambda _: False,
    orphaned: bool = False,
) -> Finding | None:
    """The first death among the processes that are ranks, of those ranks that have no record: where
    nothing was found, or no more than that another rank has lost a peer. Else what was found.
    `oom_killed`: whether the kernel killed that process for want of memory; `orphaned`: their
    launcher was killed, and whoever was asked to end then is no culprit."""
    if found and not (found.kind == "rank_exception" and COMMUNICATION.search(found.message)):
        return found
    dead: list[tuple[bool, int, int, int, ExitStatus]] = []
    for pid, rank in reach.ranks.items():
        status = exits.find(pid)
        if rank in recorded or status is None or status.shell_code == 0:
            continue
        if orphaned and status.signal in POLITE_SIGNALS:
            continue
        dead.append((status.signal in POLITE_SIGNALS, status.time_ns, rank, pid, status))
    if not dead:
        return found
    _, time_ns, rank, pid, status = min(dead, key=lambda one: one[:4])
    memory = status.signal == signal.SIGKILL and oom_killed(pid)
    how = f"ended with {status}" if status.signal is None else f"was killed by {status}"
    how += " (out of memory)" if memory else ""
    return Finding(
        kind="rank_died",
        message=f"rank {rank} {how}; it was not watched: {reach.why(pid)}",
        culprits=(rank,),
        victims=tuple(sorted({*recorded, *reach.ranks.values()} - {rank})),
        observable_ns=time_ns,
        ranks={rank: RankEvidence(f"{how}, not watched (process {pid})")},
        data={"signal": status.signal, "exit_code": status.code, "oom_killed": memory},
    )
