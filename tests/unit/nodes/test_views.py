"""The run of all nodes, seen from one that is not the head: what is told, to whom, and when."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.nodes.messages import Message, Patch, packed
from distdebug.nodes.view import BLOCK, ViewCopies
from distdebug.record.requests.breakpoints import BREAKPOINT, Stop, announce, listen
from distdebug.record.requests.control import ask
from distdebug.record.runs.job_view import FOLDER, HEAD, JobView, is_watched
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.writing.writer import FlightWriter
from tests.unit.nodes.test_reconnections import Two


class Watched(Two):
    """A head with a rank of its own; who looks from the node asks its supervisor directly."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sent: list[str] = []
        send = self.head.views._send

        def noted(number: int, message: Message) -> None:
            self.sent.append(message.kind)
            send(number, message)

        self.head.views._send = noted
        self.writer = FlightWriter(self.head_directory.flight(0))
        self.writer.identify({"host": "node0", "job": "a"})
        self.writer.claim(0, 2, 0, 0)
        self.view = JobView(self.node_directory.path)

    @property
    def folder(self) -> Path:
        return self.node_directory.path / FOLDER

    def looks(self) -> None:
        """Somebody looks, and has all that there is."""
        self.view._look()
        self.node.view.asked({})
        self.until(lambda: self.view.path == self.folder, "it is never whole")


@pytest.fixture(name="two")
def _two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("distdebug.record.runs.job_view.ask", lambda *_, **__: "")
    made = Watched(tmp_path)
    yield made
    made.view.close()
    made.close()


def test_what_the_head_has_on_record_is_seen_as_long_as_somebody_looks(two: Watched) -> None:
    two.head_directory.append_event("notice", "rank 1 is late")
    two.head_directory.write_text("stacks/stacks.txt", "MainThread of ranks 0,1\n")
    (two.head_directory.logs / "0.out").write_text("hello\n")
    (two.node_directory.logs / "1.out").write_text("own\n")
    (two.head_directory.logs / "1.out").write_text("the head's copy\n")
    assert (two.node_directory.path / HEAD).exists()
    two.looks()
    assert (two.folder / "ranks" / "node1-0.flight").exists()
    assert "late" in (two.folder / "events.jsonl").read_text()
    assert (two.folder / "stacks" / "stacks.txt").read_text().startswith("MainThread")
    assert (two.folder / "logs" / "0.out").read_text() == "hello\n"
    assert (two.folder / "logs" / "1.out").read_text() == "own\n"
    with (two.head_directory.logs / "0.out").open("a") as log:
        log.write("again\n")
    two.head_directory.write_text("stacks/stacks.txt", "another\n")
    log_here = two.folder / "logs" / "0.out"
    two.until(lambda: log_here.read_text() == "hello\nagain\n", "the log does not grow")
    two.until(
        lambda: (two.folder / "stacks" / "stacks.txt").read_text() == "another\n", "old stacks"
    )
    two.view.close()
    two.until(lambda: not two.folder.exists(), "it is kept for nobody")
    two.until(lambda: not two.head.views._viewers, "the head tells nobody")


def test_nobody_looks_and_nothing_is_told(two: Watched) -> None:
    two.head_directory.append_event("notice", "rank 1 is late")
    end_s = time.monotonic() + 0.6  # three times as long as until a look at what is new
    two.until(lambda: time.monotonic() > end_s, "")
    assert two.sent == []
    assert "watch" not in two.connection.told
    assert not two.folder.exists()
    with pytest.raises(ValueError, match="nobody holds the lock"):
        two.node.view.asked({})


