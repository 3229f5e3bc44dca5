"""The average times of DistributedDataParallel, which ranks log at DETAIL, for a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..record.notes import DdpTimesNote
from ..record.safe_text import clean
from ..record.snapshot import Rank
from ..record.wording import ranks_text

TIMES = ("forward_ms", "backward_compute_ms", "backward_comm_ms", "overlap_ms")
HEADS = ("forward", "backward", "communication", "overlap")
MOST_ROWS = 8
MOST_MODELS = 4


def of_ranks(ranks: Mapping[int, Rank]) -> list[dict[str, Any]]:
    """The newest times of each model of each rank: milliseconds, averages of the iterations that
    torch has sampled up to `iteration`."""
    found = []
    for number, rank in sorted(ranks.items()):
        newest: dict[int, dict[str, Any]] = {}
        for note in DdpTimesNote.among(rank.notes):
            sample = DdpTimesNote.read(note.data)
            if sample is not None:
                times = {name: getattr(sample, name) for name in TIMES}
                name = clean(sample.module_name)
                row = {"model": sample.model, "module_name": name, "iteration": sample.iteration}
                newest[sample.model] = {"rank": number, **row, **times}
        found += [newest[model] for model in sorted(newest)]
    return found


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of the times: of each model one line a rank, the slowest backward first."""
    models = list(dict.fromkeys((row["model"], row["module_name"]) for row in rows))
    names = Counter(name for _, name in models)
    for model, name in models[:MOST_MODELS]:
        found = [row for row in rows if row["model"] == model and row["module_name"] == name]
        found.sort(key=lambda row: (-row["backward_compute_ms"], row["rank"]))
        shown = sorted(found[:MOST_ROWS], key=lambda row: row["rank"])
        upto = max(row["iteration"] for row in found)
        number = f" (model {model})" if names[name] > 1 else ""
        yield f"  DDP {name}{number}, averages in ms up to iteration {upto}:"
        width = max(len(ranks_text([row["rank"]])) for row in shown)
        yield f"  {'':<{width}}" + "".join(f"   {head:>13}" for head in HEADS)
        for row in shown:
            numbers = "".join(f"   {row[time]:>13.3f}" for time in TIMES)
            yield f"  {ranks_text([row['rank']]):<{width}}{numbers}"
        if len(found) > MOST_ROWS:
            yield f"  ... and {len(found) - MOST_ROWS} more ranks in report.json"
    if len(models) > MOST_MODELS:
        yield f"  ... and {len(models) - MOST_MODELS} more models in report.json"
