"""What is asked over the control socket: what is done, and each refusal's sentence."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.nodes.job import Job
from distdebug.rank.breakpoints.console import Console
from distdebug.record.layout import Phase
from distdebug.record.requests import breakpoints, supervision
from distdebug.record.requests.breakpoints import (
    FOLDER,
    Line,
    Stop,
    announce,
    connect,
    listen,
    withdraw,
)
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process, Rank
from distdebug.supervisor import actions
from distdebug.supervisor.actions import Actions
from tests.support.waiting import LIMIT_S
from tests.unit.diagnosis.builder import Run


class Made:
    """A run directory and ranks of this very process, which can be asked."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.create(path / "runs")
        self.ranks: dict[int, Rank] = {}
        for number in range(2):
            self.change(number, host="", pid=os.getpid() if number else 1, phase=Phase.RUNNING)
        job = Job(None, self.directory, lambda *_: Process(), print)
        self.table = Actions(job, self.directory, lambda: self.ranks).table()

    def change(self, number: int, **fields: Any) -> None:
        rank = self.ranks.get(number) or Run(2).ranks[number].frozen()
        alive = Process(alive=True, state="R")
        defaults = {"process": alive, "heartbeat_ns": time.time_ns()}
        self.ranks[number] = replace(rank, **{**defaults, **fields})

    def ask(self, action: str, **request: object) -> str:
        return self.table[action](request)

    def refused(self, action: str, **request: object) -> str:
        with pytest.raises(ValueError, match=" ") as caught:
            self.ask(action, **request)
        return str(caught.value)

    def stop(self, rank: int = 1, address: str = "") -> Stop:
        return Stop(rank, os.getpid(), "train.py", 42, "step", breakpoints.BREAKPOINT, address)


@pytest.fixture(name="run")
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.setattr(actions, "STANDS_S", 0.05)
    # Neither who answers nor who asks may be given a core for some seconds.
    monkeypatch.setattr(actions, "GOES_S", 60.0)
    monkeypatch.setattr(actions, "SILENT_S", 60.0)
    made = Made(tmp_path)
    yield made
    made.directory.close()


def _beat(silent_s: float) -> int:
    return time.time_ns() - int(silent_s * 1e9)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"host": "node7"}, "rank 1 runs on node7; its supervisor there can stop it"),
        ({"process": Process(alive=False)}, "rank 1 has ended, or is about to"),
        ({"phase": Phase.EXITING}, "rank 1 has ended, or is about to"),
        (
            {"process": Process(alive=True, state="T")},
            "rank 1 is stopped by a signal and runs no line; let it go on first: kill -CONT ",
        ),
        (
            # Counted from when the tests were collected: other tests may run for long before this.
            {"heartbeat_ns": _beat(1e9)},
            "rank 1 has run no Python for 10000",
        ),
    ],
)
def test_a_rank_that_cannot_stop(run: Made, fields: dict[str, Any], sentence: str) -> None:
    run.change(1, **fields)
    assert run.refused("break", rank=1).startswith(sentence)
    assert not (run.directory.path / FOLDER).exists()


@pytest.mark.parametrize("rank", [True, "1", 1.0, [1]])
def test_what_is_no_rank(run: Made, rank: object) -> None:
    for action in ("break", "continue"):
        assert run.refused(action, rank=rank).startswith("a rank is a number, not ")


def test_a_request_that_is_not_met_at_once_holds_on(run: Made) -> None:
    answer = run.ask("break", rank=1)
    assert answer.startswith("rank 1 will stop at its next line of Python, or before its next call")
    assert supervision.any_asked(run.directory.path)
    assert run.ask("continue", rank=1) == "rank 1 will not be stopped"
    assert not supervision.any_asked(run.directory.path)
    assert run.refused("continue", rank=1) == "rank 1 is not at a breakpoint"
    assert run.refused("continue") == "no rank is at a breakpoint"


