"""`make gpu` without a GPU: its parts name tests that exist, each part has a limit, and what hangs
is ended with all that it started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_fixtures_on_a_gpu as fixtures
from tests.gpu import parts
from tests.gpu.__main__ import DRIVER
from tests.gpu.runner import ROOT, Result, table
from tests.support.waiting import until

DRIVERLESS = pytest.mark.skipif(DRIVER.exists(), reason="this machine has a GPU")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.gpu`, in a process of its own: it kills all that descends from it."""
    line = [sys.executable, "-m", "tests.gpu", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)


def ran(made: str, total_s: float, out: Path) -> tuple[list[dict[str, Any]], str]:
    """The lines and the table that these stand-in parts leave. `made` is an expression."""
    text = f"""
        import sys
        from pathlib import Path
        from tests.gpu.runner import Part, Runner

        def part(name, body, limit_s=60, needed=False):
            return Part(name, "a stand-in", (sys.executable, "-c", body), limit_s, needed)

        Runner(Path(sys.argv[1]), {total_s}).run([{made}])
    """
    line = [sys.executable, "-c", textwrap.dedent(text), str(out)]
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=120, env=environment)
    lines = [json.loads(one) for one in (out / "results.jsonl").read_text().splitlines()]
    return lines, (out / "table.md").read_text()


def test_parts_in_their_order_and_how_they_end(tmp_path: Path) -> None:
    lines, shown = ran("part('a', 'print(5)'), part('b', 'raise SystemExit(3)')", 60, tmp_path)
    assert [(one["name"], one["result"]) for one in lines] == [("a", "passed"), ("b", "failed")]
    assert [row.split(" | ")[2] for row in shown.splitlines()[2:]] == ["passed", "failed"]
    log = (tmp_path / "log.txt").read_text()
    assert re.search(r"=== a: .*\n5\n\n=== b: ", log), log


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Its child is in a session of its own, and its grandchild's parent has ended."""
    orphan = "import os, time; os.fork() and os._exit(0); open('pid', 'w').write(f'{os.getpid()}')"
    body = f"""
import os, subprocess, sys, time
os.chdir({str(tmp_path)!r})
child = subprocess.Popen(
    [sys.executable, '-c', {orphan + "; os.rename('pid', 'here'); time.sleep(600)"!r}],
    start_new_session=True)
child.wait()
while not os.path.exists('here'): time.sleep(0.01)
print('all are there', flush=True)
time.sleep(600)
"""
    lines, shown = ran(f"part('hangs', {body!r}, 6), part('next', 'pass')", 60, tmp_path / "out")
    assert [one["result"] for one in lines] == ["timed out", "passed"], shown
    assert "all are there" in (tmp_path / "out" / "log.txt").read_text()
    pid = int((tmp_path / "here").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} is left")


def test_a_part_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    body = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    )
    lines, _ = ran(f"part('leaves', {body!r})", 60, tmp_path)
    assert lines[0]["result"] == "passed"
    pid = int((tmp_path / "log.txt").read_text().split()[-1])
    assert not Path(f"/proc/{pid}").exists()


def test_all_parts_have_one_limit_together(tmp_path: Path) -> None:
    """What is left of it is the limit of a part, and too little begins none."""
    hangs = "import time; time.sleep(600)"
    lines, _ = ran(f"part('hangs', {hangs!r}, 500), part('late', 'pass')", 5.5, tmp_path)
    assert [one["result"] for one in lines] == ["timed out", "not run: no time was left"]
    assert lines[0]["seconds"] < 30


def test_without_the_environment_nothing_is_tried(tmp_path: Path) -> None:
    lines, _ = ran("part('a', 'exit(1)', needed=True), part('b', 'pass')", 60, tmp_path)
    assert [one["result"] for one in lines] == ["failed", "not run: a failed"]


def test_a_command_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    lines, _ = ran("Part('a', 'b', ('/nothing/here',), 9)", 60, tmp_path)
    assert lines[0]["result"] == "failed"


TESTS = """
import time, pytest

def test_right():
    pass

def test_wrong():
    assert 1 == 2

def test_left_out():
    pytest.skip("not here")
"""
HANGS = """
def test_hangs():
    time.sleep(600)
"""


