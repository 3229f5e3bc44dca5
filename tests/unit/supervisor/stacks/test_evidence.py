"""Where an absent rank stands, whose main thread waits for another one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from distdebug.diagnosis.findings import Finding, RankEvidence
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import CallSite
from distdebug.record.wording import RankState
from distdebug.supervisor.several_nodes import JobRanks
from distdebug.supervisor.stacks.evidence import Evidence, keep
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack
from distdebug.system.threads import Asleep

FILE = "/home/user/train.py"
THREADING = "/usr/lib/python3.11/threading.py"
MAIN = ThreadStack(
    1,
    1,
    "MainThread",
    False,
    False,
    (Frame("Thread.join", THREADING, 1119), Frame("main", FILE, 30)),
)
WORKER = ThreadStack(
    2,
    2,
    "Thread-1 (step)",
    False,
    True,
    (Frame("crunch", FILE, 9), Frame("step", FILE, 14), Frame("Thread.run", THREADING, 982)),
)
OTHER = ThreadStack(3, 3, "Thread-2 (log)", False, False, (Frame("log", FILE, 40),))


def refined(
    line: int, function: str, *threads: ThreadStack, pids: Mapping[int, int] | None = None
) -> Finding:
    """`line`, `function`: where the rank says that it stands."""
    site = CallSite(FILE, line, function)
    late = Finding(
        "missing_rank",
        f"suspected: rank 1 has not come; rank 1: {RankState.RUNS}",
        (1,),
        (0,),
        cause="user_code",
        ranks={1: RankEvidence(RankState.RUNS, None, site)},
        proven=False,
    )
    return Evidence({1: threads}, pids or {}).refine(late)


@pytest.mark.parametrize(
    "frame",
    [
        MAIN.frames[0],
        Frame("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451),
        Frame("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1884),
    ],
)
def test_it_is_where_the_thread_stands(frame: Frame) -> None:
    main = replace(MAIN, frames=(frame, MAIN.frames[1]))
    found = refined(8, "crunch", main, OTHER, WORKER)
    assert found.ranks[1].location == CallSite(FILE, 9, "crunch")
    assert found.ranks[1].stack[:2] == ("crunch (train.py:9)", "step (train.py:14)")
    assert found.ranks[1].thread == "Thread-1 (step)"
    assert found.cause == "user_code"


def test_the_thread_has_gone_on_since() -> None:
    """What the rank has said is newer than nothing."""
    found = refined(20, "save", MAIN, OTHER, WORKER)
    assert found.ranks[1].location == CallSite(FILE, 20, "save")


@pytest.mark.parametrize(
    ("innermost", "cause"),
    [
        (Frame("acquire_batch", FILE, 31), "user_code"),
        (Frame("step", "/home/user/task_queue.py", 31), "user_code"),
        (Frame("Condition.wait", THREADING, 327), "lock"),
        (Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171), "lock"),
    ],
)
def test_a_lock_is_what_waits_for_one_and_not_what_is_called_so(
    innermost: Frame, cause: str
) -> None:
    main = replace(MAIN, frames=(innermost, Frame("main", FILE, 30)))
    found = refined(30, "main", main)
    assert found.cause == cause
    assert (RankState.WAITS_FOR_LOCK in found.message) is (cause == "lock")


def test_a_main_thread_that_joins_nobody_stands_for_itself() -> None:
    main = replace(MAIN, frames=(Frame("main", FILE, 31),))
    found = refined(30, "main", main, WORKER)
    assert (found.ranks[1].location, found.ranks[1].thread) == (CallSite(FILE, 31, "main"), "")


def test_the_words_name_the_line_that_the_stack_shows() -> None:
    """What holds its GIL has last said where it stands some lines before that."""
    main = replace(MAIN, holds_gil=True, frames=(Frame("main", FILE, 31),))
    before, now = CallSite(FILE, 30, "main"), CallSite(FILE, 31, "main")
    late = Finding(
        "missing_rank",
        "suspected: rank 1 has not come, while rank 0 waits; rank 1: something holds its GIL at "
        "train.py:30 in main",
        (1,),
        (0,),
        cause="gil_held",
        ranks={
            1: RankEvidence(RankState.RUNS, None, before),
            0: RankEvidence("waits in", None, before),
        },
        proven=False,
    )
    found = Evidence({1: (main,)}).refine(late)
    assert found.message.endswith("rank 1: something holds its GIL at train.py:31 in main")
    assert (found.ranks[1].location, found.ranks[0].location) == (now, before)
    same = Evidence({1: (main,)}).refine(found)
    assert same.message == found.message


def test_a_thread_that_waits_in_a_call_is_not_what_the_rank_names() -> None:
    found = refined(30, "main", MAIN, WORKER)
    assert found.ranks[1].location == CallSite(FILE, 30, "main")
    assert found.cause == "lock"


def test_ranks_are_told_without_waiting_for_a_busy_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand in their calls until the verdict is there; a report may take its time."""
    directory = RunDirectory.create(tmp_path / "runs")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    keep(directory, {1: (MAIN,)}, [], took_s=0.1)
    late = Finding("missing_rank", "suspected: rank 1 has not come", (1,), (0,), proven=False)
    assert JobRanks(Mock(), Mock(head=None), directory).tell(late)
    assert (synced, directory.verdict.exists(), directory.stacks_text.exists()) == ([], True, True)
    directory.write_json(directory.report_json.name, {})
    assert len(synced) == 1


