"""How long the diagnosis of one snapshot of 4,096 ranks with 20 groups each takes.

python tests/benchmarks/diagnosis_scale.py [ranks]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distdebug.diagnosis.diagnose import Diagnosis, diagnose
from distdebug.record.layout import Activity, CallState, GroupState
from distdebug.record.signature import (
    Signature,
    agreement_key,
    exact_key,
    hash64,
)
from distdebug.record.snapshot import (
    Call,
    CallSite,
    Creation,
    Group,
    GroupKey,
    Process,
    Rank,
    Snapshot,
    Wait,
)
from tests.support.chains import extend_chain
from tests.unit.diagnosis.builder import START_NS, ListHistory

CALLS = 40
SITE = CallSite("/home/user/train.py", 88, "step")
SITES: dict[str, tuple[int, ...]] = {}


def layout_of(ranks: int, groups: int) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    """The world, and sub-groups of 8 to 1,024 ranks in strides, as meshes make them."""
    world = tuple(range(ranks))
    member: dict[int, list[tuple[str, tuple[int, ...]]]] = {rank: [("0", world)] for rank in world}
    for index in range(1, groups):
        size = min(ranks, 8 << (index % 8))
        count = ranks // size
        for part in range(count):
            name = f"mesh{index}_{part}"
            members = (
                tuple(range(part, ranks, count))
                if index % 2
                else tuple(range(part * size, (part + 1) * size))
            )
            for rank in members:
                member[rank].append((name, members))
    return member


def rank_of(
    number: int, ranks: int, groups: list[tuple[str, tuple[int, ...]]], signatures: list[Signature]
) -> Rank:
    """A rank that has made its calls in the world and waits in the last one."""
    calls: list[Call] = []
    chain = exact = 0
    for seq, signature in enumerate(signatures):
        chain = extend_chain(chain, hash64(agreement_key(signature)))
        exact = extend_chain(exact, hash64(exact_key(signature)))
        calls.append(
            Call(
                number=seq,
                group=("0", 0),
                seq=seq,
                signature=signature,
                site=SITE,
                thread=1,
                state=CallState.COMPLETED,
                chain=chain,
                exact=exact,
                issued_ns=START_NS + seq,
            )
        )
    states: dict[GroupKey, Group] = {}
    for name, members in groups:
        issued = len(calls) if name == "0" else 0
        states[name, 0] = Group(
            (name, 0),
            "default_pg" if name == "0" else name,
            members if number % 2 else (*members[:-1], members[-1]),
            "gloo",
            GroupState.READY,
            issued=issued,
            chain=chain if issued else 0,
            exact=exact if issued else 0,
            last=issued - 1 if issued else None,
        )
    wait = Wait(1, Activity.IN_CALL, 7, START_NS + len(calls), call=len(calls) - 1, site=SITE)
    creations = tuple(
        Creation(index, (name, 0), members, "gloo", SITE, 0, START_NS)
        for index, (name, members) in enumerate(groups[:1])
    )
    return Rank(
        rank=number,
        world_size=ranks,
        pid=number + 1,
        process=Process(alive=True, state="S"),
        heartbeat_ns=START_NS + 1,
        calls=len(calls),
        layer_serial=7,
        free_threads=0,
        location=SITE,
        groups=states,
        creations=creations,
        waits=(wait,),
        history=ListHistory(calls),
    )


def snapshot_of(ranks: int, case: str) -> Snapshot:
    """`healthy`: all in one call. `late`: one is a call behind. `mismatch`: one calls another op.
    `deadlock`: half of the ranks wait in one sub-group, half in another."""
    step = Signature("all_reduce", (("float32", (1024,)),), reduce_op="sum")
    other = Signature("broadcast", (("float32", (1024,)),), root=0)
    member = layout_of(ranks, 20)
    found = {}
    for number in range(ranks):
        signatures = [step] * CALLS
        if number == ranks // 2:
            if case == "late":
                signatures = signatures[:-1]
            elif case == "mismatch":
                signatures = [*signatures[:-1], other]
        found[number] = rank_of(number, ranks, member[number], signatures)
    if case == "deadlock":
        for number in range(ranks):
            found[number] = blocked(found[number], ("0", ranks))
    return Snapshot(START_NS + 2_000_000_000, ranks, found)


def blocked(rank: Rank, world: tuple[str, int]) -> Rank:
    """Even ranks are one call ahead in the world, odd ranks wait in their largest sub-group."""
    history = rank.history
    assert isinstance(history, ListHistory)
    if rank.rank % 2 == 0:
        return rank
    mixed = [
        key
        for key, group in rank.groups.items()
        if key[0] != world[0] and group.ranks[1] - group.ranks[0] == 1
    ]
    key = max(mixed, key=lambda key: len(rank.groups[key].ranks))
    last = history.calls[-1]
    history.calls[-1] = replace(last, group=key, seq=0)
    groups = dict(rank.groups)
    before = history.calls[-2]
    groups["0", 0] = replace(
        groups["0", 0], issued=CALLS - 1, chain=before.chain, exact=before.exact, last=CALLS - 2
    )
    groups[key] = replace(groups[key], issued=1, chain=1, exact=1, last=CALLS - 1)
    return replace(rank, groups=groups)


def timed(work: Callable[[], Diagnosis]) -> tuple[float, Diagnosis]:
    """CPU seconds (a busy machine must not distort them), and what came out."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def measure(ranks: int) -> list[tuple[str, float, str]]:
    """(case, seconds, first finding) for each case."""
    rows = []
    for case in ("healthy", "late", "mismatch", "deadlock"):
        snapshot = snapshot_of(ranks, case)
        previous = replace(
            snapshot, ranks={number: replace(rank) for number, rank in snapshot.ranks.items()}
        )
        duration_s, result = timed(lambda s=snapshot, p=previous: diagnose(s, p))  # type: ignore[misc]
        first = repr(result.findings[0])[:60] if result.findings else "nothing"
        rows.append((case, duration_s, first))
    return rows


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    print(f"{ranks} ranks, 20 groups each")
    for case, duration_s, first in measure(ranks):
        print(f"  {case:<10} {duration_s:7.3f} CPU s   {first}")


if __name__ == "__main__":
    main()
