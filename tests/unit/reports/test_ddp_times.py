"""The times of DistributedDataParallel in the report: the newest of each model and rank."""

from __future__ import annotations

from typing import Any

from distdebug.reports import ddp_times, text
from tests.unit.diagnosis.builder import Run

from .documents import report


def tells(rank: Any, iteration: int, forward_ms: float, model: int = 0, **changed: Any) -> None:
    times: dict[str, Any] = {
        "model": model,
        "module_name": "Net" if model == 0 else "Critic",
        "iteration": iteration,
        "forward_ms": forward_ms,
        "backward_compute_ms": 2.5,
        "backward_comm_ms": 12.25,
        "overlap_ms": 0.125,
    }
    rank.notes_down("ddp_times", **{**times, **changed})


def test_the_newest_of_each_model() -> None:
    run = Run(2)
    for rank in (0, 1):
        tells(run[rank], 10, 1.0)
        tells(run[rank], 20, 2.0 + rank)
        tells(run[rank], 10, 3.0, model=1)
    document = report(ranks=run.snapshot().ranks, world_size=2)
    assert [(row["rank"], row["module_name"], row["forward_ms"]) for row in document["ddp"]] == [
        (0, "Net", 2.0),
        (0, "Critic", 3.0),
        (1, "Net", 3.0),
        (1, "Critic", 3.0),
    ]
    shown = text.render(document)
    assert (
        "  DDP Net, averages in ms up to iteration 20:\n"
        "                 forward        backward   communication         overlap\n"
        "  rank 0           2.000           2.500          12.250           0.125\n"
        "  rank 1           3.000           2.500          12.250           0.125\n"
        "  DDP Critic, averages in ms up to iteration 10:\n"
    ) in shown


def test_of_many_ranks_the_slowest_backward_is_shown() -> None:
    run = Run(20)
    for number, rank in run.ranks.items():
        tells(rank, 10, 1.0, backward_compute_ms=9.0 if number == 17 else 1.0)
    shown = list(ddp_times.lines(ddp_times.of_ranks(run.snapshot().ranks)))
    assert len(shown) == 2 + ddp_times.MOST_ROWS + 1
    assert any(line.startswith("  rank 17 ") for line in shown)
    assert shown[-1] == "  ... and 12 more ranks in report.json"


def test_models_of_one_name_have_a_number_and_not_all_are_shown() -> None:
    run = Run(1)
    for model in range(40):
        tells(run[0], 10, 1.0, model=model, module_name="Net" if model < 39 else "Critic")
    shown = list(ddp_times.lines(ddp_times.of_ranks(run.snapshot().ranks)))
    assert [line for line in shown if "DDP" in line] == [
        f"  DDP Net (model {model}), averages in ms up to iteration 10:" for model in range(4)
    ]
    assert shown[-1] == "  ... and 36 more models in report.json"


def test_what_is_no_number_is_left_out() -> None:
    run = Run(1)
    tells(run[0], 10, float("nan"))
    tells(run[0], 10, 1.0, overlap_ms="much", model=1)
    tells(run[0], 10, 1.0, module_name="\x1b[2JNet", model=2)
    run[0].notes_down("ddp_times")
    (row,) = ddp_times.of_ranks(run.snapshot().ranks)
    assert "\x1b" not in row["module_name"]


def test_without_times_nothing_is_said() -> None:
    assert "DDP" not in text.render(report(ranks=Run(2).snapshot().ranks))
