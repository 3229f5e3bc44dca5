"""The run of all nodes for a command that is typed on one of them while it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from ..record.job_view import JobView
from ..record.run_directory import RunDirectory
from ..record.unpacking import opened

WAIT_S = 10.0
"""For what the head has to tell."""


@contextlib.contextmanager
def opened_whole(run: str | None) -> Iterator[RunDirectory]:
    """As `opened`; of a run that goes on, on a node whose head is another one, with all that the
    head has on record. Where that cannot be had, a sentence says what is shown instead."""
    with opened(run) as directory:
        view = JobView(directory.path)
        try:
            view.wait(WAIT_S)
            shown, sentence = view.path, view.sentence
            if view.lost:  # what was seen of others before is no ground to judge them by
                shown, sentence = directory.path, f"{view.lost}: this node alone is shown"
            if sentence:
                print(f"distdebug: {sentence}", file=sys.stderr)
            yield directory if shown == directory.path else RunDirectory.open(shown)
        finally:
            view.close()
