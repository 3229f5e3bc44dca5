"""The run of all nodes for a command that is typed on one of them while it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from ..record.runs.artefact import opened
from ..record.runs.job_view import JobView
from ..record.runs.run_directory import RunDirectory

WAIT_S = 10.0
"""For what the head has to tell."""


@contextlib.contextmanager
def opened_whole(run: str | None) -> Iterator[RunDirectory]:
    """Opens a run as `opened` does; of a run that goes on, on a node whose head is another one,
    with all that the head has on record. Where that cannot be had, a sentence says what is shown
    instead."""
    with followed_whole(run) as shown:
        yield shown()


@contextlib.contextmanager
def followed_whole(run: str | None) -> Iterator[Callable[[], RunDirectory]]:
    """The same, to be asked again and again: a node that has just begun may meet its head later."""
    with opened(run) as directory:
        view, said = JobView(directory.path), ""

        def shown() -> RunDirectory:
            nonlocal said
            path, sentence = view.path, view.sentence
            if view.lost:  # what was seen of others before is no ground to judge them by
                path, sentence = directory.path, f"{view.lost}: this node alone is shown"
            if sentence and sentence != said:
                print(f"distdebug: {sentence}", file=sys.stderr)
            said = sentence or said
            return directory if path == directory.path else RunDirectory.open(path)

        try:
            view.wait(WAIT_S)
            yield shown
        finally:
            view.close()
