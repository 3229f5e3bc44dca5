"""From a run directory to a picture: live, over, damaged, foreign, growing, vanished."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.reading.records import Records
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.tui.feed import Feed, _marks
from distdebug.tui.picture import Focus, Picture, Stage, State
from fixtures import recorded
from fixtures.make_run import START_NS, clock_of

from .driver import a_year_later, made

OVERVIEW = Focus()


@pytest.fixture(autouse=True)
def _each_look_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is full a diagnosis takes long, and not every look would make one."""
    monkeypatch.setattr("distdebug.tui.feed.SMALL_S", math.inf)


def look(path: Path, clock: Callable[[], int] = a_year_later, focus: Focus = OVERVIEW) -> Picture:
    """The second picture of a run: the first has nothing to compare with."""
    feed = Feed(path, print, clock)
    feed.look(focus)
    return feed.look(focus)


def words(picture: Picture) -> list[str]:
    return [picture.states[rank].value for rank in sorted(picture.states)]


@pytest.mark.parametrize(
    ("state", "expected", "kind", "culprits"),
    [
        ("mismatch", ["in a call"] * 4, "op_mismatch", (2,)),
        ("deadlock", ["waiting"] * 4, "deadlock", (0, 3, 2, 1)),
        ("died", ["waiting", "dead", "waiting", "waiting"], "rank_died", (1,)),
        ("nan", ["ended"] * 4, "nan", (1,)),
    ],
)
def test_a_run_that_is_over(
    tmp_path: Path, state: str, expected: list[str], kind: str, culprits: tuple[int, ...]
) -> None:
    picture = look(made(tmp_path, state).path)
    assert picture.stage is (Stage.ENDED if state == "nan" else Stage.KILLED)
    assert words(picture) == expected
    assert picture.verdict is not None
    assert (picture.verdict.kind, set(picture.verdict.culprits)) == (kind, set(culprits))
    assert picture.problem == ""


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    for state in ("healthy", "finished", "paused"):
        picture = look(made(tmp_path, state).path)
        assert picture.found == ()
        assert picture.notices == ()
    assert picture.states[0] is State.BREAKPOINT


def test_a_live_run(tmp_path: Path) -> None:
    directory = made(tmp_path, "mismatch", hold=True)
    clock = clock_of(directory)
    feed = Feed(directory.path, print, clock)
    first = feed.look(OVERVIEW)
    assert first.stage is Stage.LIVE
    assert first.verdict is None  # one look proves nothing
    second = feed.look(OVERVIEW)
    assert second.verdict is not None
    assert second.culprits == {2}
    directory.close()