def kept(
    tmp_path: Path, text: str, workers: int, limit_s: float
) -> tuple[list[dict[str, Any]], str]:
    """What is kept of these tests, and the table."""
    file = tmp_path / "test_it.py"
    file.write_text(text)
    plugins = ["-p", "xdist", "-p", "tests.gpu.keep", "-p", "no:cacheprovider"]
    line = [sys.executable, "-m", "pytest", *plugins, "-c", os.devnull, "-n", str(workers)]
    made = f"Part('tests', 'some', {(*line, str(file))!r}, {limit_s})"
    return ran(made, 100, tmp_path / "out")


def test_tests_are_kept(tmp_path: Path) -> None:
    lines, shown = kept(tmp_path, TESTS, 0, 60)
    assert lines[-1]["result"] == "failed", (tmp_path / "out" / "log.txt").read_text()
    assert "| failed (1 failed, 1 passed, 1 skipped) |" in shown
    (text,) = (one["text"] for one in lines if one["result"] == "failed" and "text" in one)
    assert "assert 1 == 2" in text


@pytest.mark.long
def test_tests_of_a_session_that_is_killed_are_kept(tmp_path: Path) -> None:
    lines, shown = kept(tmp_path, TESTS + HANGS, 1, 20)
    assert lines[-1]["result"] == "timed out", (tmp_path / "out" / "log.txt").read_text()
    assert "| timed out (1 unfinished, 1 failed, 1 passed, 1 skipped) |" in shown
    wrong = [one.rpartition("::")[2] for one in shown.splitlines() if one.startswith("- ")]
    assert wrong == ["test_wrong`", "test_hangs`"]


def test_the_table() -> None:
    rows = [
        Result("a", "one thing", "passed", 12.4, {"passed": 3}),
        Result("b", "another", "not run: no time was left", 0.0),
    ]
    assert table(rows) == (
        "| part | what | result | s |\n"
        "|---|---|---|---|\n"
        "| a | one thing | passed (3 passed) | 12 |\n"
        "| b | another | not run: no time was left | 0 |\n"
    )


@DRIVERLESS
def test_no_gpu_is_one_sentence() -> None:
    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gpu: this machine has no NVIDIA GPU (`make gpu DRY=1` shows the parts)\n"
    )


def test_a_dry_run_shows_the_parts() -> None:
    done = command("--dry-run")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [*(part.name for part in parts.parts("python")), "all"]
    chosen = command("--dry-run", "--only", "abort,item")
    assert [line.split()[0] for line in chosen.stdout.splitlines()] == [
        *("environment", "item", "abort", "all")
    ]


def test_a_part_that_does_not_exist_is_named() -> None:
    done = command("--only", "itme")
    assert (done.returncode, done.stderr) == (2, "gpu: no such part: itme\n")


def test_the_whole_is_below_eight_minutes() -> None:
    assert parts.TOTAL_S <= 470
    assert all(part.limit_s <= 120 for part in parts.parts("python"))


def test_the_fixtures_of_the_mends_exist() -> None:
    """One name that does not would end pytest before it ran any."""
    backends = ("nccl", "distcore_nccl")
    known = {f"{name}-{backend}" for name in fixtures.alike() for backend in backends}
    chosen = [name for names in parts.MENDS.values() for name in names]
    assert set(chosen) <= known
    assert len(chosen) == len(set(chosen))


def test_every_test_marked_gpu_is_part_of_it() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    marked = {path for path in files if re.search(r"mark\w*\.gpu\b", path.read_text())}
    assert marked - {Path(__file__)} == parts.named_files()


def test_every_program_has_a_part() -> None:
    text = (ROOT / parts.PROGRAMS).read_text()
    subjects = re.findall(r"^def test_(\w+)", text, re.MULTILINE)
    chosen = [part.name for part in parts.parts("python") if parts.PROGRAMS in part.command]
    assert all(any(one.startswith(name) for name in chosen) for one in subjects), subjects
    assert all(any(one.startswith(name) for one in subjects) for name in chosen), chosen
