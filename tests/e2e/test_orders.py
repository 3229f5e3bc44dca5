"""`plan --orders`: of programs that hang in some orders, faults are told with which a run hangs; of
lawful ones that look like them, nothing is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import planned, runs
from tests.support.torch_loaded import TorchLoaded

PROGRAMS = Path(__file__).resolve().parents[2] / "fixtures" / "orders"
LUCKY, LAWFUL = (sorted((PROGRAMS / name).glob("*.py")) for name in ("lucky", "lawful"))
DEPENDS = {
    "lucky": {"asked_whether_over", "decided_by_source", "stuck_by_source", "two_threads"},
    "lawful": {"asked_whether_over", "decided_by_source"},
}
"""What their ranks do depends on who sends first, which thread, or on whether a call is over."""
MISMATCHES = {"two_threads": ("op_mismatch", 91)}
QUICK = ("stolen_message",)


def ranks(path: Path) -> int:
    return 4 if path.stem == "two_servers" else 3


def of(paths: list[Path]) -> list[object]:
    marks = {True: (), False: (pytest.mark.long,)}
    return [pytest.param(path, id=path.stem, marks=marks[path.stem in QUICK]) for path in paths]


@pytest.mark.parametrize("path", of(LUCKY))
def test_an_order_in_which_ranks_are_stuck_is_brought_about(
    path: Path, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    words = ["-n", str(ranks(path)), "--orders", str(path)]
    done = planned.plan(torch_loaded, words, tmp_path)
    kind, code = MISMATCHES.get(path.stem, ("deadlock", 92))
    assert done.exit_code == code, done.explain()
    orders = done.report["plan"]["orders"]
    assert orders["depends"] is (path.stem in DEPENDS["lucky"])
    assert 0 < orders["stuck"] < orders["total"] or orders["depends"]
    faults = [word for fault in orders["faults"] for word in ("--inject", fault)]
    assert faults
    words = ["-n", str(ranks(path)), "--hang-timeout", "60", *faults, str(path)]
    (tmp_path / "again").mkdir()
    run = runs.run("run", words, tmp_path / "again")
    assert run.report["outcome"] == kind, run.explain()
    assert run.errors[0]["proven"]
    assert all(one["fired"] for one in run.report["injected"])


@pytest.mark.parametrize("path", of(LAWFUL))
def test_of_lawful_programs_nothing_is_told(
    path: Path, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    words = ["-n", str(ranks(path)), "--orders", str(path)]
    done = planned.plan(torch_loaded, words, tmp_path)
    assert done.exit_code == 0, done.explain()
    assert not done.report["findings"]
    orders = done.report["plan"]["orders"]
    assert orders["depends"] is (path.stem in DEPENDS["lawful"])
    assert orders["depends"] or not orders["stuck"]
