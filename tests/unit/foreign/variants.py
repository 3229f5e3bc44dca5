"""Variants of a case whose truth is known: what must not change the verdict is changed.

Ranks are permuted, files renamed, shuffled, written as JSON, in another version, with clocks apart,
with rings full of older calls that are complete (or wrapped), and with a dump left out.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PACKED = Path(__file__).resolve().parents[3] / "fixtures" / "recorded" / "flight_recorder.tar.xz"
TRUTH = {"gpu_error_1st": ({12, 14}, "device"), "lock_gil_1st": ({9, 14}, "host")}
NAMES = (
    "_dump_{rank}",
    "comm_lib_trace_rank_{rank}",
    "nccl_trace_rank_{rank}",
    "host{host}-rank{rank}.pickle",
    "node-{host}_trace_{rank}.pkl",
    "hccl_trace_rank_{rank}",
    "job7_rank_{rank}",
)

ALL_REDUCE: dict[str, Any] = {
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[8]],
    "input_dtypes": ["Float"],
    "output_sizes": [[8]],
    "output_dtypes": ["Float"],
}

Dumps = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Dumps by rank, who is to blame, and how it is written. `lost` ranks have left no dump."""

    dumps: Dumps
    culprits: frozenset[int]
    side: str
    name: str = NAMES[0]
    as_json: bool = False
    lost: frozenset[int] = frozenset()
    story: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """As files."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank, dump in self.dumps.items():
            if rank not in self.lost:
                file = folder / self.name.format(rank=rank, host=rank // 8)
                if self.as_json:
                    file.write_text(json.dumps(for_json(dump)))
                else:
                    file.write_bytes(pickle.dumps(dump, protocol=2))


def originals() -> dict[str, Case]:
    """The recorded cases, as they are."""
    found: dict[str, Dumps] = {}
    with tarfile.open(PACKED) as packed:
        for member in packed:
            match = re.fullmatch(r"(\w+)/_dump_(\d+)", member.name)
            if match:
                data = packed.extractfile(member)
                assert data is not None
                # Our own file, whose content is known.
                found.setdefault(match[1], {})[int(match[2])] = pickle.load(data)
    return {
        name: Case(dumps, frozenset(TRUTH[name][0]), TRUTH[name][1])
        for name, dumps in found.items()
    }


def variant(case: Case, seed: int) -> Case:
    """The same story told otherwise; each seed is another one."""
    chance = random.Random(seed)
    made = replace(case, dumps=copy.deepcopy(case.dumps))
    for change in chance.sample(CHANGES, chance.randint(1, 4)):
        made = change(made, chance)
        made = replace(made, story=(*made.story, change.__name__))
    return made


def permuted(case: Case, chance: random.Random) -> Case:
    """Other ranks have the roles."""
    order = list(case.dumps)
    chance.shuffle(order)
    to = dict(zip(case.dumps, order, strict=True))
    for dump in case.dumps.values():
        for group in dump["pg_config"].values():
            ranks = [to[rank] for rank in json.loads(group["ranks"])]
            group["ranks"] = str(ranks)
    return replace(
        case,
        dumps={to[rank]: dump for rank, dump in case.dumps.items()},
        culprits=frozenset(to[rank] for rank in case.culprits),
        lost=frozenset(to[rank] for rank in case.lost),
    )


def renamed(case: Case, chance: random.Random) -> Case:
    """Files with another prefix, a host or an extension in their names."""
    return replace(case, name=chance.choice(NAMES))


def in_json(case: Case, chance: random.Random) -> Case:
    """JSON in place of a pickle."""
    return replace(case, as_json=True)


def shuffled(case: Case, chance: random.Random) -> Case:
    """Files in another order."""
    items = list(case.dumps.items())
    chance.shuffle(items)
    return replace(case, dumps=dict(items))


def clocks_apart(case: Case, chance: random.Random) -> Case:
    """Each rank's clock is some seconds off."""
    for dump in case.dumps.values():
        off_ns = int(chance.uniform(-60, 60) * 1e9)
        for entry in dump["entries"]:
            entry["time_created_ns"] += off_ns
    return case