@pytest.mark.parametrize(("threads", "name"), [((OTHER, WORKER), "Thread-2 (log)"), ((), "")])
def test_the_thread_that_is_in_the_call(threads: tuple[ThreadStack, ...], name: str) -> None:
    """Where the main one is at that line, it counts."""
    main = replace(MAIN, frames=(Frame("log", FILE, 30 if threads else 40),))
    ranks = {1: RankEvidence("waits in", "barrier()", CallSite(FILE, 40, "log"))}
    finding = Finding("op_mismatch", "ranks disagree", (1,), (0,), ranks=ranks)
    found = Evidence({1: (main, OTHER, *threads)}).refine(finding)
    assert found.ranks[1].thread == name


@pytest.mark.parametrize("pids", [{1: 70}, {}])
def test_a_rank_that_waits_for_its_child(
    pids: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on this host is named, with where it stands."""
    child = ("its child 71 (pt_data_worker)", ["load (data.py:9)", "fetch (data.py:3)"])
    asked = Mock(return_value=child)
    monkeypatch.setattr("distdebug.supervisor.stacks.evidence.awaited_child", asked)
    found = refined(30, "main", MAIN, pids=pids)
    waits = "waits for its child 71 (pt_data_worker)"
    assert found.message.endswith(f"rank 1: {waits}") is bool(pids)
    assert (found.ranks[1].state == waits) is bool(pids)
    said = f"rank 1 {waits}: load (data.py:9); fetch (data.py:3)"
    assert (said in found.details) is bool(pids)


def test_several_ranks_that_wait_for_a_child_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them waits for which is said below the message."""
    children = {70: ("its child 71 (ffmpeg)", ["wait"]), 80: ("its child 81 (ffmpeg)", ["wait"])}
    asked = Mock(side_effect=lambda pid, *_: children[pid])
    monkeypatch.setattr("distdebug.supervisor.stacks.evidence.awaited_child", asked)
    message = "suspected: no rank is in a call, and nothing has moved for 60 s: ranks 0,1: asleep"
    ranks = {rank: RankEvidence("asleep") for rank in (0, 1)}
    finding = Finding("stalled", message, (0, 1), proven=False, ranks=ranks)
    found = Evidence({0: (MAIN,), 1: (MAIN,)}, {0: 70, 1: 80}).refine(finding)
    assert found.message == message
    assert [line for line in found.details if "child" in line] == [
        "rank 0 waits for its child 71 (ffmpeg): wait",
        "rank 1 waits for its child 81 (ffmpeg): wait",
    ]


@pytest.mark.parametrize(
    ("asleep", "holder", "said"),
    [
        (
            Asleep(awaits="/data/x.lock"),
            70,
            "waits for the lock on /data/x.lock, which rank 0 holds",
        ),
        (Asleep(awaits="/data/x"), None, "waits for /data/x"),
        (Asleep(), None, "sleeps in rpc_wait_bit_killable (kernel)"),
        (Asleep(wakes_in_s=9.0), None, None),
    ],
)
def test_what_the_kernel_tells_of_a_sleep(
    asleep: Asleep, holder: int | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "distdebug.supervisor.stacks.evidence"
    monkeypatch.setattr(f"{module}.awaited_child", lambda *_: None)
    monkeypatch.setattr(f"{module}.asleep_in", lambda *_: asleep)
    monkeypatch.setattr(f"{module}.lock_holders", lambda: {80: holder} if holder else {})
    main = replace(MAIN, frames=MAIN.frames[1:], wait="rpc_wait_bit_killable")
    details = refined(30, "main", main, pids={0: 70, 1: 80}).details
    assert [line for line in details if line.startswith("rank 1")] == (
        [f"rank 1 {said}"] if said else []
    )


POLLS = """
import sys, time
def acquire(path, keep):
    while True:
        file = open(path)
        if not keep: file.close()
        print(flush=True)
        time.sleep(0.05)
acquire(*(sys.argv[1:] if sys.argv[2:] else (sys.argv[1].encode(), True)))
"""


@pytest.mark.parametrize("given", [("x.lock", ""), ("x.lock",), ("other", "")])
def test_who_has_locked_what_a_rank_polls(given: tuple[str, ...], tmp_path: Path) -> None:
    """It has the path among its variables, or only the file open; or another file."""
    (tmp_path / "other").touch()
    lock, name = tmp_path / "x.lock", str(tmp_path / given[0])
    command = [sys.executable, "-c", POLLS, name, *given[1:]]
    with lock.open("w") as held, subprocess.Popen(command, stdout=subprocess.PIPE) as rank:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert rank.stdout is not None
        rank.stdout.readline()
        evidence = Evidence({}, {0: os.getpid(), 1: rank.pid})
        said = f"polls, with {name} in hand, on which rank 0 has a lock"
        assert evidence._polls(rank.pid) == (said if given[0] == "x.lock" else "")
        rank.kill()


def test_a_rank_without_a_record_that_others_wait_for() -> None:
    """It may import what another file system has, before it comes to torch."""
    main = replace(MAIN, frames=(Frame("main", FILE, 3),))
    ranks = {0: RankEvidence("in init_process_group"), 1: RankEvidence(str(RankState.UNSEEN))}
    finding = Finding("join_timeout", "", (1,), (0,), (1,), proven=False, ranks=ranks)
    found = Evidence({1: (main,)}, {1: 80}).refine(finding).ranks[1]
    assert (found.state, found.location) == ("runs, as process 80", CallSite(FILE, 3, "main"))
    assert found.stack == ("main (train.py:3)",)
