"""Looks at programs of `fixtures/scripts` as they were once seen, and generated ones.

`fixtures/recorded/looks.jsonl.xz` has a line for each: at each buggy program that hangs a look when
it did, started by torchrun or else by `mp.spawn`, with what was found then; at each correct one the
look in which a rank had waited for longest. (The stacks are left out of it.)
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from distdebug.inspection.judging import judge
from distdebug.inspection.look import Limits, Look, Stance
from distdebug.inspection.slurm import MARK, read
from distdebug.record.snapshot import CallSite
from distdebug.record.wording import RankState
from tests.support.fixture_table import FIXTURES, expected

LIMITS = Limits(still_s=5.0, busy_s=10.0, moving_s=12.0)
"""Those of `tests/benchmarks/inspect_fixtures.py`, by which they were looked at."""
with lzma.open(FIXTURES / "recorded" / "looks.jsonl.xz", "rt") as lines:
    RECORDED: list[dict[str, Any]] = [json.loads(line) for line in lines]
HANGING = [one for one in RECORDED if one["what"] == "hanging"]


def look_of(one: Mapping[str, Any]) -> Look:
    (part,), _ = read(MARK + json.dumps(one["look"]))
    return part.look


@pytest.mark.parametrize("one", HANGING, ids=[one["name"] for one in HANGING])
def test_what_is_found_in_a_program_that_hangs(one: Mapping[str, Any]) -> None:
    found = judge(look_of(one), LIMITS)
    assert [[each.kind, sorted(each.culprits)] for each in found] == one["found"]
    assert all(not each.proven and each.message.startswith("suspected: ") for each in found)


def test_nine_of_ten_are_right() -> None:
    right = 0
    for one in HANGING:
        wanted = expected(one["name"])["culprits"]
        found = judge(look_of(one), LIMITS)
        right += bool(found) and wanted in (None, sorted(found[0].culprits))
    assert right >= 0.9 * len(HANGING), (right, len(HANGING))


def test_no_correct_program_is_accused() -> None:
    correct = [one for one in RECORDED if one["what"] == "correct"]
    assert len(correct) > 50
    for one in correct:
        assert judge(look_of(one), LIMITS) == [], one["name"]


class Job:
    """A correct program of some ranks: each call has members, who arrive after they have computed,
    and is over for all of them when the last has come and its data have been moved."""

    def __init__(self, chance: random.Random) -> None:
        self.size = chance.randint(2, 6)
        self._ready_s = dict.fromkeys(range(self.size), 0.0)
        self.spans: list[tuple[int, float, float, Stance]] = []
        for _ in range(30):
            group = chance.choice(["", "", "low", "pair"])
            half = max(2, self.size // 2)
            members = range(self.size) if not group else range(half)
            if group == "pair":
                members = range(self.size - 2, self.size)
            self._call(chance, group, list(members))

    def _call(self, chance: random.Random, group: str, members: list[int]) -> None:
        op = chance.choice(["all_reduce", "broadcast", "barrier", "reduce"])
        site = CallSite("train.py", chance.randint(10, 99), "step")
        came_s = {}
        for rank in members:
            came_s[rank] = self._ready_s[rank] + chance.choice([0.01, 0.5, 4.0])
            works = Stance(
                RankState.CODE, site=site, running=True, cause="user_code", computes=True
            )
            self.spans.append((rank, self._ready_s[rank], came_s[rank], works))
        over_s = max(came_s.values()) + chance.choice([0.001, 0.3])
        for rank in members:
            arguments = {"src": "0", "dst": "0"} if op in ("broadcast", "reduce") else {}
            waits = Stance(
                RankState.COLLECTIVE, op, f"{op}()", site, group=group, arguments=arguments
            )
            self.spans.append((rank, came_s[rank], over_s, waits))
            self._ready_s[rank] = over_s

    def looks(self, chance: random.Random) -> Iterator[Look]:
        for _ in range(3):
            at_s = chance.uniform(0, max(self._ready_s.values()))
            ranks = {
                rank: Stance(**{**_fields(one), "still_s": 0.0 if one.running else at_s - began_s})
                for rank, began_s, ended_s, one in self.spans
                if began_s <= at_s < ended_s
            }
            if len(ranks) == self.size:
                yield Look(ranks, world_size=self.size)


def _fields(one: Stance) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Stance.__dataclass_fields__}


def test_no_generated_program_is_accused() -> None:
    looks = 0
    for seed in range(300):
        chance = random.Random(seed)
        for look in Job(chance).looks(chance):
            looks += 1
            assert judge(look, Limits()) == [], seed
    assert looks > 300


def test_whatever_a_look_shows_is_judged() -> None:
    """Also what no program does: nothing is raised, and who is named is one of the ranks."""
    names = "COLLECTIVE MESSAGE HANDLE JOIN STORE BACKWARD CODE ENDING GONE UNREADABLE"
    doings = [RankState[name] for name in names.split()]
    for seed in range(300):
        chance = random.Random(seed)
        size = chance.randint(1, 5)
        ranks = {
            rank: Stance(
                chance.choice(doings),
                op=chance.choice(["", "send", "recv", "wait", "all_reduce", "new_group", "x"]),
                call=chance.choice([None, "f()"]),
                still_s=chance.choice([0.0, 2.0, 30.0, 90.0]),
                running=chance.random() < 0.2,
                group=chance.choice([None, "", "a"]),
                not_in=chance.choice([(), ("a",)]),
                peers=chance.choice([(), (0,), (0, 9)]),
                arguments=chance.choice([{}, {"src": "-1"}, {"dst": "7"}, {"port": "1"}]),
                cause=chance.choice([None, "stopped", "gil_held", "unknown"]),
            )
            for rank in range(size)
        }
        missing = chance.choice([(), (size,)])
        look = Look(ranks, missing, chance.choice([(), (0,)]), (), chance.choice([0, size, 9]))
        for found in judge(look, Limits()):
            assert set(found.culprits) <= {*ranks, *missing, 7, 9, -1}, seed
            assert found.culprits
