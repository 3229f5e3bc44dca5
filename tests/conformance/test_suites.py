"""What is said of other people's tests: they are run in every mode, and compared with stock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance import suites
from tests.conformance.outcomes import FAILED, MPI, PASSED, STOCK, TCP, Outcome
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import alive

THREADED = Path(__file__).parents[1] / "ranks" / "scripts" / "suite_of_threads.py"
MADE_UP = """
import os
import unittest
import torch
import torch.distributed as dist


class TestWorld(unittest.TestCase):
    def setUp(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def test_sum(self):
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1]

    def test_nothing_stands_in_front(self):
        assert type(dist.group.WORLD) is dist.ProcessGroup

    def test_that_stock_fails(self):
        assert dist.get_world_size() == 2

    @unittest.skip("no")
    def test_skipped(self):
        pass
"""


@pytest.mark.timeout(300)
def test_worse_is_what_stock_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_made_up.py").write_text(MADE_UP)
    code = suites.main([str(tmp_path), "--all", "--mode", "INFO", "--mode", "mpi"])
    head, row, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["file", "stock", "INFO", "mpi"]
    assert row.split("  ") == ["test_made_up.py", "2, 1 failed", "1, 2 failed*", "-"]
    assert rest == [
        "",
        "Worse than stock:",
        "test_made_up.py INFO: test_made_up.py::TestWorld::test_nothing_stands_in_front",
    ]
    assert code == 1


def test_what_is_explained_is_told_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    given = []

    def run_in(mode: str, stock: Outcome) -> Outcome:
        given.append((mode, stock.those(PASSED)))
        return Outcome({"test_a": PASSED, "test_b": PASSED if mode == STOCK else FAILED})

    why = {(TCP, "test_b"): "tcp has another name"}
    assert suites.compare({"row": run_in}, (STOCK, TCP), why) == 0
    head, row, _, *rest = capsys.readouterr().out.splitlines()
    assert [head.split(), row.split()] == [
        ["file", "stock", "tcp"],
        ["row", "2", "1,", "1", "failed*"],
    ]
    assert rest == ["Worse than stock:", "row tcp: test_b (tcp has another name)"]
    assert given == [(STOCK, set()), (TCP, {"test_a", "test_b"})]
    assert suites.compare({"row": run_in}, (STOCK, TCP, MPI), why) == 1


TOO_LONG = """
import subprocess
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.fixture
def broken():
    yield
    raise OSError
def test_fails_in_the_end(broken): pass
@pytest.mark.skip
def test_skipped(): pass
def test_too_long():
    rank = subprocess.Popen(["sleep", "600"])
    with open("PLACE/pid", "w") as file:
        file.write(str(rank.pid))
    rank.wait()
def test_after_it(): pass
"""


@pytest.mark.timeout(300)
def test_a_file_that_is_cut_says_what_it_had_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_too_long.py").write_text(TOO_LONG.replace("PLACE", str(tmp_path)))

    class Cut(subprocess.Popen[bytes]):
        """Its time is up once it has come to the test that does not end."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Cut)
    cut = suites.run(tmp_path / "test_too_long.py", tmp_path, STOCK, 20)
    assert cut.tests == {
        "test_too_long.py::test_passes": PASSED,
        "test_too_long.py::test_fails": FAILED,
        "test_too_long.py::test_fails_in_the_end": FAILED,
        "test_too_long.py::test_skipped": "skipped",
    }
    assert str(cut) == "1, 2 failed; not over in 20 s"
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.timeout(300)
def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    outcome = suites.run(tmp_path / "test_broken.py", tmp_path, STOCK)
    assert outcome.tests == {"test_broken.py": FAILED}
    assert outcome.why.startswith("ended with 2: ")


def test_what_was_not_run_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    def run_in(mode: str, stock: Outcome) -> Outcome:
        if mode == MPI:
            raise KeyboardInterrupt
        both = {"test_a": PASSED, "test_b": PASSED}
        return Outcome(both) if mode == STOCK else Outcome({"test_a": PASSED}, "not over in 9 s")

    explained = {(mode, "test_b"): "of another name" for mode in (TCP, MPI)}
    assert suites.compare({"row": run_in}, (STOCK, TCP), explained) == 1
    assert capsys.readouterr().out.splitlines() == [
        "file  stock  tcp",
        "row   2      1; not over in 9 s*",
        "",
        "Worse than stock:",
        "row tcp: test_b: not run",
    ]
    assert suites.compare({"row": run_in}, (STOCK, TCP, MPI), explained) == 1
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-1] == "not run*"


@pytest.mark.timeout(300)
def test_tests_beside_modules_named_like_the_standard_librarys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torchft's, whose tests lie in the package that they test."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "multiprocessing.py").touch()
    lines = ["import multiprocessing.pool", "def test_it(): import package.multiprocessing"]
    (package / "test_it.py").write_text("\n".join(lines))
    code = suites.main([str(package), "--all", "--mode", "mpi"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["test_it.py", "1", "-"]
    assert code == 0


@pytest.mark.timeout(300)
def test_tests_in_a_package_that_is_named_like_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ignite's, whose fixtures are in folders above."""
    package = tmp_path / "tests"
    folder = package / "of_groups"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("ANSWER = 42")
    (folder / "__init__.py").touch()
    (package / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef two(): return 2")
    lines = ["from tests import ANSWER", "def test_it(two): assert ANSWER == 21 * two"]
    (folder / "test_it.py").write_text("\n".join(lines))
    code = suites.main([str(folder), "--all", "--mode", "tcp"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["test_it.py", "1", "1"]
    assert code == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_suite_whose_ranks_are_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where torch's own tests and others' make ranks of threads, no process is a rank."""
    (tmp_path / "test_threads.py").write_text(THREADED.read_text())
    code = suites.main([str(tmp_path), "--all", "--mode", "INFO", "--mode", "DETAIL"])
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["test_threads.py", "15", "15", "15"], out
    assert code == 0, out


def test_the_list_names_files_once(tmp_path: Path) -> None:
    (tmp_path / "tensor").mkdir()
    (tmp_path / "tensor" / "test_dtensor.py").touch()
    assert suites.listed(tmp_path) == ([tmp_path / "tensor" / "test_dtensor.py"], [])
    assert suites.main([str(tmp_path / "nowhere")]) == 2


def test_a_file_that_the_list_names_and_the_folder_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong name must not be a test that nobody misses."""
    names = suites.by_folder()[("pytorch/pytorch", "test/distributed")]
    wrong = "tensor/test_dtensor.py"
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / wrong).unlink()
    found, missing = suites.listed(tmp_path)
    assert sorted(found) == sorted(tmp_path / name for name in names if name != wrong)
    assert missing == [wrong]
    monkeypatch.setattr(suites, "compare", lambda *_: 0)
    assert suites.main([str(tmp_path)]) == 2
    assert capsys.readouterr().out.endswith(f"not in {tmp_path}:\n{wrong}\n")
    (tmp_path / wrong).touch()
    assert suites.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "row", ["a/b test_x.py", "a/b c test_x", "a/b c d.py e", "a/b c d.py\na/b c d.py"]
)
def test_a_row_that_is_none(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "LIST", tmp_path / "list")
    (tmp_path / "list").write_text(f"# a comment\n\n{row}\n")
    with pytest.raises(ValueError, match="not a repository"):
        suites.by_folder()
