"""The supervisor reads what ranks did of a plan as it comes, whatever else stands in the file."""

from __future__ import annotations

import json
from pathlib import Path

from distdebug.faults import injected
from distdebug.faults.injected import FaultWatch, InjectedLog
from distdebug.faults.plan import FILE, Fault, Moment, Plan, When


def write_plan(directory: Path, *texts: str) -> None:
    faults = [
        Fault(number, text, "kill", (1,), Moment(When.CALL)) for number, text in enumerate(texts)
    ]
    temporary = directory / "new"
    temporary.write_text(json.dumps(Plan(tuple(faults)).to_json()))
    temporary.rename(directory / FILE)


def test_each_line_comes_once(tmp_path: Path) -> None:
    watch = FaultWatch(tmp_path)
    assert watch.look() == []
    log = InjectedLog(tmp_path, 1)
    log.add(0, "call 5", file="train.py", line=3)
    (first,) = watch.look()
    assert (first.fault, first.rank, first.where, first.line) == (0, 1, "call 5", 3)
    assert watch.look() == []
    log.refuse(1, "not here")
    (second,) = watch.look()
    assert (second.fault, second.refused) == (1, "not here")
    assert watch.entries == [first, second] == FaultWatch(tmp_path).look()


def test_a_line_that_is_not_whole_comes_later(tmp_path: Path) -> None:
    watch = FaultWatch(tmp_path)
    InjectedLog(tmp_path, 1).add(0, "call 5")
    path = tmp_path / injected.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert watch.look() == []
    path.write_bytes(whole)
    assert len(watch.look()) == 1


def test_other_lines_are_left_out(tmp_path: Path) -> None:
    good = b'{"fault": 0, "rank": 1, "pid": 2, "time_ns": 3, "where": "call 5"}'
    lines = [
        b"nonsense",
        b"[]",
        b'{"fault": 0}',
        good.replace(b'"call 5"', b"7"),
        good.replace(b'"rank": 1', b'"rank": "1"'),
        good[:-1] + b', "more": 1}',
        good[:-1] + b', "refused": null}',
        b"\xff\xfe" + good,
        good,
    ]
    (tmp_path / injected.FILE).write_bytes(b"\n".join(lines) + b"\n")
    assert [one.where for one in FaultWatch(tmp_path).look()] == ["call 5"]


def test_a_flood_is_read_in_parts(tmp_path: Path) -> None:
    log = InjectedLog(tmp_path, 1)
    for fault in range(50):
        log.add(fault, "x" * 50)
    path = tmp_path / injected.FILE
    path.write_bytes(b"y" * 3000 + b"\n" + path.read_bytes())
    before, injected.MOST_BYTES = injected.MOST_BYTES, 1000
    try:
        watch = FaultWatch(tmp_path)
        for _ in range(100):
            watch.look()
    finally:
        injected.MOST_BYTES = before
    assert [one.fault for one in watch.entries] == list(range(50))


def test_the_plan_may_grow(tmp_path: Path) -> None:
    watch = FaultWatch(tmp_path)
    watch.look()
    assert watch.plan is None
    assert watch.text_of(0) == "fault 0"
    write_plan(tmp_path, "kill(rank=1)")
    watch.look()
    assert watch.text_of(0) == "kill(rank=1)"
    write_plan(tmp_path, "kill(rank=1)", "kill(rank=1) @ call 7")
    watch.look()
    assert watch.text_of(1) == "kill(rank=1) @ call 7"
    (tmp_path / FILE).write_text("{")
    watch.look()
    assert watch.plan is not None
    assert len(watch.plan.faults) == 2