def test_a_live_run_that_nobody_blames(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", hold=True)
    picture = look(directory.path, clock_of(directory))
    assert picture.found == ()
    assert picture.states[3] is State.LATE
    (notice,) = picture.notices
    assert notice.startswith("rank 3 is late for all_reduce")
    directory.close()


def test_what_the_supervisor_says_comes_first(tmp_path: Path) -> None:
    directory = made(tmp_path, "mismatch", hold=True)
    directory.append_event("notice", "rank 9 is \x1b[2Jlate")
    directory.append_event(
        "finding", "a NaN", finding="nan", severity="error", culprits=[3, "x"], details=[]
    )
    picture = look(directory.path, clock_of(directory))
    assert picture.verdict is not None
    assert (picture.verdict.kind, picture.verdict.culprits) == ("nan", (3,))
    assert len(picture.found) == 1
    directory.close()


def test_the_processes_of_a_copied_run_are_not_looked_for_here(tmp_path: Path) -> None:
    """Its pids are those of others on this host."""
    directory = made(tmp_path, "died")
    run = json.loads(directory.run_json.read_text())
    directory.write_json("run.json", {**run, "host": platform.node()})
    own = os.getpid().to_bytes(4, "little")
    for rank in range(4):
        with open(directory.flight(rank), "r+b") as file:
            file.seek(12)
            file.write(own)
    directory.exits.unlink()
    shutil.copytree(directory.path, tmp_path / "copy")
    picture = look(tmp_path / "copy")
    assert picture.stage is Stage.KILLED
    assert picture.states[0] is State.WAITING  # as it was at the end, not as our own pid is


def test_a_run_on_another_host_lives_by_its_heartbeats(tmp_path: Path) -> None:
    directory = made(tmp_path, "healthy")
    assert look(directory.path, clock_of(directory)).stage is Stage.LIVE
    assert look(directory.path, a_year_later).stage is Stage.KILLED


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"schema": "distdebug.run/9"}', "written by another version of distdebug"),
        ("not json", "run.json is not JSON"),
        (None, "has no run.json"),
    ],
)
def test_what_is_no_run_of_ours(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    picture = look(tmp_path)
    assert picture.stage is Stage.NOTHING
    assert problem in picture.problem
    assert look(tmp_path / "nowhere").problem.startswith("there is no run directory")


def test_damaged_records_are_told_and_the_others_are_shown(tmp_path: Path) -> None:
    directory = made(tmp_path, "healthy")
    directory.flight(0).write_bytes(b"DDFLIGHT" + (9).to_bytes(4, "little"))
    directory.flight(1).write_bytes(b"\x1b[2Jnonsense")
    os.truncate(directory.flight(2), 5000)
    picture = look(directory.path)
    assert sorted(picture.ranks) == [3]
    assert sorted(fault.split(": ", 1)[1][:24] for fault in picture.faults) == [
        "is a flight record of ve",
        "is not a flight record o",
        "is truncated: 5000 of 27",
    ]
    assert picture.states[0] is State.UNSEEN


def test_a_record_that_shrinks_while_it_is_mapped(tmp_path: Path) -> None:
    directory = made(tmp_path, "healthy")
    feed = Feed(directory.path, print, a_year_later)
    assert len(feed.look(OVERVIEW).ranks) == 4
    os.truncate(directory.flight(2), 5000)  # reading what is mapped beyond would be SIGBUS
    picture = feed.look(Focus("rank", 2))
    assert sorted(picture.ranks) == [0, 1, 2, 3]  # as it was seen last
    assert picture.ranks[2].calls == picture.ranks[3].calls
    assert picture.detail is not None
    assert picture.detail.calls == ()
    assert "is truncated" in picture.faults[0]


@pytest.mark.parametrize("state", ["mismatch", "healthy"])
def test_a_rule_that_fails_costs_only_itself(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def departures(*_: object) -> None:
        raise KeyError("a table that nobody has filled")

    directory = made(tmp_path, state)
    known = look(directory.path)
    assert known.faults == ()
    monkeypatch.setattr("distdebug.diagnosis.diagnose.departures", departures)
    picture = look(directory.path)
    assert (picture.problem, words(picture)) == ("", words(known))
    assert [found.kind for found in picture.found] == [found.kind for found in known.found]
    (fault,) = picture.faults
    assert fault.startswith("rule departures failed, a bug of distdebug's (KeyError: ")


def test_a_world_size_that_cannot_be(tmp_path: Path) -> None:
    directory = made(tmp_path, "healthy")
    with open(directory.flight(2), "r+b") as file:
        file.seek(20)
        file.write((2**31 - 1).to_bytes(4, "little"))
    assert sorted(look(directory.path).states) == [0, 1, 2, 3]


def test_other_files_may_hold_anything(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")
    for name in ("events.jsonl", "exits.jsonl", "host.jsonl", "report.json", "stacks/stacks.json"):
        (directory.path / name).write_text('{"ranks": 3, "findings": 4}\n[1]\n"x"\n{"pid": "a"}\n')
    for view in ("overview", "collectives", "rank", "stacks", "waits"):
        picture = look(directory.path, focus=Focus(view, 1))
        assert picture.problem == ""
        assert len(picture.ranks) == 4


def test_a_directory_that_grows(tmp_path: Path) -> None:
    whole = made(tmp_path, "finished")
    path = tmp_path / "copy"
    shutil.copytree(whole.path, path, ignore=shutil.ignore_patterns("*.flight", "report.json"))
    feed = Feed(path, print, a_year_later)
    assert feed.look(OVERVIEW).states == {}
    target = path / "ranks" / "1.flight"
    data = whole.flight(1).read_bytes()
    target.write_bytes(data[:9000])
    assert "is truncated" in feed.look(OVERVIEW).faults[0]
    target.write_bytes(data)  # the file grows, the directory itself does not change
    picture = feed.look(OVERVIEW)
    assert sorted(picture.ranks) == [1]
    assert picture.faults == ()
    shutil.copy(whole.report_json, path)
    assert feed.look(OVERVIEW).outcome == "ok"


def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")
    feed = Feed(directory.path, print, a_year_later)
    assert feed.look(OVERVIEW).stage is Stage.KILLED
    shutil.rmtree(directory.path)
    picture = feed.look(OVERVIEW)
    assert picture.stage is Stage.GONE
    assert "no longer there" in picture.problem
    assert len(picture.ranks) == 4


def test_a_run_that_is_over_is_read_once_until_something_changes(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")
    feed = Feed(directory.path, print, a_year_later)
    assert feed.look_if_changed() is not None
    assert feed.look_if_changed() is not None  # it may have ended during the first
    assert feed.look_if_changed() is None
    feed.show(Focus("waits"))
    changed = feed.look_if_changed()
    assert changed is not None
    assert changed.focus.view == "waits"
    directory.append_event("notice", "x")
    assert feed.look_if_changed() is not None
    assert feed.look_if_changed() is None


@pytest.mark.parametrize("state", ["late", "deadlock", "died", "nan"])
def test_another_screen_of_a_run_that_is_over_is_another_view_of_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    directory = made(tmp_path, state)
    feed = Feed(directory.path, print, a_year_later)
    feed.look(OVERVIEW, brief=True, marks=_marks(directory.path))  # as the thread begins
    screens = [OVERVIEW, *(Focus(view) for view in ("collectives", "stacks", "waits"))]
    screens.append(Focus("rank", 1))
    fresh = [Feed(directory.path, print, a_year_later).look(focus) for focus in screens]
    monkeypatch.setattr(Records, "look", _not_again)
    for focus, expected in zip(screens, fresh, strict=True):
        feed.show(focus)
        shown = feed.look_if_changed()
        assert shown is not None
        assert sorted(shown.ranks) == sorted(expected.ranks)
        assert replace(shown, ranks={}) == replace(expected, ranks={})


def _not_again(*_: object, **__: object) -> None:
    raise AssertionError("the records were read again")


def test_a_run_that_is_over_is_judged_again_when_its_files_change(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")
    feed = Feed(directory.path, print, a_year_later)
    before = feed.look(OVERVIEW, brief=True, marks=_marks(directory.path))
    assert before.verdict is None
    status = {"pid": 4003, "status": int(signal.SIGKILL), "time_ns": before.now_ns - 2 * 10**9}
    directory.append_line("exits.jsonl", status)
    after = feed.look_if_changed()
    assert after is not None
    assert after.verdict is not None
    assert after.verdict.kind == "rank_died"


def test_the_thread_posts_and_stops(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")
    came = threading.Event()
    feed = Feed(directory.path, lambda _: came.set(), a_year_later)
    feed.start()
    assert came.wait(20)
    feed.stop()
    assert feed._thread is not None
    feed._thread.join(20)
    assert not any(one.name == "distdebug-feed" for one in threading.enumerate())


def test_what_a_rank_says_cannot_reach_the_terminal(tmp_path: Path) -> None:
    directory = made(tmp_path, "healthy")
    data = directory.flight(0).read_bytes()
    evil = data.replace(b"/home/user/train.py", b"/home/us/\\u001b[2Jy")
    assert len(evil) == len(data)
    directory.flight(0).write_bytes(evil)
    picture = look(directory.path, focus=Focus("rank", 0))
    row = picture.rows[0]
    assert "\x1b" not in row.site
    assert "[2J" in row.site
    assert picture.detail is not None
    shown = [line.text for lines in picture.detail.logs.values() for line in lines]
    assert any("UserWarning" in text for text in shown)
    assert not any("\x1b" in text or "\x07" in text for text in shown)


def test_progress_and_usage(tmp_path: Path) -> None:
    picture = look(made(tmp_path, "healthy").path)
    row = picture.rows[1]
    assert (row.progress.step, row.progress.loss) == ("16", "0.1111")
    assert (row.usage.cpu_percent, row.usage.rss_bytes) == (95.0, 701 << 20)
    assert (row.lag, picture.rows[0].lag) == (0, 1)


def test_a_made_record_is_as_small_as_it_says(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", 64)
    blocks = sum(os.stat(directory.flight(rank)).st_blocks for rank in range(64))
    assert blocks * 512 / 64 < 64 << 10
    assert os.stat(directory.flight(5)).st_size == layout.FILE_BYTES
    assert look(directory.path).started_ns == START_NS


def test_a_run_without_a_supervisor(tmp_path: Path) -> None:
    directory = made(tmp_path, "died")
    run = json.loads(directory.run_json.read_text())
    RunDirectory(directory.path).write_json("run.json", {**run, "supervised": False})
    picture = look(directory.path)
    assert picture.stage is Stage.ENDED
    assert not picture.supervised


@pytest.mark.parametrize(
    ("outcome", "state"), [("interrupted", State.ENDED), ("failed", State.DEAD)]
)
def test_ranks_of_a_run_that_its_user_has_stopped_have_ended(
    tmp_path: Path, outcome: str, state: State
) -> None:
    run = recorded.unpack("died", tmp_path / "run").path
    report = json.loads((run / "report.json").read_text())
    report |= {"outcome": outcome, "findings": []}
    (run / "report.json").write_text(json.dumps(report))
    states = Feed(run, lambda _: None, a_year_later).look(Focus()).states
    assert states[1] is state
