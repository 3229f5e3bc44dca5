"""What lies beside the flight records: samples with and without a GPU, logs, progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.record.log_file import readable
from distdebug.tui.files import Events, HostSamples, RankLogs, found_in_report, stacks_of
from distdebug.tui.picture import Progress, Usage


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
