"""`distdebug run -m pytest`: a test that fails in a rank is told by its own line. pytest catches
what the test raised, and ends the rank with status 1 for it; unittest does the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

TESTS = """
import pytest
import torch
import torch.distributed as dist

@pytest.fixture(scope="module", autouse=True)
def world():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

def test_first():
    dist.all_reduce(torch.ones(4))

@pytest.mark.xfail(reason="it is known to", strict=True)
def test_known():
    raise LookupError("expected")

def test_one_rank():
    if dist.get_rank() == FAILS:
        raise ValueError("rank one is broken")  # here
    dist.all_reduce(torch.ones(4))

def test_behind():
    pass
"""
LINE = TESTS.splitlines().index('        raise ValueError("rank one is broken")  # here') + 1

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@pytest.mark.parametrize(
    ("fails", "command"),
    [
        ("1", ["run", "-n", "2", "-m", "pytest"]),
        pytest.param(
            "1",
            ["exec", "--", TORCHRUN, "--nproc-per-node", "2", "-m", "pytest"],
            marks=pytest.mark.long,
        ),
        ("None", []),
    ],
)
def test_a_test_that_fails_in_one_rank(
    fails: str, command: list[str], tmp_path: Path, zygote: Zygote
) -> None:
    """Without a command everything is forked."""
    (tmp_path / "test_train.py").write_text(TESTS.replace("FAILS", fails))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    flags = ["-q", "-x", "-p", "no:cacheprovider", "test_train.py"]
    if command:
        done = runs.run(command[0], [*command[1:], *flags], tmp_path)
    else:
        done = zygote.run(
            2, [str(Path(pytest.__file__).with_name("__main__.py")), *flags], tmp_path
        )
    if fails == "None":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    said = "ValueError: rank one is broken at test_train.py:"
    check_that_rank_1_is_blamed(done, "test_train.py", LINE, said)


def check_that_rank_1_is_blamed(done: runs.Run, file: str, line: int, said: str) -> None:
    assert done.exit_code == 1, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"]) == ("rank_exception", [1])
    place = found["ranks"]["1"]["location"]
    assert (Path(place["file"]).name, place["line"]) == (file, line)
    assert said in found["message"]
    places = [row["location"] for row in found["ranks"].values() if row["location"]]
    assert {Path(one["file"]).name for one in places} == {file}  # no line of the runner's own


UNITTEST = """
import sys, unittest
import torch
import torch.distributed as dist

dist.init_process_group("gloo")

class Case(unittest.TestCase):
    @unittest.expectedFailure
    def test_known(self):
        raise LookupError("expected")

    def test_sums(self):
        t = torch.ones(4)
        dist.all_reduce(t)
        for number in range(2):
            with self.subTest(number):
                wrong = sys.argv[1] == "fails" and dist.get_rank() == 1
                self.assertEqual(t[number], 2 + wrong)  # here

unittest.main(argv=sys.argv[:1])
"""
UNITTEST_LINE = next(
    number for number, line in enumerate(UNITTEST.splitlines(), 1) if line.endswith("# here")
)


@pytest.mark.parametrize("how", ["fails", "passes"])
def test_a_unittest_that_fails_in_one_rank(how: str, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(UNITTEST)
    done = zygote.run(2, [str(tmp_path / "train.py"), how], tmp_path)
    if how == "passes":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    check_that_rank_1_is_blamed(done, "train.py", UNITTEST_LINE, "AssertionError")
