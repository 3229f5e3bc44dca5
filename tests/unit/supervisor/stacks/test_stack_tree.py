"""The merged stacks of many ranks read as a few paths."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import distdebug
from distdebug.record.wording import ranges
from distdebug.supervisor.stacks.stack_tree import (
    own_frames,
    render,
    to_json,
    users_frame,
    waits_for_lock,
)
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack

TORCH = "/venv/lib/python3.11/site-packages/torch"
OWN = str(Path(distdebug.__file__).parent)
STANDARD = "/usr/lib/python3.11"


def frame(function: str, place: str) -> Frame:
    file, line = place.rsplit(":", 1)
    return Frame(function, file, int(line))


START = [frame("<module>", "/home/me/train.py:120"), frame("main", "/home/me/train.py:99")]
CALL = [
    frame("wrapper", f"{TORCH}/distributed/c10d_logger.py:83"),
    frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py:2940"),
    frame("allreduce", f"{OWN}/rank/checked_group.py:50"),
]


def stack(*frames: Frame, name: str = "MainThread", gil: bool = False, **rest: str) -> ThreadStack:
    """A thread whose frames are given outermost first."""
    return ThreadStack(1, 1, name, gil, gil, tuple(reversed(frames)), **rest)


def in_all_reduce() -> ThreadStack:
    return stack(*START, frame("step", "/home/me/train.py:88"), *CALL)


def test_own_frames_end_at_the_function_the_user_called() -> None:
    shown = [one.function for one in own_frames(in_all_reduce().frames)]
    assert shown == ["all_reduce", "step", "main", "<module>"]


def test_the_start_of_a_spawned_process_is_hidden() -> None:
    thread = stack(
        frame("spawn_main", f"{STANDARD}/multiprocessing/spawn.py:122"),
        frame("_run_code", "<frozen runpy>:88"),
        frame("_wrap", f"{TORCH}/multiprocessing/spawn.py:90"),
        frame("worker", "/home/me/train.py:5"),
        frame("sleep_well", f"{STANDARD}/something.py:7"),
    )
    assert [one.function for one in own_frames(thread.frames)] == ["sleep_well", "worker"]


def test_the_tree_branches_where_ranks_part() -> None:
    late = stack(*START, frame("save", "/home/me/train.py:91"), gil=True)
    pool = stack(
        frame("Thread._bootstrap", f"{STANDARD}/threading.py:1"),
        frame("get", f"{STANDARD}/queue.py:2"),
        name="Thread-3",
    )
    loads = [
        stack(frame("load", "/home/me/data.py:7"), name=f"Thread-{n} (load)") for n in range(4)
    ]
    text = render(
        {
            0: [in_all_reduce(), pool, loads[0]],
            1: [in_all_reduce(), loads[1]],
            2: [late, loads[2]],
            3: [in_all_reduce(), loads[3]],
            4: [],
        }
    )
    assert text.splitlines() == [
        "MainThread of ranks 0-3",
        "  <module> (train.py:120)",
        "    main (train.py:99)",
        "      step (train.py:88)    <- ranks 0,1,3",
        "        all_reduce (torch/distributed/distributed_c10d.py:2940)",
        "      save (train.py:91)  [holds the GIL]    <- rank 2",
        "Thread (load) of ranks 0-3",
        "  load (data.py:7)",
        "no stack of rank 4: the process has ended",
    ]


def test_json_has_every_frame() -> None:
    value = to_json({0: [in_all_reduce()], 1: []})
    assert value["schema"] == "distdebug.stacks/1"
    assert value["silent"] == [1]
    (thread,) = value["threads"]
    assert [one["function"] for one in thread["tree"][0]["frames"]] == [
        "<module>",
        "main",
        "step",
        "wrapper",
        "all_reduce",
        "allreduce",
    ]
    json.dumps(value)


def test_json_has_the_lines_of_the_program_and_of_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n    step(x)  # <- here\n")
    (tmp_path / "site-packages" / "torch").mkdir(parents=True)
    (tmp_path / "site-packages" / "torch" / "c10d.py").write_text("theirs\n")
    thread = stack(
        frame("main", f"{tmp_path}/train.py:2"),
        frame("gone", f"{tmp_path}/gone.py:1"),
        frame("all_reduce", f"{tmp_path}/site-packages/torch/c10d.py:1"),
    )
    (node,) = to_json({0: [thread]})["threads"][0]["tree"]
    assert [one.get("source") for one in node["frames"]] == ["step(x)  # <- here", "", None]


def test_a_deep_recursion_stays_readable() -> None:
    deep = stack(*START, *[frame("again", "/home/me/train.py:3")] * 5000)
    text = render({0: [deep], 1: [deep]})
    assert len(text.splitlines()) < 70
    assert "... 4942 more frames ..." in text
    json.dumps(to_json({0: [deep]}))


def test_hostile_names_are_harmless() -> None:
    text = render(
        {0: [stack(frame("f\x1b[2J\nrank 3 died", "/home/me/x.py:1"), name="MainThread")]}
    )
    assert text.splitlines() == [
        "MainThread of rank 0",
        "  f\\x1b[2J\\x0arank 3 died (x.py:1)",
    ]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2], "rank 2"),
        ([1, 0], "ranks 0,1"),
        ([0, 1, 2, 3, 7], "ranks 0-3,7"),
        ([0, 1, 3, 4, 5], "ranks 0,1,3-5"),
    ],
)
def test_rank_ranges(ranks: list[int], words: str) -> None:
    assert ranges(ranks) == words


def test_waiting_for_a_lock(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("with lock:\n    work()\n    if lock.acquire():\n")
    user = frame("step", f"{script}:1")
    condition = frame("Condition.wait", f"{STANDARD}/threading.py:327")
    loader = frame("__next__", f"{TORCH}/utils/data/dataloader.py:630")
    get = frame("Queue.get", f"{STANDARD}/queue.py:171")
    assert waits_for_lock(stack(user, get, condition))
    put = frame("Queue.put", f"{STANDARD}/multiprocessing/queues.py:89")
    assert waits_for_lock(stack(user, put))
    for wait in ("futex_do_wait", "locks_lock_inode_wait", "fcntl_setlk"):
        assert waits_for_lock(stack(user, wait=wait))
    assert waits_for_lock(stack(frame("step", f"{script}:3"), wait="futex"))
    assert not waits_for_lock(stack(frame("step", f"{script}:2"), wait="futex"))
    assert not waits_for_lock(stack(user, wait="hrtimer_nanosleep"))
    assert not waits_for_lock(stack(user, *CALL, wait="futex"))
    assert not waits_for_lock(stack(user, condition, gil=True))
    assert not waits_for_lock(stack(user, loader, get, condition))
    assert not waits_for_lock(stack(user, loader, wait="futex"))
    imports = frame("_find_and_load", "<frozen importlib._bootstrap>:1176")
    module = frame("_ModuleLock.acquire", "<frozen importlib._bootstrap>:120")
    assert waits_for_lock(stack(user, imports, module))
    logs = frame("Handler.acquire", f"{STANDARD}/logging/__init__.py:957")
    assert waits_for_lock(stack(user, logs))
    assert waits_for_lock(stack(frame("_acquire", "/v/site-packages/filelock/_unix.py:42")))
    assert not waits_for_lock(stack(frame("acquire", "/home/me/filelock.py:42")))
    native = Frame("__pthread_cond_wait@@GLIBC_2.3.2", "libc.so.6", 0, native=True)
    assert waits_for_lock(stack(user, native))
    assert not waits_for_lock(stack(user, imports))


def test_many_ranks_are_merged_quickly() -> None:
    began_s = time.process_time()
    render({rank: [in_all_reduce()] for rank in range(1024)})
    assert time.process_time() - began_s < 2


def test_the_users_frame_is_the_users() -> None:
    """Not the package's that the user's line has led to, which is told beside it."""
    package = frame(
        "wait_for_everyone", "/venv/lib/python3.11/site-packages/accelerate/state.py:412"
    )
    step = frame("step", "/home/me/train.py:88")
    through = stack(*START, step, package, *CALL)
    assert users_frame(through.frames) == (step, "accelerate/state.py:412")
    assert users_frame(in_all_reduce().frames) == (step, "")
    assert users_frame(stack(package, *CALL).frames) == (package, "")


def test_what_this_tool_has_imported_was_led_to_by_the_users_line() -> None:
    """A rank that writes its first log line imports packages below code of ours."""
    ours = frame("<module>", f"{Path(distdebug.__file__).parent}/rank/log/rank_log.py:16")
    package = frame("<module>", "/venv/lib/python3.11/site-packages/rich/syntax.py:27")
    step = frame("step", "/home/me/train.py:88")
    found = users_frame(stack(*START, step, ours, package).frames)
    assert found == (step, "rich/syntax.py:27")


def test_a_frame_in_the_likeness_of_the_users_is_shown_once() -> None:
    """An injected delay sleeps in one, below the frames of ours that the user's has called."""
    user, ours = Frame("step", "/home/user/train.py", 9), Frame("call", f"{OWN}/rank/x.py", 1)
    outer = Frame("main", "/home/user/train.py", 20)
    assert own_frames((user, ours, user, outer)) == (user, outer)
    assert own_frames((user, user, outer)) == (user, user, outer), "a recursion of the program's"
