"""The looks of several nodes: written, read again, and made one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from distdebug.commands.rendering import rendered
from distdebug.inspection.inspect import of_nodes
from distdebug.inspection.look import Limits, Look, Stance
from distdebug.inspection.slurm import MARK, Part, read, whole, written
from distdebug.record.snapshot import CallSite
from distdebug.record.wording import RankState

WAITS = Stance(
    RankState.COLLECTIVE,
    op="all_reduce",
    call="all_reduce()",
    site=CallSite("train.py", 9, "step", "accelerate/state.py:4"),
    still_s=30.0,
    group="tensor",
    not_in=("data",),
    peers=(2, 3),
    arguments={"src": "0"},
    lines=("step (train.py:9)",),
)
LATE = Stance(
    RankState.STORE,
    op="store",
    site=CallSite("train.py", 5, "load"),
    still_s=29.5,
    keys=("ready",),
    cause="store",
)


def part(host: str, *ranks: tuple[int, Stance], world_size: int = 4) -> Part:
    look = Look(dict(ranks), world_size=world_size)
    return Part(host, look, {rank: 100 + rank for rank, _ in ranks}, (f"a sign of {host}",), ("n",))


def test_a_part_is_read_as_it_was_written() -> None:
    given = part("a", (0, WAITS), (1, LATE))
    found, others = read(f"noise\n0: {written(given)}\n")
    assert found == [given]
    assert others == ["noise"]


def test_one_verdict_of_two_nodes() -> None:
    found, _ = read("\n".join(map(written, (
        part("a", (0, WAITS), (1, WAITS)), part("b", (2, WAITS), (3, LATE)),
    ))))  # fmt: skip
    seen = of_nodes("the job", whole(found), Limits())
    (finding,) = seen.findings
    assert (finding.kind, finding.culprits, finding.cause) == ("missing_rank", (3,), "store")
    assert list(finding.details) == ["a sign of a", "a sign of b"]
    report = seen.report()
    assert [report["ranks"][rank]["host"] for rank in "0123"] == ["a", "a", "b", "b"]
    assert report["ranks"]["3"]["pid"] == 103


@pytest.mark.parametrize(("last", "failures"), [(LATE, 2), (replace(LATE, still_s=0.1), 0)])
def test_every_form_of_the_report(last: Stance, failures: int) -> None:
    """The run's case and the culprit's fail; of a job at work none does."""
    early = replace(WAITS, still_s=30.0 if failures else 0.2)
    seen = of_nodes("the job", whole([part("a", (0, early), (1, last), world_size=2)]), Limits())
    suite = ElementTree.fromstring(rendered(seen.report(), "junit", "the look").encode())
    assert suite.get("failures") == str(failures)
    assert json.loads(rendered(seen.report(), "json", "the look"))["source"] == "inspection"
    assert ("missing" in rendered(seen.report(), "text", "the look").lower()) is bool(failures)


def test_who_is_on_no_node_and_who_is_on_two() -> None:
    parts = [part("a", (0, WAITS), (1, WAITS)), part("b", (1, WAITS), (2, WAITS))]
    look = whole(parts).look
    assert (look.missing, look.twice) == ((3,), (1,))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "distdebug.look/9"},
        {"look": {"ranks": {"-1": {"doing": RankState.CODE}}}},
        {"look": {"ranks": {"0": {"doing": "SOMETHING"}}}},
        {"look": {"ranks": {"0": {"doing": RankState.CODE, "peers": [-1]}}}},
        {"look": {"ranks": {}, "world_size": 1 << 40}},
        {"look": {"ranks": {}, "missing": ["x"]}},
        {"pids": 3},
    ],
)
def test_what_is_no_part_is_told(change: dict[str, object]) -> None:
    told = json.loads(written(part("a", (0, WAITS))).removeprefix(MARK))
    found, others = read(MARK + json.dumps({**told, **change}))
    assert found == []
    assert "cannot be read" in others[0]
    assert read(MARK + "[1")[0] == read(MARK + "[]")[0] == []