def test_a_rank_that_passes_over_breakpoints(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "STANDS_S", 0.0)
    monkeypatch.setattr(breakpoints, "ask_to_stop", lambda *_: None)  # it is taken away at once
    sentence = "rank 1 passes over breakpoints: it is a forked process"
    assert run.refused("break", rank=1) == sentence


def test_a_rank_that_ends_instead(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "STANDS_S", 30.0)

    def die(_seconds: float) -> None:
        run.change(1, process=Process(alive=False))

    monkeypatch.setattr(time, "sleep", die)
    assert run.refused("break", rank=1) == "rank 1 has ended before it stood"
    assert not supervision.any_asked(run.directory.path)


class Prompt:
    """A rank at its prompt, in a thread."""

    def __init__(self, run: Made) -> None:
        self._run, self._here = run, run.stop()
        self.typed: list[str] = []
        self.console = Console(lambda: None)
        self.console.open(listen(run.directory.path, self._here))
        announce(run.directory.path, self._here)
        self.thread = threading.Thread(target=self._stand)
        self.thread.start()

    def _stand(self) -> None:
        self.console.write("(rank 1) ")
        self.typed.append(self.console.readline())
        self.console.go("rank 1 goes on")
        self.console.end("")
        self.console.shut()
        withdraw(self._run.directory.path, self._here)


def test_continue_is_typed_for_the_user_and_leaves_further_breakpoints(run: Made) -> None:
    for _ in range(2):
        prompt = Prompt(run)
        assert run.refused("break", rank=1).startswith("rank 1 is at a breakpoint (train.py:42 in")
        assert run.refused("continue", rank=0) == "rank 0 is not at a breakpoint"
        assert run.ask("continue") == "rank 1 goes on"
        prompt.thread.join(LIMIT_S)
        assert prompt.typed == ["continue\n"]
        assert not prompt.console.left


def test_whoever_is_at_the_prompt_keeps_it(run: Made) -> None:
    prompt = Prompt(run)
    connection = connect(run.directory.path, run.stop())
    line = Line(connection)
    assert line.receive() == [{"prompt": "(rank 1) "}]
    sentence = "rank 1 is left to the terminal that is at its prompt"
    assert run.refused("continue", rank=1) == sentence
    line.send(line="p 1")
    prompt.thread.join(LIMIT_S)
    line.close()
    assert prompt.typed == ["p 1\n"]


def test_a_rank_that_does_not_answer(run: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "GOES_S", 0.3)
    announce(run.directory.path, run.stop())
    assert run.refused("continue").startswith("rank 1 cannot be reached: ")
    with listen(run.directory.path, run.stop()):
        assert run.refused("continue").startswith("rank 1 does not answer (stopped by a signal?)")
    announce(run.directory.path, run.stop(address="127.0.0.1:5678"))
    sentence = "rank 1 waits for an editor at 127.0.0.1:5678: continue there"
    assert run.refused("continue", rank=1) == sentence


def test_inject(run: Made) -> None:
    sentence = "this run has no plan of faults; start it with distdebug run --inject ..."
    assert run.refused("inject", fault=0) == sentence
    fault = {"number": 2, "text": "kill(rank=1) @ all_reduce#5"}
    run.directory.write_json("faults.json", {"schema": "distdebug.faults/1", "faults": [fault]})
    for number in (0, None, "2", True, 2.0):
        refusal = f"the plan has no fault {number}; it has 2"
        assert run.refused("inject", fault=number) == refusal
    assert run.ask("inject", fault=2) == "fault 2 is asked for now: kill(rank=1) @ all_reduce#5"
    path = run.directory.path / "inject-now.jsonl"
    assert json.loads(path.read_text()).keys() == {"fault", "time_ns"}
    assert path.stat().st_mode & 0o077 == 0
    run.ranks.clear()
    assert run.refused("inject", fault=2) == "no rank is running yet"
    assert run.refused("stacks") == "no rank is running yet"