def test_who_comes_while_it_is_tidied_up_waits(
    two: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else he would find that all is there, and read what is left of it."""
    tidy, held = shutil.rmtree, []

    def tidied(path: Path, ignore_errors: bool = False) -> None:
        held.append(is_watched(two.node_directory.path))  # as one that takes the lock finds it
        tidy(path, ignore_errors)

    two.looks()
    monkeypatch.setattr("distdebug.nodes.view.shutil.rmtree", tidied)
    two.view.close()
    two.until(lambda: not two.folder.exists(), "it is kept for nobody")
    assert held == [True]
    assert not is_watched(two.node_directory.path)
    two.looks()


def test_a_connection_that_breaks_and_comes_again_tells_all_once_more(two: Watched) -> None:
    two.looks()
    two.breaks()
    two.head_directory.append_event("notice", "said meanwhile")
    two.between.open = True
    events = two.folder / "events.jsonl"
    two.until(lambda: events.exists() and "said meanwhile" in events.read_text(), "it is not told")
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()]
    assert kinds.count("notice") == 1, kinds


def test_a_request_is_done_by_the_head_and_answered(two: Watched) -> None:
    two.looks()
    two.head.views.on_request = lambda request: f"did {request['action']}"
    answers: list[str] = []
    asks = threading.Thread(
        target=lambda: answers.append(ask(two.folder, "stacks", {})), daemon=True
    )
    asks.start()
    two.until(lambda: answers == ["did stacks"], "no answer")


def test_a_lost_head_is_said_and_what_was_seen_stays(two: Watched) -> None:
    two.looks()
    two.listener.close()
    two.until(lambda: two.node.lost, "it is not missed")
    assert two.view.path == two.folder
    assert two.view.lost
    assert two.view.sentence.endswith("what it had told is shown")
    two.node_directory.write_json("report.json", {"outcome": "node_lost"})
    two.node.view.close()
    assert json.loads((two.folder / "report.json").read_text())["outcome"] == "node_lost"
    two.node_directory.close()
    two.view.close()
    assert not two.folder.exists()


def test_where_there_is_no_head_the_node_itself_is_seen(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / ".distdebug")
    view = JobView(directory.path)
    view.wait(5.0)
    assert (view.path, view.sentence, view.lost) == (directory.path, "", "")
    assert not is_watched(directory.path)
    view.close()


def test_prompts_are_opened_where_all_nodes_are_seen(
    two: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the app does it: what it shows is the run of all nodes, the prompts are this node's."""
    shown: list[Path] = []

    def show(connection: socket.socket, _stop: Stop, directory: Path, once: bool) -> None:
        shown.append(directory)
        assert not once
        connection.close()

    monkeypatch.setattr("distdebug.commands.attach.show_prompt", show)
    two.looks()
    stop = Stop(1, os.getppid(), "/a/train.py", 7, "step", BREAKPOINT, "")
    announce(two.node_directory.path, stop)
    with listen(two.node_directory.path, stop):
        assert main(["attach", str(two.folder), "--rank", "1"]) == 0
    assert shown == [two.node_directory.path]


@pytest.mark.parametrize(
    "data",
    [
        {"node": 0, "add_ns": 0, "files": []},
        {"node": 1 << 40, "add_ns": 0, "files": []},
        {"node": 1, "add_ns": 0, "files": [[0, "../../x.flight", 10]]},
        {"node": 1, "add_ns": "soon", "files": []},
        {"pieces": [["../outside", 0, 1, 1]], "shift_ns": 0},
        {"pieces": [["logs/../../outside", 0, 1, 1]], "shift_ns": 0},
        {"pieces": [["run.json", 0, 1, 1]], "shift_ns": 0},
        {"pieces": [["ranks/pid-1.values", 0, 1, 1]], "shift_ns": 0},
        {"pieces": [["logs/0.out", 1 << 50, 1, 1 << 51]], "shift_ns": 0},
        {"pieces": [["logs/0.out", 4, 1, 2]], "shift_ns": 0},
        {},
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, data: dict[str, object]) -> None:
    directory = RunDirectory.create(tmp_path / "a" / ".distdebug")
    blob = b"x" if "pieces" in data else packed([Patch(0, 0, bytes(BLOCK))])
    with pytest.raises((ValueError, TypeError, KeyError)):
        ViewCopies(directory.path).apply(data, blob)
    assert not list(tmp_path.rglob("outside"))
