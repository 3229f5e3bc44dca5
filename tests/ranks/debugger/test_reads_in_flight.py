"""`--check inflight` at DETAIL tells who reads memory that a call under way writes, also past
torch's operators: by numpy, as a list or a text, into a file. Each line that does, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from distdebug.record.notes import OwnFindingNote
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "reads_in_flight.py"


def test_lines_that_read(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT)
    run.extra = {
        "DISTDEBUG_LEVEL": "DETAIL",
        "DISTDEBUG_CHECK": "inflight",
        "DISTDEBUG_ON_FINDING": "report",
    }
    assert run.run() == 0, run.explain()
    lines = enumerate(SCRIPT.read_text().splitlines(), 1)
    marks = ((number, re.search(r"# <- (\w+)$", line)) for number, line in lines)
    expected = {number: mark[1] for number, mark in marks if mark is not None}
    for rank in run.views():
        told = {
            note.site.line: note.message
            for note in rank.notes
            if note.site is not None and OwnFindingNote.matches(note)
        }
        assert told.keys() == expected.keys(), run.explain()
        for line, how in expected.items():
            assert f"writes was {how} between the call and its wait()" in told[line]
