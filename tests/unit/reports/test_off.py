"""What was not watched is in the report, and is said once while the run goes on."""

from __future__ import annotations

from distdebug.reports import off, text
from tests.unit.diagnosis.builder import Run, all_reduce

from .documents import of_run

WHY = "process groups are not observed: torch 2.17.0 has no distributed_c10d._world"


def with_parts_off() -> Run:
    run = Run(3)
    run.each(all_reduce(8))
    for rank in range(3):
        run[rank].notes_down("part_off", WHY, part="groups")
    run[1].notes_down("part_off", "it is \x1b[31mred", part="colour", said=True)
    run.each(all_reduce(8))
    run[range(3)].exits(0)
    return run


def test_in_the_report() -> None:
    document = of_run(with_parts_off())
    assert document["off"] == [
        {"part": "groups", "why": WHY, "ranks": [0, 1, 2]},
        {"part": "colour", "why": r"it is \x1b[31mred", "ranks": [1]},
    ]
    lines = text.render(document).splitlines()
    assert f"  off: {WHY}" in lines
    assert r"  off: it is \x1b[31mred (rank 1)" in lines


def test_nothing_is_off() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    run[range(2)].exits(0)
    document = of_run(run)
    assert document["off"] == []
    assert "off:" not in text.render(document)


def test_it_is_said_once() -> None:
    ranks = with_parts_off().snapshot().ranks
    told: dict[str, float] = {}
    assert off.news(ranks, told) == [WHY]  # the other was said by its rank
    assert off.news(ranks, told) == []
