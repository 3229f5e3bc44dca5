"""report.json: every field of the design, harmless strings, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding, GroupEvidence, Step
from distdebug.errors import UsageError
from distdebug.record.snapshot import Process
from distdebug.reports import stored
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast

from .documents import at, report

EVIL = "\x1b[2Jgone\nforged\u202e"


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def mismatch() -> Finding:
    return Finding(
        kind="op_mismatch",
        message="ranks disagree",
        culprits=(2,),
        victims=(0, 1, 3),
        group=GroupEvidence("0", "default_pg", (0, 1, 2, 3)),
        seq=17,
        ranks={
            2: at("called #17", "broadcast(src=0, float32[1024])", 91),
            0: at("called #17", "all_reduce(sum, float32[1024])", 88),
        },
        details=("they agree on #0 to #16",),
        data={"exact_seq": True},
    )


def test_every_field_of_the_design() -> None:
    run = Run(4)
    run.each(all_reduce(8))
    run[2].exits(signal=9)
    document = report([mismatch()], ranks=run.snapshot().ranks, stacks={2: ["step (train.py:91)"]})
    assert json.loads(json.dumps(document)) == document
    assert {key: document[key] for key in ("schema", "outcome", "exit_code", "world_size")} == {
        "schema": "distdebug.report/1",
        "outcome": "op_mismatch",
        "exit_code": 91,
        "world_size": 4,
    }
    assert document["duration_s"] == 12.1
    assert document["command"] == ["distdebug", "run", "-n", "4", "train.py"]
    assert document["run_dir"] == ".distdebug/20260310-141502-7f3a"
    (finding,) = document["findings"]
    wanted = {
        "kind": "op_mismatch",
        "severity": "error",
        "proven": True,
        "cause": None,
        "culprits": [2],
        "victims": [0, 1, 3],
        "missing": [],
        "group": {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3]},
        "seq": 17,
        "message": "ranks disagree",
        "detected_after_s": 0.123,
    }
    assert {key: finding[key] for key in wanted} == wanted
    assert finding["ranks"]["2"] == {
        "state": "called #17",
        "call": "broadcast(src=0, float32[1024])",
        "call_is": "all",
        "location": {"file": "/home/u/train.py", "line": 91, "function": "step"},
        "stack": ["step (train.py:91)"],
    }
    assert document["ranks"]["2"]["exit"] == {"code": None, "signal": 9}
    assert document["ranks"]["0"] == {
        "pid": 1000,
        "host": "node0",
        "exit": {"code": None, "signal": None},
        "calls": 1,
        "state": "runs user code",
        "call": None,
        "call_is": "last",
        "location": {"file": "/home/user/train.py", "line": 40, "function": "step"},
    }


def test_how_a_rank_ended_does_not_hide_where_it_stood() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True)
    stood = run.snapshot().ranks
    ended = Process(alive=False, signal=15, ended_ns=1)
    ends = {number: replace(rank, process=ended) for number, rank in stood.items()}
    ends[1] = replace(ends[1], pid=77)  # another process: it tells nothing of the first
    first, second = report(ranks=stood, ends=ends)["ranks"].values()
    assert first["exit"] == {"code": None, "signal": 15}
    assert (first["state"], first["call"]) == ("waits in", "all_reduce(sum, float32[8])")
    assert second["exit"] == {"code": None, "signal": None}


@pytest.mark.parametrize("world_size", [3, 0])
def test_a_rank_that_is_first_seen_after_the_verdict_is_in_the_report(world_size: int) -> None:
    """As those of a node that joins then: the report is of all ranks, and says where each was. Of
    a rank that died before it told how many there are, nobody knows the size of the world."""
    run = Run(3)
    run[0].calls(all_reduce(8), waits=True)
    ends = run.snapshot().ranks
    stood = {number: rank for number, rank in ends.items() if number < 2}
    document = report(ranks=stood, ends=ends, world_size=world_size)
    assert sorted(document["ranks"]) == ["0", "1", "2"]
    assert document["ranks"]["2"]["host"] == ends[2].host
    assert 2 in chain.from_iterable(document["hosts"].values())


def test_a_rank_of_a_later_and_larger_world_is_not() -> None:
    run = Run(3)
    ends = run.snapshot().ranks
    stood = {number: rank for number, rank in ends.items() if number < 2}
    assert sorted(report(ranks=stood, ends=ends, world_size=2)["ranks"]) == ["0", "1"]


def test_what_ranks_say_is_made_harmless() -> None:
    finding = replace(
        mismatch(),
        message=EVIL,
        cause=EVIL,
        details=(EVIL,),
        headline=EVIL,
        difference=EVIL,
        cycle=(Step(0, EVIL, 1, EVIL),),
        ranks={0: at(EVIL, EVIL, 1, EVIL, EVIL)},
        group=GroupEvidence(EVIL, EVIL, (0,)),
        data={EVIL: [EVIL, {"deep": (EVIL, float("nan"))}, Path("x")]},
    )
    text = json.dumps(report([finding], stacks={0: [EVIL]}, notes=[EVIL]))
    assert all(one.isprintable() for one in strings(json.loads(text)))
    assert "\\\\x1b[2Jgone\\\\x0aforged\\\\u202e" in text


def test_the_headline_leaves_out_what_the_table_shows() -> None:
    run = Run(3)
    run[0, 1].calls(all_reduce(8), waits=True)
    run[2].calls(broadcast(8, root=0), waits=True)
    (found,) = run.errors()
    (finding,) = report([found])["findings"]
    assert finding["headline"] == (
        'ranks disagree at collective #0 of group "default_pg" (3 ranks)'
    )
    assert finding["message"] == found.message


def test_a_sentence_that_looks_like_a_headline_is_none() -> None:
    """What another rank has put on record is not searched for the words of our own findings."""
    words = (
        'ranks disagree at collective #0 of group "a" (3 ranks): rank 1 skipped; rank 2 skipped x'
    )
    (finding,) = report([Finding("rank_exception", words, (1,))])["findings"]
    assert (finding["headline"], finding["difference"], finding["cycle"]) == (words, None, [])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "is not a report of distdebug: it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "is not a report of distdebug"),
        (b'{"schema": "else/1"}', "is not a report of distdebug"),
        (b'{"schema": "distdebug.report/9"}', "another version of distdebug (distdebug.report/9"),
        (b'{"schema": "distdebug.report/1", "outcome": 3}', "is damaged: outcome"),
    ],
)
def test_what_is_not_a_report_is_said_in_one_sentence(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        stored.load(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("finding", "says"),
    [
        ("x", "a finding is of another type"),
        ([None], "a finding is of another type"),
        ({"culprits": 3}, "culprits of a finding is missing or of another type"),
        ({"culprits": ["1"]}, "culprits of a finding has what is no rank"),
        ({"culprits": [10**400]}, "culprits of a finding has what is no rank"),
        ({"proven": None}, "proven of a finding is missing or of another type"),
    ],
)
def test_a_misshapen_finding_is_said_where_the_report_is_read(
    tmp_path: Path, finding: Any, says: str
) -> None:
    document = report([mismatch()])
    (found,) = document["findings"]
    document["findings"] = [{**found, **finding} if isinstance(finding, dict) else finding]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=says):
        stored.load(path)
    assert stored.received(json.loads(path.read_text())) is None


def test_a_rank_of_a_report_that_is_no_object_is_said(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**report([mismatch()]), "ranks": {"0": 3}}))
    with pytest.raises(UsageError, match="a rank is of another type"):
        stored.load(path)


def test_a_stored_report_is_made_harmless_again(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert stored.load(path) is None
    document = report([mismatch()])
    path.write_text(json.dumps(document))
    assert stored.load(path) == document
    document["findings"][0]["message"] = EVIL
    path.write_text(json.dumps(document))
    loaded = stored.load(path)
    assert loaded is not None
    assert loaded["findings"][0]["message"] == "\\x1b[2Jgone\\x0aforged\\u202e"