def another_version(case: Case, chance: random.Random) -> Case:
    """As torch 2.11 and later write it."""
    for dump in case.dumps.values():
        dump["version"] = "2.10"
        dump["comm_lib_version"] = dump.pop("nccl_version", "2.27.3")
    return case


def full_rings(case: Case, chance: random.Random) -> Case:
    """The complete calls before the pending ones are on record, too."""
    return _with_history(case, chance, 200)


def wrapped_rings(case: Case, chance: random.Random) -> Case:
    """Of the complete calls only the last few are left."""
    return _with_history(case, chance, 7)


def culprit_lost(case: Case, chance: random.Random) -> Case:
    """One of the culprits has left no dump."""
    return replace(case, lost=frozenset([chance.choice(sorted(case.culprits))]))


def victim_lost(case: Case, chance: random.Random) -> Case:
    """One of the victims has left no dump."""
    victims = sorted(set(case.dumps) - case.culprits)
    return replace(case, lost=frozenset([chance.choice(victims)]))


CHANGES: tuple[Callable[[Case, random.Random], Case], ...] = (
    permuted,
    renamed,
    in_json,
    shuffled,
    clocks_apart,
    another_version,
    full_rings,
    wrapped_rings,
    culprit_lost,
    victim_lost,
)


def _with_history(case: Case, chance: random.Random, most: int) -> Case:
    """Give each rank the calls before: complete, and the same on all members of a group."""
    groups: dict[tuple[str, str], list[int]] = {}
    firsts: dict[tuple[str, str], int] = {}
    samples: dict[tuple[str, str], Mapping[str, Any]] = {}
    known: dict[tuple[tuple[str, str], int], Mapping[str, Any]] = {}
    for dump in case.dumps.values():
        for group in dump["pg_config"].values():
            groups[group["name"], group["desc"]] = json.loads(group["ranks"])
        for entry in dump["entries"]:
            name = tuple(entry["process_group"])
            if not entry["is_p2p"]:
                firsts[name] = min(firsts.get(name, 1 << 60), entry["collective_seq_id"])
                samples.setdefault(name, entry)
                known[name, entry["collective_seq_id"]] = entry
    for rank, dump in case.dumps.items():
        pending = dump["entries"]
        if any(entry.get("state") == "completed" for entry in pending):
            return case
        own = {tuple(entry["process_group"]): entry["pg_id"] for entry in pending}
        free = 1000
        history: list[dict[str, Any]] = []
        for name, first in firsts.items():
            if rank not in groups.get(name, ()):
                continue
            until = min(
                [
                    entry["collective_seq_id"]
                    for entry in pending
                    if tuple(entry["process_group"]) == name and not entry["is_p2p"]
                ],
                default=None,
            )
            if until is None:
                until = first  # what came before everybody's oldest pending call
            if name not in own:
                free += 1
                own[name] = free
            sample = samples[name]
            history += [
                {
                    **sample,
                    **ALL_REDUCE,
                    **_content(known.get((name, seq))),
                    "collective_seq_id": seq,
                    "op_id": seq,
                    "pg_id": own[name],
                    "state": "completed",
                    "retired": True,
                    "time_discovered_completed_ns": sample["time_created_ns"] - 5,
                    "time_created_ns": sample["time_created_ns"] - (until - seq) * 10**6,
                }
                for seq in range(max(1, until - most), until)
            ]
        history.sort(key=lambda entry: entry["time_created_ns"])
        dump["entries"] = [*history, *pending]
        for number, entry in enumerate(dump["entries"]):
            entry["record_id"] = 5000 + number
    return case


def _content(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the members of a group call alike."""
    return {key: entry[key] for key in ALL_REDUCE} if entry is not None else {}


def for_json(dump: Mapping[str, Any]) -> dict[str, Any]:
    """As torch's own JSON differs from its pickle."""
    made = copy.deepcopy(dict(dump))
    for status in made["pg_status"].values():
        for key, value in status.items():
            status[key] = str(value)
    for entry in made["entries"]:
        entry["process_group"] = list(entry["process_group"])
        entry.pop("frames", None)
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
    if not made["entries"]:
        del made["entries"]
    return made
