"""A run's record as a trace: slices, flows, and the names that other tools read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from distdebug.foreign.export import write_each
from distdebug.record.reading.records import Records, newest_ranks
from distdebug.record.snapshot import Digest
from fixtures import make_trace_picture, recorded

Events = list[dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A recorded run of four ranks, of which one has made another call than the others."""
    path = tmp_path / "run"
    recorded.unpack("mismatch", path)
    return path


def exported(run: Path, *arguments: str) -> None:
    assert main(["export", *arguments, str(run)]) == 0


def of(events: Sequence[dict[str, Any]], phase: str) -> Events:
    return [event for event in events if event["ph"] == phase]


def test_every_call_of_every_rank_is_a_slice(run: Path, tmp_path: Path) -> None:
    exported(run, "--trace", str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    records = Records(run / "ranks")
    records.look()
    ranks = newest_ranks(records.snapshots()[-1:])
    for number, rank in ranks.items():
        assert rank.history is not None
        calls = rank.history.recent(10_000)
        slices = [event for event in of(events, "X") if event["pid"] == number]
        assert [event["args"]["call"] for event in slices] == [str(c.signature) for c in calls]
        assert [event["args"]["Seq"] for event in slices] == [call.seq for call in calls]
        assert all(event["ts"] >= 0 for event in slices)
        # As readers round them, inwards to whole microseconds.
        assert all(math.ceil(e["ts"]) <= math.floor(e["ts"] + e["dur"]) for e in slices)
        begun, ended = (
            [event["id"] for event in of(events, phase) if event["pid"] == number] for phase in "be"
        )
        assert begun == ended == [f"{number}.{call.number}" for call in calls if call.is_async]
    names = [event["args"]["name"] for event in of(events, "M") if event["name"] == "process_name"]
    assert [name.split(" (")[0] for name in names] == [f"rank {number}" for number in sorted(ranks)]


def test_a_flow_goes_through_all_ranks_of_a_collective(run: Path, tmp_path: Path) -> None:
    exported(run, "--trace", str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = {(event["pid"], event["ts"]): event["args"]["Seq"] for event in of(events, "X")}
    flows: dict[int, Events] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event)
    assert flows
    for steps in flows.values():
        assert "".join(step["ph"] for step in steps) == "s" + "t" * (len(steps) - 2) + "f"
        assert len({slices[step["pid"], step["ts"]] for step in steps}) == 1
        assert len({step["pid"] for step in steps}) == len(steps)


def test_a_file_a_rank_begins_with_its_rank(run: Path, tmp_path: Path) -> None:
    exported(run, "--kineto", str(tmp_path / "each"))
    files = sorted((tmp_path / "each").iterdir())
    assert [file.name for file in files] == [f"rank_{number}.json" for number in range(4)]
    for number, file in enumerate(files):
        first = next(
            m
            for line in file.read_text().splitlines()
            if (m := re.search(r'"rank":\s+(\d+)', line))
        )
        assert int(first[1]) == number
        trace = json.loads(file.read_text())
        assert trace["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1, 2, 3]
        args = of(trace["traceEvents"], "X")[0]["args"]
        assert args["Process Group Ranks"] == "[0, 1, 2, 3]"
        assert {"Collective name", "In msg nelems", "Out msg nelems", "dtype"} <= set(args)


class OfSteps:
    """Replicas that were looked at after these steps, a millisecond apart."""

    group, key, axis, columns = ("0", ""), "", "", ()

    def __init__(self, began_ns: int, *steps: int) -> None:
        self._digests = [
            Digest((1, step), step, 0, began_ns + step * 1_000_000, None) for step in steps
        ]

    def digests(self) -> Sequence[Digest]:
        return self._digests

    def values(self, moment: tuple[int, int]) -> None:
        return None

    def samples(self, moment: tuple[int, int], column: object) -> Sequence[float]:
        return ()


def test_steps_that_are_on_record_have_kinetos_name(run: Path, tmp_path: Path) -> None:
    records = Records(run / "ranks")
    records.look()
    rank = newest_ranks(records.snapshots()[-1:])[0]
    assert rank.history is not None
    began_ns = rank.history.recent(10_000)[0].issued_ns
    stepped = replace(rank, replicas=(OfSteps(began_ns, 1), OfSteps(began_ns, 1, 2, 3, 5, 6)))
    write_each({0: stepped, 1: replace(rank, rank=1)}, tmp_path / "each")
    with_steps, without = (
        json.loads((tmp_path / "each" / f"rank_{number}.json").read_text())["traceEvents"]
        for number in (0, 1)
    )
    steps = [one for one in of(with_steps, "X") if one["cat"] == "user_annotation"]
    assert [(one["name"], one["ts"], one["dur"]) for one in steps] == [
        ("ProfilerStep#2", 1000, 1000),
        ("ProfilerStep#3", 2000, 1000),
        ("ProfilerStep#6", 5000, 1000),  # the fifth began nobody knows when
    ]
    assert len(of(without, "X")) == len(of(with_steps, "X")) - len(steps)


def test_the_picture_in_the_readme_is_of_such_a_trace() -> None:
    picture = Path(make_trace_picture.__file__).with_name("trace.svg")
    assert make_trace_picture.drawn(make_trace_picture.trace("straggler")) == picture.read_text()


def test_what_is_there_is_not_overwritten(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    assert main(["export", "--trace", str(there), str(run)]) == 2
    assert main(["export", "--kineto", str(tmp_path), str(run)]) == 2
    assert main(["export", "--trace", str(tmp_path / "none" / "t.json"), str(run)]) == 2
    assert there.read_text() == "mine"
    assert capsys.readouterr().err.count("distdebug: ") == 3
