"""What is said of a job that the layer was put into: of the time before, and since."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..foreign import dump_files, judging
from ..foreign.trace import traced
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..reports.stored import Document
from ..supervisor import on_the_spot


def findings_before(past: Path) -> Sequence[str]:
    """Of what torch's flight recorders held when the layer came: what they prove, in sentences.
    A rank's dump is of another moment than its neighbour's, so nothing is suspected from them."""
    found = dump_files.of_files(sorted(past.glob("dump_*")))
    lines = []
    for job in found.jobs:
        proven = [one for one in judging.judge(traced(job.dumps), None) if one.proven]
        lines += [
            f"before that, by torch's flight recorder: {clean(one.message)}" for one in proven
        ]
        if not proven:
            lines.append(
                f"torch's flight recorders hold {_calls(job)} calls from before, of which none "
                f"contradicts another ({past})"
            )
    return lines


def _calls(job: dump_files.Job) -> int:
    return sum(len(dump.entries) for dump in job.dumps.values())


def watched(run: RunDirectory, every_s: float | None) -> Document:
    """The report of the run as it stands; with `every_s` the first one that has an error, or that
    of a job that has ended."""
    while True:
        report, _ = on_the_spot.report(run)
        errors = [one for one in report["findings"] if one["severity"] == "error"]
        if every_s is None or errors or report["outcome"] != "running":
            return report
        time.sleep(every_s)
