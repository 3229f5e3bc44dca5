"""What lies beside the flight records: samples with and without a GPU, logs, progress."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.commands import foreign_report
from distdebug.diagnosis.facts.blocking import Model
from distdebug.errors import UsageError
from distdebug.plan.conclusion import PlanFacts, conclude
from distdebug.plan.program import Undecided
from distdebug.record.log_file import readable
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import CallSite
from distdebug.tui.files import (
    Events,
    HostSamples,
    RankLogs,
    found_in_report,
    source_of,
    stacks_of,
    told_in_report,
)
from distdebug.tui.picture import Progress, Source, State, Usage
from tests.support.programs import FILE, Programs
from tests.support.runs import DISTDEBUG
from tests.support.tmux import Terminal, needs_tmux
from tests.unit.diagnosis.builder import all_reduce

from .driver import a_year_later, opened


def test_the_newest_sample(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    samples = HostSamples(path)
    samples.poll()
    assert samples.by_rank == {}
    gpu = {"index": 0, "use_percent": 77, "memory_bytes": 9, "ranks": {"1": 5 << 30}}
    rows = {"0": {"cpu_percent": None, "rss_bytes": 7, "threads": 2}, "1": {"cpu_percent": 3.5}}
    with open(path, "w") as file:
        file.write(json.dumps({"ranks": {"0": {"cpu_percent": 1}}}) + "\n")
        file.write(json.dumps({"ranks": rows, "gpus": [gpu]}) + '\n{"ranks": {"9"')
    samples.poll()
    assert samples.by_rank == {
        0: Usage(None, 7, 2),
        1: Usage(3.5, None, None, 77, 5 << 30),
    }


def test_a_sample_of_very_many_ranks(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    ranks = {str(rank): {"cpu_percent": 1.0, "state": "S" * 80} for rank in range(5000)}
    path.write_text(json.dumps({"ranks": ranks}) + "\n")
    samples = HostSamples(path)
    samples.poll()
    assert len(samples.by_rank) == 5000


@pytest.mark.parametrize("value", [3, [], {"0": 4}, {"x": {}}, None])
def test_samples_of_another_shape(tmp_path: Path, value: object) -> None:
    path = tmp_path / "host.jsonl"
    path.write_text(json.dumps({"ranks": value, "gpus": value}) + "\n")
    samples = HostSamples(path)
    samples.poll()
    assert samples.by_rank == {}


def test_progress_is_what_was_logged_last(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path)
    assert logs.progress(0) == Progress()
    path = tmp_path / "0.jsonl"
    path.write_text('{"step": 1, "loss": 0.25}\n{"step": 2}\n{"event": "x"}\n{"step": 3, "lo')
    assert logs.progress(0) == Progress("2", "0.25")
    with open(path, "a") as file:
        file.write('ss": "n\\u001ban"}\n')
    assert logs.progress(0) == Progress("3", "n\\x1ban")
    path.write_text("nothing\n" * 1000)
    assert logs.progress(0) == Progress("3", "n\\x1ban")


def test_log_lines(tmp_path: Path) -> None:
    (tmp_path / "2.out").write_bytes(b" 10%\r 90%\r100%\nlast\xff")
    slow = {"time_ns": 5, "level": "warning", "event": "slow", "rank": 2, "host": "n", "ms": 7}
    bad = {"time_ns": 9, "level": "error", "event": "x", "rank": 2, "exception": "A\n\x1bB: \tc"}
    text = f'{json.dumps(slow)}\nfree text\n{{"time_ns": 6, "to{json.dumps(bad)}\n'
    (tmp_path / "2.jsonl").write_text(text.replace('{"time_ns": ', '{"time_ns":'))
    lines = RankLogs(tmp_path).lines(2)
    assert [line.text for line in lines["stdout"]] == ["100%", "last\\xff"]
    assert lines["stderr"] == ()
    first, second = lines["log"]  # what is no record is left out, as `distdebug logs` does
    assert (first.level, first.text, first.below) == ("warning", readable(slow), ())
    assert first.text.startswith("[n:2] ")
    assert first.text.endswith(" warning slow ms=7")
    assert (second.level, second.text) == ("error", readable(bad).splitlines()[0])
    assert second.below == ("    A", "    \\x1bB:  c")


def test_events_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    events.poll()
    path.write_text('{"kind": "notice", "time_ns": 3, "message": "a"}\n{"kind": "finding", "find')
    events.poll()
    assert (events.notices, events.found) == ([(3, "a")], [])
    with open(path, "a") as file:
        file.write('ing": "nan", "culprits": [1], "message": "b", "severity": "error"}\n[]\n')
    events.poll()
    (found,) = events.found
    assert (found.kind, found.culprits, found.told_by) == ("nan", (1,), "supervisor")


@pytest.mark.parametrize("document", [{}, {"findings": 3}, {"findings": [3, None]}])
def test_a_report_without_findings(document: dict[str, object]) -> None:
    assert found_in_report(document) == []


def test_stacks_of_another_shape() -> None:
    thread = {
        "name": 3,
        "ranks": "x",
        "tree": [4, {"frames": [{"function": "f"}, 5], "ranks": [1]}],
    }
    stacks = stacks_of({"threads": [1, thread], "problems": 7}, 9)
    ((name, ranks, (node,)),) = stacks.threads
    assert (name, ranks, node.frames, node.ranks) == ("3", (), ("f ()",), (1,))
    assert stacks_of({"threads": 3}, 0).threads == ()


def test_a_tree_that_never_ends() -> None:
    node: dict[str, object] = {"ranks": [0], "frames": [], "children": []}
    top = node
    for _ in range(5000):
        node = {"ranks": [0], "frames": [], "children": [node]}
    assert stacks_of({"threads": [{"name": "a", "ranks": [0], "tree": [node]}]}, 0).threads
    assert top["frames"] == []


FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


def dumps_of(case: str, into: Path) -> Path:
    """The recorded dumps of a program on stock gloo, 2.13."""
    with tarfile.open(FIXTURES / "recorded" / "gloo_dumps.tar.xz") as packed:
        for member in packed:
            if member.name.rpartition("/")[0].endswith(f"213/{case}"):
                packed.extract(member, into, filter="data")
    (folder,) = {file.parent for file in into.rglob("rank_*")}
    return folder


# -- dumps ---------------------------------------------------------------------------------------


def test_dumps_are_shown_with_their_verdict_and_the_calls(tmp_path: Path) -> None:
    folder = dumps_of("missing_in_subgroup", tmp_path)
    culprits = foreign_report.judged(folder).document["findings"][0]["culprits"]
    assert culprits

    async def check(path: Path) -> None:
        async with opened(path, a_year_later, (120, 30)) as driver:
            picture = driver.app.picture
            assert picture.source is Source.DUMPS
            assert f"torch's flight recorder: {folder}" in driver.text or folder.name in driver.text
            assert "MISSING RANK, exit code 93" in driver.text
            assert picture.culprits == frozenset(culprits)
            states = {rank: picture.states[rank] for rank in picture.states}
            waiting = [rank for rank, state in states.items() if state is State.WAITING]
            assert waiting
            assert not set(waiting) & set(culprits)
            assert all(states[rank] is State.LATE for rank in culprits)
            for rank in waiting:
                assert "missing_in_subgroup.py:" in picture.rows[rank].site
                assert picture.rows[rank].words.startswith("waits for ")
            assert "read from 4 flight recorder dumps" in driver.text
            await driver.press("c")
            assert "■" in driver.text
            await driver.press("r", "o", "t")
            assert "dumps do not say when calls ended" in driver.text
            await driver.press("w", "d")
            assert driver.app.guard.kept == {}

    with foreign_report.as_run(folder) as path:
        asyncio.run(check(path))
        assert path.exists()
    assert not path.exists()


def test_dumps_of_a_correct_job_accuse_nobody(tmp_path: Path) -> None:
    async def check(path: Path) -> None:
        async with opened(path, a_year_later, (120, 30)) as driver:
            picture = driver.app.picture
            assert picture.found == ()
            assert picture.outcome == "ok"
            assert State.LATE not in picture.states.values()
            assert State.DEAD not in picture.states.values()

    with foreign_report.as_run(dumps_of("local_sync_groups/end", tmp_path)) as path:
        asyncio.run(check(path))


def test_every_recorded_case_has_the_culprits_of_its_report(tmp_path: Path) -> None:
    """What the app says of itself never contradicts the report: no culprit waits for a rank that
    is not one, unless it is in a call that others have made otherwise."""
    cases = ("exit_one_step_fewer", "missing_two_ranks", "op_subgroup", "unsorted_group/end")
    for case in cases:
        folder = dumps_of(case, tmp_path / case)
        report = foreign_report.judged(folder).document

        async def check(path: Path, report: dict[str, Any] = report) -> None:
            async with opened(path, a_year_later) as driver:
                picture = driver.app.picture
                assert picture.outcome == report["outcome"]
                assert sorted(picture.ranks) == sorted(map(int, report["ranks"]))
                for rank, told in report["ranks"].items():
                    row = picture.rows[int(rank)]
                    assert row.call.startswith(str(told["call"]).partition("(")[0])
                    waits = told["state"] == "waits in"
                    assert (int(rank) in picture.waits.rows) is waits

        with foreign_report.as_run(folder) as path:
            asyncio.run(check(path))


def test_dumps_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"\x80\x04cposix\nsystem\n.")
    with pytest.raises(UsageError, match="rank_0"), foreign_report.as_run(tmp_path):
        pass
    done = subprocess.run(
        [str(DISTDEBUG), "tui", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("distdebug: ")
    assert done.stderr.count("\n") == 1
    assert "rank_0" in done.stderr


def test_dumps_for_which_there_is_no_room_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dumps_of("op_subgroup", tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # a record is larger
    try:
        with pytest.raises(UsageError, match="cannot be written"), foreign_report.as_run(folder):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(temporary.iterdir()) == []


@needs_tmux
def test_dumps_in_a_terminal_leave_nothing_behind(tmp_path: Path) -> None:
    folder = dumps_of("op_subgroup", tmp_path / "dumps")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["env", f"TMPDIR={temporary}", str(DISTDEBUG), "tui", str(folder)]
    work = tmp_path / "work"
    (work / ".distdebug").mkdir(parents=True, mode=0o700)
    with Terminal(command, work, (120, 30)) as terminal:
        terminal.until(" ENDED ", "MISMATCH", "▸2")
        assert list(temporary.glob("distdebug-*"))
        terminal.press("q")
        terminal.until("CODE 0")
    assert list(temporary.glob("distdebug-*")) == []
    assert list((work / ".distdebug").iterdir()) == []  # no link to the newest run


# -- a plan --------------------------------------------------------------------------------------

FACTS = PlanFacts(["distdebug", "plan", "-n", "6", "train.py"], of=6, cores=2, seconds=2.0)
PLAN: dict[str, Any] = {"undecided": [], "classes": [], "plan": {"unknown": []}}


def planned(folder: Path, missing: int | None, undecided: int) -> RunDirectory:
    """Six ranks make three collectives; a rank leaves out the last one; so many places hang on
    values that the plan does not have."""
    made = Programs(6)
    for rank in range(6):
        for _ in range(2 if rank == missing else 3):
            made[rank].makes(all_reduce(8))
    made.end()
    places = [CallSite(FILE, 40 + at, "train") for at in range(undecided)]
    said = tuple(Undecided(place, "a comparison of loss.item()") for place in places)
    programs = {rank: replace(one, undecided=said) for rank, one in made.programs().items()}
    directory = RunDirectory.create(folder / "base", folder / "run")
    conclude(directory, programs, Model(), FACTS)
    directory.close()
    return directory


def test_a_plan_tells_what_is_undecided_and_who_does_the_same(tmp_path: Path) -> None:
    directory = planned(tmp_path, missing=4, undecided=3)

    async def check() -> None:
        async with opened(directory.path, a_year_later, (100, 30)) as driver:
            picture = driver.app.picture
            assert picture.source is Source.PLAN
            assert picture.verdict is not None
            assert picture.verdict.culprits == (4,)
            for rank in (0, 1, 2, 3, 5):
                assert picture.states[rank] is State.WAITING
                assert picture.rows[rank].words == "waits for 4"
                assert picture.rows[rank].since_ns == 0
            where = "a comparison of loss.item() at train.py"
            assert f"undecided: {where}:40 in train (ranks 0-5)" in driver.text
            assert f"undecided: {where}:41 in train (ranks 0-5)" in driver.text
            assert "train.py:42" not in driver.text
            assert (
                "alike: ranks 0-3,5 as rank 0 make 3 calls each; rank 4 makes 2 calls"
                in driver.text
            )
            assert "and 1 more; d shows all" in driver.text
            await driver.press("d")
            assert f"undecided: {where}:42 in train (ranks 0-5)" in driver.text
            assert driver.app.guard.kept == {}

    asyncio.run(check())


def test_a_plan_in_which_nothing_is_wrong_has_ranks_that_finished(tmp_path: Path) -> None:
    directory = planned(tmp_path, missing=None, undecided=0)

    async def check() -> None:
        async with opened(directory.path, a_year_later, (100, 30)) as driver:
            picture = driver.app.picture
            assert picture.found == ()
            assert set(picture.states.values()) == {State.FINISHED}
            assert "undecided" not in driver.text
            assert "alike: ranks 0-5 as rank 0 make 3 calls each" in driver.text

    asyncio.run(check())


@pytest.mark.parametrize("wide", [True, False])
def test_a_plan_has_its_table_of_traffic_among_the_details(tmp_path: Path, wide: bool) -> None:
    directory = planned(tmp_path, missing=None, undecided=0)
    rows = ["calls and bytes in the whole run", f"  default_pg {' ' * 60} all_reduce   24 B"]
    directory.traffic_text.write_text("\n".join(rows) + "\n")

    async def check() -> None:
        async with opened(directory.path, a_year_later, (120 if wide else 60, 30)) as driver:
            assert "and calls, bytes and times by group and op; d shows all" in driver.text
            assert "24 B" not in driver.text
            await driver.press("d")
            assert rows[0] in driver.text
            assert (rows[1] in driver.text) is wide
            assert "24 B" in driver.text
            assert driver.app.guard.kept == {}

    asyncio.run(check())


def test_a_run_tells_none_of_it() -> None:
    run = {key: value for key, value in PLAN.items() if key != "plan"} | {"notes": ["a note"]}
    assert source_of(run) is Source.RUN
    assert told_in_report(run) == ()


@pytest.mark.parametrize("wrong", [None, 3, "text", [3], [None], [{}], {"a": 1}, [{"ranks": "x"}]])
def test_a_plan_with_damaged_fields_is_told_to_be_damaged(wrong: object) -> None:
    for name in ("undecided", "classes"):
        told_in_report({**PLAN, name: wrong})
    told_in_report({**PLAN, "plan": {"unknown": wrong}})
    hostile = {"file": "/a/\x1b[2J.py", "line": "\x1b", "function": [], "what": "\x1b]0;x\a"}
    hostile["ranks"] = [1]
    (first, *_) = told_in_report({**PLAN, "undecided": [hostile]})
    assert first.text.isprintable()
    assert told_in_report({"source": "flight_recorder", "notes": wrong}) is not None
