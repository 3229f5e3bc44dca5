"""The textfile of a run: what it counts, and that any reader of the format takes it."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.cli import main
from distdebug.errors import UsageError
from distdebug.record.kinds import page_of
from distdebug.record.layout import RING, Definition, GroupState
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightReader
from distdebug.record.signature import Signature, agreement_key, hash64
from distdebug.record.snapshot import Process, Rank
from distdebug.record.writing.slots import CallDescription, CallOrigin, GroupSlot
from distdebug.record.writing.writer import FlightWriter
from distdebug.reports import prometheus
from distdebug.reports.prometheus import CallTotals, ExportedState, FindingLabels
from fixtures import recorded
from tests.support.exposition import Metric, parse
from tests.unit.diagnosis.builder import Run, all_reduce, barrier, broadcast, recv, send

HOSTILE = 'a"b\\c\nd\x1b[2J{e="f"} 1'
ADDED = all_reduce(1000)


def metrics(run: Run, **more: object) -> dict[str, Metric]:
    """What is written of a made-up run, as a strict reader reads it."""
    snapshot = run.snapshot()
    totals = CallTotals()
    totals.take(snapshot.ranks.values())
    totals.take(snapshot.ranks.values())
    state = ExportedState(snapshot.ranks, snapshot.world_size, (), snapshot.taken_ns)
    return parse(prometheus.render(totals, replace(state, **more)))


def test_calls_and_bytes_of_each_rank_group_and_op() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    run.each(all_reduce(8, dtype="bfloat16"))
    run.each(barrier())
    run[0].calls(send(1, 5))
    run[1].calls(recv(0, 5))
    found = metrics(run)
    reduces = {"rank": "1", "group": "0", "op": "all_reduce"}
    assert found["distdebug_calls_total"].of(**reduces) == 2
    assert found["distdebug_call_bytes_total"].of(**reduces) == 8 * 4 + 8 * 2
    assert found["distdebug_call_bytes_total"].of(rank="0", op="barrier") == 0
    assert found["distdebug_call_bytes_total"].of(rank="1", op="recv") == 20
    assert found["distdebug_collectives_total"].of(rank="0", group="0") == 3
    assert found["distdebug_rank_up"].of(rank="0") == 1
    assert found["distdebug_run_info"].of(outcome="running") == 1
    assert "distdebug_exit_code" not in found


def test_a_rank_that_waits_says_for_how_long() -> None:
    run = Run(2)
    run.each(barrier())
    run[0].calls(all_reduce(8), waits=True)
    run.passes(7)
    found = metrics(run)
    assert found["distdebug_waiting_seconds"].of(rank="0", op="all_reduce") >= 7
    assert len(found["distdebug_waiting_seconds"].samples) == 1


def test_findings_are_there_with_their_culprits() -> None:
    found = metrics(
        Run(2),
        findings=[
            FindingLabels("op_mismatch", "error", True, (2, 3)),
            FindingLabels("straggler", "warning", True, ()),
        ],
        outcome="op_mismatch",
        exit_code=91,
        lives=False,
    )
    assert found["distdebug_finding"].of(kind="op_mismatch", culprits="2,3", proven="true") == 1
    assert found["distdebug_findings"].of(severity="error") == 1
    assert found["distdebug_findings"].of(severity="warning") == 1
    assert found["distdebug_exit_code"].of() == 91
    assert found["distdebug_rank_up"].of(rank="1") == 0
    assert found["distdebug_heartbeat_age_seconds"].samples == {}


DASHBOARD = Path(page_of("nan")).parents[1] / "reference" / "grafana.json"


def test_the_dashboard_shows_each_metric_by_labels_that_it_has() -> None:
    """Its queries were tried on a Prometheus 2.42 that read the file of a run."""
    run = Run(2)
    run.each(all_reduce(8))
    run[0].calls(all_reduce(8), waits=True)
    finding = FindingLabels("op_mismatch", "error", True, (1,))
    written = metrics(run, findings=[finding], outcome="op_mismatch", exit_code=91)
    labels = {
        name: {"instance", *(label for labels in metric.samples for label, _ in labels)}
        for name, metric in written.items()
    }
    dashboard = json.loads(DASHBOARD.read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"\bdistdebug_\w+", target["expr"]))
            by = ",".join(re.findall(r"\bby \(([\w, ]+)\)", target["expr"])).replace(" ", "")
            used = {*by.split(","), *re.findall(r"{{(\w+)}}", target["legendFormat"])} - {""}
            assert names, target
            for name in names:
                assert used <= labels[name], target
            shown |= names
    assert shown == set(written)
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) <= {
        *variables,
        "__rate_interval",
        "__all",
    }
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_no_name_breaks_the_format() -> None:
    rank = Run(1).snapshot().ranks[0]
    (group,) = rank.groups.values()
    odd = replace(rank, host=HOSTILE, groups={(HOSTILE, 0): replace(group, desc=HOSTILE)})
    totals = CallTotals()
    totals.take([odd])
    text = prometheus.render(
        totals, ExportedState({0: odd}, 1, (), 1, run=HOSTILE, outcome=HOSTILE)
    )
    found = parse(text)
    assert "\x1b" not in text
    ((labels, _),) = found["distdebug_collectives_total"].samples.items()
    assert dict(labels)["desc"] == 'a"b\\c d\\x1b[2J{e="f"} 1'


def test_names_that_are_cut_to_one_are_summed_up() -> None:
    rank = Run(1).snapshot().ranks[0]
    (group,) = rank.groups.values()
    names = [("x" * 500 + middle + "x" * 500, 0) for middle in "ab"]
    odd = replace(rank, groups={key: replace(group, key=key, issued=3) for key in names})
    totals = CallTotals()
    totals.take([odd])
    found = parse(prometheus.render(totals, ExportedState({0: odd}, 1, (), 1)))
    assert [*found["distdebug_collectives_total"].samples.values()] == [6]


class Author:
    """A flight record that calls are written into."""

    def __init__(self, path: Path) -> None:
        self.writer = FlightWriter(path)
        self.writer.claim(0, 1, 0, 0)
        about = {"name": "0", "incarnation": 0, "desc": "d", "ranks": [0], "backend": "gloo"}
        group = self.writer.add_group(about)
        assert group is not None
        self.group: GroupSlot = group
        self.writer.group_state(group, GroupState.READY)
        self.call = self._described(ADDED)
        self.reader = FlightReader(path)

    def _described(self, signature: Signature) -> CallDescription:
        number = self.writer.define(Definition.SIGNATURE, signature.to_json())
        agree = hash64(agreement_key(signature))
        code = OP_CODES[signature.op]
        return CallDescription(code, number, agree, agree, 0, None, None)

    def calls(self, count: int) -> None:
        for _ in range(count):
            number, thread = self.writer.begin(self.group, self.call, CallOrigin(0), 0)
            self.writer.finish(number, thread)

    def rank(self) -> Rank:
        return self.reader.view(Process(alive=True))


@pytest.fixture(name="author")
def _author(tmp_path: Path) -> Iterator[Author]:
    author = Author(tmp_path / "0.flight")
    yield author
    author.reader.close()


def _seen(totals: CallTotals) -> tuple[int, int]:
    (one,) = totals.ops.values()
    return one.calls, one.size_bytes


def test_more_calls_than_a_ring_holds_are_all_seen_when_looked_at_in_time(author: Author) -> None:
    totals = CallTotals()
    for _ in range(3):
        author.calls(RING - 100)
        totals.take([author.rank()])
    count = 3 * (RING - 100)
    assert _seen(totals) == (count, 4000 * count)
    assert totals.unseen == {0: 0}


def test_what_was_overwritten_is_counted_as_unseen(author: Author) -> None:
    totals = CallTotals()
    author.calls(10)
    totals.take([author.rank()])
    author.calls(2 * RING)
    totals.take([author.rank()])
    assert _seen(totals) == (10 + RING, 4000 * (10 + RING))
    assert totals.unseen == {0: RING}
    assert totals.collectives == {(0, ("0", 0), "d"): 10 + 2 * RING}


def test_a_call_that_ends_later_has_its_seconds_then(author: Author) -> None:
    totals = CallTotals()
    number, thread = author.writer.begin(author.group, author.call, CallOrigin(0), 0)
    totals.take([author.rank()])
    (one,) = totals.ops.values()
    assert (one.calls, one.seconds) == (1, 0)
    author.writer.finish(number, thread)
    totals.take([author.rank()])
    assert one.calls == 1
    assert one.seconds > 0


def test_a_rank_that_was_started_again_counts_on() -> None:
    totals = CallTotals()
    for start in (1, 2):
        run = Run(1)
        run.each(broadcast(4))
        totals.take([replace(run.snapshot().ranks[0], started_ns=start)])
    (one,) = totals.ops.values()
    assert (one.calls, [*totals.collectives.values()]) == (2, [2])


# -- the file -----------------------------------------------------------------------------------


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    texts = [f"# HELP distdebug_x {'y' * size}\n# TYPE distdebug_x gauge\n" for size in (9, 90_000)]
    prometheus.write(path, texts[0])
    ended = threading.Event()

    def rewrite() -> None:
        for turn in range(60):
            prometheus.write(path, texts[turn % 2])
        ended.set()

    thread = threading.Thread(target=rewrite)
    thread.start()
    while not ended.is_set():
        assert path.read_text() in texts
    thread.join()
    assert os.listdir(tmp_path) == ["run.prom"]


def test_a_file_that_is_not_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for place in (path, fifo, tmp_path / "no" / "x.prom", tmp_path):
        with pytest.raises(UsageError, match="--prom"):
            prometheus.check(place)
    assert path.read_text() == "mine"
    prometheus.write(
        tmp_path / "x.prom", prometheus.render(CallTotals(), ExportedState({}, 0, (), 0))
    )
    prometheus.check(tmp_path / "x.prom")


def test_a_recorded_run_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded.unpack("mismatch", tmp_path / "run")
    path = tmp_path / "run.prom"
    assert main(["export", str(tmp_path / "run"), "--prom", str(path)]) == 0
    assert f"in {path}" in capsys.readouterr().out
    found = parse(path.read_text())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert found["distdebug_exit_code"].of() == report["exit_code"] == 91
    assert found["distdebug_run_info"].of(outcome="op_mismatch") == 1
    calls = sum(rank["calls"] for rank in report["ranks"].values())
    assert sum(found["distdebug_calls_total"].samples.values()) == calls
    assert found["distdebug_heartbeat_age_seconds"].samples == {}
