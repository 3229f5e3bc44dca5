"""Calls that an installed package makes are on record with the user's line, and the package's."""

from __future__ import annotations

from pathlib import Path

from distdebug.record.snapshot import CallSite
from distdebug.record.wording import site_text
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

STATE = """
import torch.distributed as dist


def wait_for_everyone():
    _wait()


def _wait():
    dist.barrier()


def fail():
    raise KeyError("state")
"""
TRAIN = """
import sys

import torch.distributed as dist

sys.path.insert(0, {packages!r})
from fakelib.state import fail, wait_for_everyone


def main():
    dist.init_process_group("gloo")
    wait_for_everyone()  # line 12
    wait_for_everyone()  # line 13
    dist.barrier()  # line 14
    fail()  # line 15


main()
"""


def test_the_users_line_comes_first(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    package = tmp_path / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "state.py").write_text(STATE)
    train = tmp_path / "train.py"
    train.write_text(TRAIN.format(packages=str(package.parent)))
    run = ranks.forked(torch_loaded, tmp_path / "run", 2, train, apart=True)
    assert run.run() == 0, run.explain()  # each comes to its exception by itself
    by = "fakelib/state.py:10"
    for view in run.views():
        assert view.history is not None
        calls = view.history.recent(9)
        places = [CallSite(str(train), line, "main", by) for line in (12, 13)]
        assert [call.site for call in calls] == [*places, CallSite(str(train), 14, "main")]
        assert site_text(places[0]) == f"train.py:12 in main, through {by}"
        (note,) = [note for note in view.notes if note.kind == "exception"]
        assert note.site == CallSite(str(train), 15, "main", "fakelib/state.py:14")


def test_a_program_that_is_part_of_a_package(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    """Its script is the user's code, as far as there is any."""
    package = tmp_path / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "state.py").write_text(STATE)
    train = package / "train.py"
    train.write_text(TRAIN.format(packages=str(package.parent)))
    run = ranks.forked(torch_loaded, tmp_path / "run", 2, train)
    assert run.run() == 1, run.explain()
    for view in run.views():
        assert view.history is not None
        sites = [call.site for call in view.history.recent(9)]
        assert [(site.line, site.through) for site in sites if site is not None] == [
            (12, "fakelib/state.py:10"),
            (13, "fakelib/state.py:10"),
            (14, ""),
        ]


ENGINE = """
import queue
import threading

import torch.distributed as dist


class Engine:
    def __init__(self):
        self.asked, self.done = queue.Queue(), queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while self.asked.get():
            dist.barrier()
            self.done.put(True)

    def run(self):
        self.asked.put(True)
        self.done.get()
"""
ASKS = """
import os
import sys

import torch.distributed as dist

sys.path.insert(0, {packages!r})
from fakelib.engine import Engine


def main():
    dist.init_process_group("gloo")
    engine = Engine()
    engine.run()  # line 14
    engine.asked.put(True)
    while engine.done.empty():
        pass
    dist.destroy_process_group()
    os._exit(0)


main()
"""


def test_a_package_that_works_in_a_thread_of_its_own(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """The user's line comes first where it waits in that package; where the main thread is
    elsewhere, nobody can tell which line the call is for."""
    package = tmp_path / "site-packages" / "fakelib"
    package.mkdir(parents=True)
    (package / "engine.py").write_text(ENGINE)
    train = tmp_path / "train.py"
    train.write_text(ASKS.format(packages=str(package.parent)))
    run = ranks.forked(torch_loaded, tmp_path / "run", 2, train)
    assert run.run() == 0, run.explain()
    for view in run.views():
        assert view.history is not None
        first, second = (call.site for call in view.history.recent(9))
        assert first == CallSite(str(train), 14, "main", "fakelib/engine.py:15")
        assert second == CallSite(str(package / "engine.py"), 15, "work")
