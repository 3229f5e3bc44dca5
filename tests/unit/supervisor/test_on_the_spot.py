"""A killed run of which a flight record is lost is judged by the records that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distdebug.record.runs.run_directory import RunDirectory
from distdebug.supervisor.on_the_spot import report
from fixtures import recorded


def without(name: str, lost: int, folder: Path) -> dict[str, Any]:
    """The report on this run, as if it had been killed, without the record of a rank."""
    path = recorded.unpack(name, folder).path
    for left in ("report.json", "report.txt", "events.jsonl"):
        (path / left).unlink(missing_ok=True)
    (path / "ranks" / f"{lost}.flight").unlink()
    made, _ = report(RunDirectory(path))
    return made


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_ranks_that_disagree_do_so_without_the_one_that_is_lost(lost: int, tmp_path: Path) -> None:
    """Nobody waits for what it might have called: it will not come."""
    made = without("mismatch", lost, tmp_path)
    (found,) = made["findings"]
    assert (found["kind"], found["culprits"], found["seq"]) == ("op_mismatch", [2], 52)
    assert f"what rank {lost} called is not known: no record of it is left" in found["details"]


@pytest.mark.parametrize(("name", "lost"), [("mismatch", 2), ("killed", 0), ("killed", 3)])
def test_ranks_that_agree_are_not_accused(name: str, lost: int, tmp_path: Path) -> None:
    made = without(name, lost, tmp_path)
    assert (made["findings"], made["outcome"]) == ([], "interrupted")
