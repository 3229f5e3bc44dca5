"""The report as one HTML file: its data, what must never be in it, and what cannot be written."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from distdebug.diagnosis.facts.waits import waits
from distdebug.record.layout import Definition
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.reports.html import calls, contents, page
from fixtures import recorded
from fixtures.make_run import make
from tests.unit.commands import runs_on_disk
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast, recv, send

from .documents import of_run

Capture = pytest.CaptureFixture[str]
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def mismatch() -> Run:
    run = Run(4)
    run.each(all_reduce(8), line=80)
    run[0, 1, 3].calls(all_reduce(8), waits=True, line=88)
    run[2].calls(broadcast(8, root=0), waits=True, line=91)
    return run


def parts(run: Run) -> tuple[calls.Timeline, Any]:
    ranks, document = run.snapshot().ranks, of_run(run)
    made = calls.read(ranks)
    rows = calls.classes(document, ranks, made)
    return calls.Timeline(ranks, made, document["findings"][0]), rows


class Page(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


# -- the calls ----------------------------------------------------------------------------------


def test_ranks_that_did_the_same_are_one_class_and_the_differing_call_is_marked() -> None:
    timeline, rows = parts(mismatch())
    assert [(row.ranks, row.culprit) for row in rows] == [((2,), True), ((0, 1, 3), False)]
    drawn = timeline.as_json(rows)
    shown = {drawn["words"][one[0]]: one for one in drawn["calls"] if one[3] == 1}
    assert shown["broadcast(src=0, float32[8])"][5] == 1 | 4  # odd, and at the fault
    assert shown["all_reduce(sum, float32[8])"][5] == 4
    # Who made different calls at one place waits: nobody has "come" to that.
    met = shown["all_reduce(sum, float32[8])"][4]
    assert drawn["met"][met] == -1
    assert drawn["met"][0] >= 0
    until_us, flat = drawn["ranks"]["2"]
    assert len(flat) == 2 * 3
    assert flat[4] == -1  # it has no end
    assert until_us <= drawn["span"]


def test_the_calls_around_the_fault_are_side_by_side() -> None:
    timeline, rows = parts(mismatch())
    around = timeline.around(rows)
    assert around is not None
    assert [column.ranks for column in around["columns"]] == [(2,), (0, 1, 3)]
    first, last = around["rows"]
    assert (first["label"], first["same"]) == ("#0", True)
    assert (last["label"], last["same"], last["fault"]) == ("#1", False, True)
    assert [cell["odd"] for cell in last["cells"]] == [True, False]
    assert [cell["state"] for cell in last["cells"]] == ["no end", "no end"]


def test_a_rank_that_never_came_has_a_cell_that_says_so() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    run[0, 1].calls(all_reduce(8), waits=True)
    run[2].exits(0)
    timeline, rows = parts(run)
    around = timeline.around(rows)
    assert around is not None
    cells = {row["label"]: [cell["state"] for cell in row["cells"]] for row in around["rows"]}
    assert cells["#1"] == ["never came", "no end"]
    assert around["columns"][0].ranks == (2,)


def test_messages_that_go_equally_far_make_one_class_and_a_cycle_shows_last_calls() -> None:
    run = Run(4)
    for rank in range(4):
        run[rank].calls(recv((rank - 1) % 4, 8), waits=True)
    timeline, rows = parts(run)
    assert [row.ranks for row in rows] == [(0, 1, 2, 3)]
    around = timeline.around(rows)
    assert around is not None
    assert around["as_first"]
    assert [row["label"] for row in around["rows"]] == ["last"]
    assert timeline.fault is None
    (send_first,) = {call.signature.op for made in timeline.calls.values() for call in made}
    assert send_first == "recv"


def test_a_message_without_its_other_end_waits_for_it() -> None:
    run = Run(2)
    run[0].calls(send(1, 8), waits=True)
    drawn = calls.Timeline(ranks := run.snapshot().ranks, calls.read(ranks), None).as_json([])
    assert drawn["met"] == [-1]


# -- who waits for whom -------------------------------------------------------------------------


def test_waits_of_a_report_lead_to_its_culprits() -> None:
    run = mismatch()
    document, (_, rows) = of_run(run), parts(run)
    (wait,) = contents.waits_then(document["findings"][0], rows)
    assert (wait.ranks, wait.for_ranks) == ((0, 1, 3), (2,))
    drawn = contents.drawing([wait], rows)
    assert drawn is not None
    assert [(node.x, node.y, node.culprit) for node in drawn["nodes"]] == [
        (0, 0, False),
        (1, 0, True),
    ]
    assert drawn["arrows"] == [(0, 1)]


def test_waits_of_now_fold_ranks_that_wait_for_the_same() -> None:
    run = Run(4)
    run[0, 1, 3].calls(all_reduce(8), waits=True, line=88)
    (row,) = contents.waits_now(waits(run.snapshot()))
    assert (row.ranks, row.for_ranks, row.in_cycle) == ((0, 1, 3), (2,), False)


def test_a_cycle_is_drawn_with_an_arrow_back() -> None:
    run = Run(2)
    run[0].calls(recv(1, 8), waits=True)
    run[1].calls(recv(0, 8), waits=True)
    document, (_, rows) = of_run(run), parts(run)
    found = contents.waits_then(document["findings"][0], rows)
    assert [(row.ranks, row.for_ranks, row.in_cycle) for row in found] == [
        ((0,), (1,), True),
        ((1,), (0,), True),
    ]
    drawn = contents.drawing(found, rows)
    assert drawn is not None
    assert drawn["arrows"] == [(0, 1), (1, 0)]


# -- the host -----------------------------------------------------------------------------------


def sampled(directory: RunDirectory, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    directory.host.write_text("".join(json.dumps(one) + "\n" for one in samples))
    return contents.curves(directory, [1], 4)


def test_curves_of_few_ranks_are_theirs_and_of_many_a_span(tmp_path: Path) -> None:
    directory = runs_on_disk.begun(tmp_path)
    gpu = {"index": 0, "use_percent": 50, "memory_bytes": 1 << 30, "power_w": None}
    samples = [
        {
            "time_ns": at * 10**9,
            "ranks": {str(rank): {"cpu_percent": at, "rss_bytes": 1 << 30} for rank in range(2)},
            "gpus": [gpu],
        }
        for at in range(1, 4)
    ]
    names = {one["name"]: one for one in sampled(directory, samples)}
    assert set(names) == {"CPU, % of a core", "Memory, GiB", "GPU in use, %", "GPU memory, GiB"}
    assert [(one["who"], one["marked"]) for one in names["CPU, % of a core"]["lines"]] == [
        ("rank 0", False),
        ("rank 1", True),
    ]
    assert names["CPU, % of a core"]["lines"][0]["points"].startswith("0,")
    for one in samples:
        one["ranks"] = {str(rank): {"cpu_percent": rank} for rank in range(40)}
    (cpu, *_) = sampled(directory, samples)
    assert [one["who"] for one in cpu["lines"]] == ["median of 40", "rank 1"]
    assert cpu["band"]
    directory.close()


def test_samples_of_a_long_run_are_taken_evenly(tmp_path: Path) -> None:
    directory = runs_on_disk.begun(tmp_path)
    rows = [{"time_ns": at, "ranks": {"0": {"cpu_percent": 1.0}}} for at in range(5000)]
    directory.host.write_text("".join(json.dumps(one) + "\n" for one in rows) + '{"torn": ')
    times = [
        one["time_ns"] for one in contents._samples(directory.host, contents.MOST_SAMPLES) if one
    ]
    assert len(times) <= contents.MOST_SAMPLES
    assert (times == sorted(set(times)), times[0], times[-1] > 4900) == (True, 0, True)
    directory.close()


@pytest.mark.parametrize("value", ["x", None, -1, float("inf"), 1 << 70, [1], {"a": 1}])
def test_samples_that_make_no_sense_are_left_out(tmp_path: Path, value: Any) -> None:
    directory = runs_on_disk.begun(tmp_path)
    rows = [{"time_ns": 1, "ranks": {"0": {"cpu_percent": value}}, "gpus": value}] * 3
    assert sampled(directory, rows) == []
    directory.close()


# -- what may be in the page --------------------------------------------------------------------


def hostile(tmp_path: Path) -> tuple[RunDirectory, dict[str, Any]]:
    """A run whose ranks, logs, samples, stacks and command say what a page must not obey."""
    directory = runs_on_disk.finished(tmp_path)
    document = json.loads(directory.report_json.read_text())
    text = json.dumps(HOSTILE)[1:-1]
    document = json.loads(json.dumps(document).replace("all_reduce(", f"{text}("))
    document["command"].append(HOSTILE)
    document["notes"] = [HOSTILE]
    document["findings"][0]["headline"] = document["findings"][0]["message"] = HOSTILE
    writer = runs_on_disk.record(directory, 0, 4, [all_reduce(8), all_reduce(8)])
    writer.define(Definition.ENVIRONMENT, json.dumps({"NCCL_DEBUG": HOSTILE}))
    (directory.logs / "0.out").write_text(HOSTILE + "\n")
    record = {"time_ns": 1, "rank": 0, "level": HOSTILE, "event": HOSTILE, HOSTILE: HOSTILE}
    (directory.logs / "0.jsonl").write_text(json.dumps(record) + "\n")
    frames = [{"function": HOSTILE, "file": HOSTILE, "line": HOSTILE, "source": HOSTILE}]
    node = {"ranks": [0, HOSTILE], "frames": frames, "notes": [HOSTILE], "children": [HOSTILE]}
    threads = [{"name": HOSTILE, "ranks": [0], "tree": [node]}]
    directory.write_json("stacks/stacks.json", {"threads": threads})
    sample = {"ranks": {HOSTILE: {"cpu_percent": 1}}}
    rows = [{"time_ns": at, **sample} for at in range(3)]
    directory.host.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return directory, document


def test_a_ranks_script_stays_text(tmp_path: Path) -> None:
    directory, document = hostile(tmp_path)
    text = page.rendered(directory, document)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("&lt;img src=x") > 8
    made = Page(text)
    assert [tag for tag, _ in made.elements if tag in ("img", "iframe", "object", "link")] == []
    assert [one for _, one in made.elements if any(name.startswith("on") for name in one)] == []
    data, script = made.scripts
    assert "<" not in data
    json.loads(data)
    assert "alert" not in script


def test_its_policy_lets_only_its_own_script_and_style_run(tmp_path: Path) -> None:
    directory, document = hostile(tmp_path)
    text = page.rendered(directory, document)
    made = Page(text)
    (policy,) = [
        str(one["content"])
        for tag, one in made.elements
        if tag == "meta" and one.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    for part in (made.scripts[-1], style):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert [one for _, one in made.elements if "style" in one or "src" in one] == []
    assert all(str(one.get("href", "#")).startswith("#") for _, one in made.elements)
    assert re.findall(r"url\((?!#)|@import|https?://", style + made.scripts[-1]) == []


SECRETS = {
    "NCCL_SECRET_KEY": "planted-1",
    "AWS_SESSION": "planted-2",
    "HOME": "/home/planted-3",
    "MASTER_ADDR": "http://planted-4@node0",
}


def test_planted_secrets_are_absent(tmp_path: Path) -> None:
    directory = runs_on_disk.finished(tmp_path)
    writer = runs_on_disk.record(directory, 0, 4, [all_reduce(8)])
    # As a record of another program would have it: ours puts no such variable down.
    writer.define(Definition.ENVIRONMENT, json.dumps({"NCCL_DEBUG": "INFO", **SECRETS}))
    token = "hf_" + "planted5" * 4
    (directory.logs / "0.out").write_text(f"login with {token}\npostgres://me:planted-6@db/x\n")
    (directory.logs / "0.jsonl").write_text(json.dumps({"event": f"token {token}"}) + "\n")
    frames = [{"function": "f", "file": "/a.py", "line": 1, "source": f'login("{token}")'}]
    tree = [{"ranks": [0], "frames": frames, "notes": [], "children": []}]
    directory.write_json(
        "stacks/stacks.json", {"threads": [{"name": "MainThread", "ranks": [0], "tree": tree}]}
    )
    text = page.rendered(directory, json.loads(directory.report_json.read_text()))
    assert "planted" not in text
    assert "$NCCL_DEBUG" in text
    assert "AWS_SESSION" not in text
    assert text.count("(redacted)") > 3


# -- the command --------------------------------------------------------------------------------


def test_it_is_written_whole_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    runs_on_disk.finished()
    assert main(["report", "--html", "report.html"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"report\.html \(\d+ KiB\): open it in any browser; .*\n", out)
    assert err == ""
    guide = Path(page.__file__).parents[2] / "docs" / "howto" / "share-a-report.md"
    assert re.sub(r"\d+ KiB", "N KiB", out) in re.sub(r"\d+ KiB", "N KiB", guide.read_text())
    first = Path("report.html").read_bytes()
    assert b"ranks disagree at collective #0" in first
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(os.stat("report.html").st_mode) == 0o666 & ~umask
    assert main(["report", "--html", "report.html", "--exit-code"]) == 91
    assert Path("report.html").read_bytes() == first
    assert sorted(os.listdir()) == [".distdebug", "report.html"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no/such/place.html", "there is no directory"),
        ("train.py", "is there already, and is no report of distdebug's"),
        (".", "cannot be written"),
        ("pipe", "cannot be written"),
        ("x" * 300, "cannot be written"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, target: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runs_on_disk.finished()
    Path("train.py").write_text("print(1)\n")
    os.mkfifo("pipe")
    before = sorted(os.listdir())
    assert main(["report", "--html", target]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert sorted(os.listdir()) == before
    assert Path("train.py").read_text() == "print(1)\n"


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    runs_on_disk.finished()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["report", "--html", "report.html"]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert os.listdir() == [".distdebug"]


def test_a_run_without_records_or_with_a_damaged_report_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--html", "report.html"]) == 2
    directory = runs_on_disk.begun()
    directory.flight(0).write_bytes(b"ELF")
    directory.close()
    assert main(["report", "--html", "report.html"]) == 2
    directory = runs_on_disk.finished()
    report = json.loads(directory.report_json.read_text())
    for damage in (
        {"culprits": ["x"]},
        {"ranks": {"0": {}}},
        {"details": None},
        {"cycle": [{"rank": 0}]},
        {"group": {"name": 1}},
    ):
        finding = {**report["findings"][0], **damage}
        directory.report_json.write_text(json.dumps({**report, "findings": [finding]}))
        assert main(["report", "--html", "report.html"]) == 2, damage
    err = capsys.readouterr().err
    assert err.count("\n") == 7
    assert err.count("is damaged") == 5
    assert not Path("report.html").exists()


def test_other_forms_do_not_go_with_it(capsys: Capture) -> None:
    for flag in ("--json", "--junit", "--story", "--text"):
        assert main(["report", flag, "--html", "x.html"]) == 2
    assert main(["report", "--traffic", "--html", "x.html"]) == 2
    assert "--traffic is text or --json" in capsys.readouterr().err


def test_a_run_that_goes_on_says_so_and_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = runs_on_disk.begun()
    for rank in range(2):
        runs_on_disk.record(directory, rank, 3, [all_reduce(8)])
    assert main(["report", "--html", "report.html"]) == 0
    text = Path("report.html").read_text()
    assert "still running" in text
    assert "Who waits for whom" in text
    assert "The run goes on, and nothing is wrong so far." in text
    directory.close()


@pytest.mark.parametrize("name", ["mismatch", "deadlock", "died", "nan", "finished", "divergence"])
def test_recorded_runs_have_a_page(tmp_path: Path, name: str) -> None:
    run = recorded.unpack(name, tmp_path / "run").path
    assert main(["report", str(run), "--html", str(tmp_path / "x.html")]) == 0
    made = Page((tmp_path / "x.html").read_text())
    sections = {one.get("id") for tag, one in made.elements if tag == "section"}
    assert {"verdict", "timeline", "calls", "ranks", "versions"} <= sections
    ids = [one["id"] for _, one in made.elements if "id" in one]
    assert len(ids) == len(set(ids))
    links = {str(one["href"])[1:] for tag, one in made.elements if tag == "a"}
    assert links <= set(ids)


def test_many_ranks_are_a_few_rows(tmp_path: Path) -> None:
    make(tmp_path / "run", "mismatch", 64)
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "x.html")]) == 0
    text = (tmp_path / "x.html").read_text()
    data = json.loads(Page(text).scripts[0])
    assert [row[0] for row in data["classes"]] == ["2", "0,1,3-63"]
    assert len(data["ranks"]) == 64
    assert len(text) < 200_000
