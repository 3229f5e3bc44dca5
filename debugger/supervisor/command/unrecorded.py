"""Deaths of ranks that had no record yet: a launcher had started them, and they died on the way,
say while they imported torch. Their parent knows how."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...diagnosis.findings import Finding
from ...record.exits import POLITE_SIGNALS, ExitLog, ExitStatus


def early_death(
    ranks: Mapping[int, int], recorded: Collection[int], exits: ExitLog
) -> Finding | None:
    """The first death among the processes in `ranks` (pid to rank) whose rank has no record."""
    dead: list[tuple[bool, int, int, ExitStatus]] = []
    for pid, rank in ranks.items():
        status = exits.find(pid)
        if rank in recorded or status is None or status.shell_code == 0:
            continue
        dead.append((status.signal in POLITE_SIGNALS, status.time_ns, rank, status))
    if not dead:
        return None
    _, time_ns, rank, status = min(dead, key=lambda one: one[:3])
    how = f"ended with {status}" if status.signal is None else f"was killed by {status}"
    return Finding(
        kind="rank_died",
        message=f"rank {rank} {how} before it had imported torch",
        culprits=(rank,),
        victims=tuple(sorted({*recorded, *ranks.values()} - {rank})),
        observable_ns=time_ns,
        data={"signal": status.signal, "exit_code": status.code, "oom_killed": None},
    )
