"""Pages for users: each kind of finding has one, whose program prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from distdebug.commands.explain import page
from distdebug.record.kinds import KINDS, page_of
from fixtures import recorded
from tests.ranks.debugger.test_breakpoints import attach
from tests.support import planned, reference, runs, waiting
from tests.support.foreign_jobs import job, torchrun
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes, Unavailable
from tests.support.on_nodes import PORT, Layout
from tests.support.slurm import Slurm
from tests.support.standstill import hangs
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(page_of("nan")).parent
TEXTS = [
    path
    for path in sorted(PAGES.parent.rglob("*.md"))
    if path.parent.name != "reference" and path.stem != "changelog"
]
MOST_WORDS = 700
OF_OURS = re.compile(r"(?<![\w/])(?:debugger|distcore|tui|tests|fixtures)/[a-z_]+")
NO_PROGRAM = {
    "node_lost": "takes two nodes: tests/e2e/test_nodes.py",
    "tool_error": "no program has it: tests/e2e/test_own_faults.py",
}
SHORT = {"op_mismatch", "deadlock", "unwaited_work", "nan"}
"""Each of another form: sides, a cycle, a warning, a check."""
WITH_PROGRAM = [
    pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long])
    for name in KINDS
    if name not in NO_PROGRAM
]
CHANGING = [
    (r"\n {4,}", " "),  # where a sentence is broken depends on the width
    (r"\(pid \d+\)", "(pid N)"),
    (r"\d+(\.\d+)? (ms|s)\b", "TIME"),
    (r"\d+(\.\d+)?(%| times)", "MANY"),
    (r"\d+ of \d+ collectives|\(message #\d+\)", "MANY"),
    (r"\b[0-9a-f]{16}\b", "SUM"),
    (r"\b(finished|destroyed the group) after\b", "ENDED after"),  # which of them is seen first
    (r"evidence: \S+", ""),
    (r"\S*/train\.py", "train.py"),
]


def told(report: str) -> tuple[str, set[str]]:
    """Returns the verdict's sentence, without what is another one at each run, and the ranks that
    are marked. In which state ranks are by then is a question of the moment."""
    for pattern, stands_for in CHANGING:
        report = re.sub(pattern, stands_for, report)
    sentence, *rows = re.split(r"\n {2}(?=\S)", report.strip())
    marked = {" ".join(row.split()[:2]) for row in rows if "<- look here" in row}
    warnings = [row for row in rows if row.startswith("warning: ")]
    return " ".join([sentence, *warnings]), marked


def test_every_kind_has_a_page_and_every_page_a_kind() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(KINDS)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_page_is_short_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    assert len(text.split()) <= MOST_WORDS
    assert not OF_OURS.search(text), "a page names no file of ours"
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (path.parent / link).is_file(), link


@pytest.mark.long
def test_the_site_is_built_of_all_pages(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs")
    site = tmp_path / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not included in the" not in done.stderr, done.stderr
    assert len(list((site / "kinds").glob("*/index.html"))) == len(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_the_page_of_a_kind_says_what_to_do(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {name}: ")
    code = KINDS[name].exit_code
    assert f"exit code {code}." in text if code else "does not change the exit code" in text
    assert "## Usual causes, and how to mend them" in text
    assert "## What it is not" in text
    assert ("```python" in text) is (name not in NO_PROGRAM)


@pytest.mark.parametrize("name", WITH_PROGRAM)
def test_the_program_of_a_page_prints_what_the_page_says(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    _run_as_shown(page(name), tmp_path, zygote)


@pytest.mark.parametrize(
    "name", ["hangs", "wrong-result", "precheck", "slow", "ci", "faults", "mpi"]
)
def test_the_command_of_a_guide_prints_what_the_page_says(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    if name == "mpi":
        pytest.importorskip("mpi4py", reason="pip install 'distdebug[mpi]'")
    _run_as_shown(guide(name), tmp_path, zygote)


def test_the_demo_prints_what_the_page_says(tmp_path: Path, zygote: Zygote) -> None:
    text = (PAGES.parent / "read-a-report.md").read_text()
    shown = re.findall(r"```console\n.*?\n(.*?)```", text, re.DOTALL)[0]
    report = re.sub(r" +\(\d\)$", "", shown, flags=re.MULTILINE)  # numbers of explanations
    done = zygote.run(4, [str(ROOT / "debugger/commands/programs/demo.py")], tmp_path)
    Shown([], report, []).check(done)


def test_secrets_are_left_out_as_the_page_says(tmp_path: Path, zygote: Zygote) -> None:
    shown = Shown.of(guide("security"), tmp_path)
    script = shown.words.index("train.py")
    program = [str(tmp_path / "train.py"), *shown.words[script + 1 :]]
    done = zygote.run(2, program, tmp_path)
    shown.check(done)
    assert "recorded as (redacted)" in (done.directory / "report.txt").read_text()
    for path in done.directory.rglob("*"):
        assert path.is_socket() or path.is_fifo() or not path.stat().st_mode & 0o077
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


def test_runs_are_listed_as_the_page_says(tmp_path: Path) -> None:
    shown = re.findall(r"```console\n.*?\n(.*?)```", guide("tools"), re.DOTALL)[0].splitlines()
    recorded.unpack("mismatch", tmp_path / ".distdebug" / "20261128-202551-fa2d")
    lines = _typed(["runs"], tmp_path).stdout.splitlines()
    assert lines[0].split() == shown[0].split()
    row = r"\d{8}-\d{6}-\w{4} +\d{4}-\d\d-\d\d \d\d:\d\d +\w+ +[\d.]+ [KM]iB +distdebug run .*"
    for line in (*lines[1:], *shown[1:]):
        assert re.fullmatch(row, line), line


def test_a_conversation_goes_as_the_page_says(tmp_path: Path, zygote: Zygote) -> None:
    text = guide("breakpoints")
    shown = Shown.of(text, tmp_path)
    conversation = re.findall(r"```text\n.*?\n(.*?)```", text, re.DOTALL)[0]
    flags = ["--break", str(tmp_path / shown.words[5])]
    started = zygote.start(2, [str(tmp_path / "train.py")], tmp_path, flags)
    waiting.until(lambda: "attach with: distdebug attach" in started.stderr.read_text())
    with attach(tmp_path, started.directory, 1) as terminal:
        for line in re.findall(r"^\(rank 1\) (.*)$", conversation, re.MULTILINE):
            terminal.expect(r"\(rank 1\) $")
            terminal.type(line)
        assert terminal.finish() == 0
    said = terminal.shown.replace(f"{tmp_path}/", "")
    assert said.split() == conversation.split()
    shown.check(started.finish())


@pytest.mark.long
def test_inspect_prints_what_the_page_says(tmp_path: Path) -> None:
    shown = Shown.of(guide("running"), tmp_path)
    with job(torchrun(2, ["train.py"]), tmp_path) as running:
        assert hangs(running, 15.0, 200.0)
        done = _typed(["inspect", "--job", str(running.pid)], tmp_path)
    assert told(done.stdout) == told(shown.report)


@pytest.mark.long
def test_who_is_not_reached_is_told_as_the_page_says(tmp_path: Path) -> None:
    text = (PAGES.parent / "troubleshooting.md").read_text()
    shown = Shown.of(text, tmp_path)
    (tmp_path / "start.sh").write_text(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0])
    done = _typed(shown.words[1:], tmp_path)
    assert done.returncode == 2
    (report,) = (tmp_path / ".distdebug").glob("2*/report.txt")
    assert "its PYTHONPATH was replaced" in report.read_text()
    assert told(report.read_text()) == told(shown.report)


@pytest.mark.long
def test_workers_of_ray_are_watched_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install ray")
    shown = Shown.of(guide("ray"), tmp_path)
    done = _typed(shown.words[1:], tmp_path)
    (report,) = (tmp_path / ".distdebug").glob("2*/report.txt")
    shown.check(runs.Run(done.returncode, done.stdout, done.stderr, report.parent))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_what_it_costs_is_measured_as_the_page_says(tmp_path: Path) -> None:
    def without_numbers(text: str) -> list[str]:
        return [re.sub(r" +[-+]?\d+\.\d", " N", line).strip() for line in text.splitlines()]

    shown = re.findall(r"```console\n.*?\n(.*?)```", guide("cost"), re.DOTALL)[0]
    done = _typed(["bench", "overhead"], tmp_path, 1400.0)
    assert set(without_numbers(shown)) <= set(without_numbers(done.stdout)), done.stderr


def _typed(
    words: Sequence[str], folder: Path, limit_s: float = runs.LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """`distdebug` with these words, as typed in that folder."""
    path = f"{runs.DISTDEBUG.parent}{os.pathsep}{os.environ['PATH']}"
    environment = runs.environment({"PATH": path, "OMP_NUM_THREADS": "1"})
    return subprocess.run(
        [str(runs.DISTDEBUG), *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def test_a_plan_prints_what_the_page_says(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    shown = Shown.of(guide("before-a-big-run"), tmp_path)
    done = planned.plan(torch_loaded, shown.words[2:], tmp_path)
    shown.check(done)


@pytest.mark.root
@pytest.mark.long
def test_each_pod_prints_what_the_page_says(
    tmp_path: Path, make_nodes: Callable[[int], Nodes]
) -> None:
    """And no process in a pod may trace another one."""
    shown, nodes = Shown.of(guide("kubernetes"), tmp_path), make_nodes(2)
    words = [*shown.words[1:-1], str(tmp_path / "train.py")]
    words[words.index("python")] = sys.executable
    told_by_the_operator = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(PORT)}
    commands = [
        node.start(
            ["setpriv", "--bounding-set=-sys_ptrace", str(runs.DISTDEBUG), *words],
            runs.environment(
                {
                    **told_by_the_operator,
                    "RANK": str(node.number),
                    "WORLD_SIZE": "2",
                    "OMP_NUM_THREADS": "1",
                    "TMPDIR": "/tmp",
                }
            ),
        )
        for node in nodes
    ]
    for command in commands:
        code = command.wait(200)
        (report,) = (command.node.directory / ".distdebug").glob("2*/report.txt")
        shown.check(runs.Run(code, "", command.said(), report.parent))


@pytest.mark.root
def test_each_node_prints_what_the_page_says(
    tmp_path: Path, make_nodes: Callable[[int], Nodes], forked_nodes: ForkedNodes
) -> None:
    shown = Shown.of(guide("nodes"), tmp_path)
    for done in forked_nodes.run(make_nodes(2), Layout((2, 2)), [str(tmp_path / "train.py")]):
        shown.check(done)


@pytest.mark.root
@pytest.mark.long
def test_each_task_of_slurm_prints_what_the_page_says(
    tmp_path: Path, make_nodes: Callable[[int], Nodes]
) -> None:
    shown = Shown.of(guide("slurm"), tmp_path)
    try:
        slurm = Slurm(make_nodes(2))
    except Unavailable as reason:
        pytest.skip(f"needs Slurm: {reason}")
    words = shlex.join(shown.words).replace("distdebug", str(runs.DISTDEBUG))
    words = words.replace("python train.py", f"{sys.executable} {tmp_path}/train.py")
    command = slurm.start(shlex.split(words), {"MASTER_ADDR": "node0", "MASTER_PORT": str(PORT)})
    code = command.wait(200)
    found = sorted((command.node.directory / ".distdebug").glob("2*/report.txt"))
    assert found, command.said()
    for report in found:
        shown.check(runs.Run(code, "", command.said(), report.parent))


def guide(name: str) -> str:
    """The page of that name below `howto`."""
    return (PAGES.parent / "howto" / f"{name}.md").read_text()


@dataclass(frozen=True)
class Shown:
    """The first command of a page, and what the page says that it prints."""

    words: list[str]
    report: str
    said: list[str]
    """What distdebug says before the report."""

    @classmethod
    def of(cls, text: str, folder: Path) -> Shown:
        """Reads the page, and writes its program."""
        program, shown = re.findall(r"```(?:python|console)\n(.*?)```", text, re.DOTALL)[:2]
        (folder / "train.py").write_text(program)
        command, _, rest = shown.partition("\n")
        lines = rest.splitlines(keepends=True)
        said = [line for line in lines if line.startswith("distdebug: ")]
        report = "".join(line for line in lines if line not in said)
        return cls(shlex.split(command.removeprefix("$ ")), report, said)

    def check(self, done: runs.Run) -> None:
        """It ended as the page says, and printed it."""
        code = re.search(r"exit code (\d+)", self.report)
        assert done.exit_code == int(code[1] if code else 0), done.explain()
        assert told((done.directory / "report.txt").read_text()) == told(self.report)
        reference.check(done.report)
        listed = (reference.PAGES / "run-directory.md").read_text()
        for path in done.directory.iterdir():
            name = re.sub(r"\d+", "PID", path.name) + "/" * path.is_dir()
            assert f"`{name}`" in listed, name
        for line in self.said:
            assert " ".join(line.split()[:3]) in done.stderr


def _run_as_shown(text: str, tmp_path: Path, zygote: Zygote) -> None:
    shown = Shown.of(text, tmp_path)
    assert shown.words[:2] == ["distdebug", "run"]
    size = shown.words.index("-n")
    flags = [*shown.words[2:size], *shown.words[size + 2 : -1]]
    mpi = flags[:2] == ["--launcher", "mpi"]
    script = [str(tmp_path / "train.py")]
    ranks = int(shown.words[size + 1])
    shown.check(zygote.run(ranks, script, tmp_path, flags[2 * mpi :], mpiexec=mpi))
