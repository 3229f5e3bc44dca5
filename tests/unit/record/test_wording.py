"""Long texts keep what they begin and end with."""

from __future__ import annotations

import json
from pathlib import Path

from debugger.record.notes import ExceptionNote
from debugger.record.reading.reader import FlightReader
from debugger.record.snapshot import Process
from debugger.record.wording import MOST_TEXT, printable
from debugger.record.writing.writer import FlightWriter

LONG = "RuntimeError: one of these reasons: " + "a reason, " * 1000 + "the parameter is head.bias"


def test_a_text_is_cut_in_its_middle() -> None:
    cut = printable(LONG)
    assert len(cut) == MOST_TEXT
    assert cut.startswith("RuntimeError: one of")
    assert cut.endswith("head.bias")
    assert cut.count("...") == 1


def test_one_that_fits_is_left_alone() -> None:
    text = "x" * MOST_TEXT
    assert printable(text) == text
    assert printable("four", 4) == "four"


def test_a_note_of_it_has_its_end(tmp_path: Path) -> None:
    writer = FlightWriter(tmp_path / "0.flight")
    writer.note(ExceptionNote(type="RuntimeError"), LONG)
    (note,) = FlightReader(writer.path).view(Process(alive=True)).notes
    assert note.message.endswith("head.bias")
    assert len(json.dumps(note.message)) < len(LONG)
