"""Records that are read in parts say what they say when they are mapped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.notes import ExitNote
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightReader
from distdebug.record.reading.ring import OpenMaps, Window
from distdebug.record.signature import Signature, agreement_key, exact_key, hash64
from distdebug.record.snapshot import Call, Process, Rank
from distdebug.record.writing.slots import CallDescription, CallOrigin

from ..test_flight import WORLD, Author

ALIVE = Process(alive=True)


def begun(author: Author, elements: int) -> None:
    """It waits in a call whose signature is in no definition."""
    signature = Signature("all_reduce", (("float32", (elements,)),), reduce_op="max")
    description = CallDescription(
        op_code=OP_CODES[signature.op],
        signature_id=layout.VOLATILE_SIGNATURE,
        agree=hash64(agreement_key(signature)),
        exact=hash64(exact_key(signature)),
        contribution=0,
        channel=None,
        volatile=signature.to_json().encode(),
    )
    author.writer.begin(author.group, description, CallOrigin(author.site), 0)


def resting(path: Path) -> FlightReader:
    """One of many, which is not mapped just now."""
    reader = FlightReader(path, maps=OpenMaps(1))
    reader.rest()
    reader.keep_waits = True
    return reader


@contextlib.contextmanager
def looked_at(reader: FlightReader, window: Window) -> Iterator[None]:
    reader.look_through(window)
    try:
        yield
    finally:
        reader.look_away()


def through(window: Window, reader: FlightReader) -> tuple[Rank, Call | None]:
    """What is seen of it, and the call in which it waits, which is kept."""
    with looked_at(reader, window):
        assert reader.still_whole()
        reader.refresh_header()
        rank = reader.view(ALIVE)
    (wait,) = rank.waits
    assert wait.call is not None
    return replace(rank, history=None), reader.call(wait.call)


def mapped(path: Path) -> tuple[Rank, Call | None]:
    reader = FlightReader(path)
    rank = reader.view(ALIVE)
    (wait,) = rank.waits
    assert wait.call is not None
    return replace(rank, history=None), reader.call(wait.call)


def test_ranks_that_are_read_in_turn_are_not_taken_for_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.flight" for number in range(3)]
    authors = [Author(path) for path in paths]
    for number, author in enumerate(authors):
        author.writer.claim(number, 3, number, 0)
        for place in range(20 * number):  # more groups than others have
            author.writer.add_group({**WORLD, "name": f"{number}-{place}"})
        for _ in range(5000 * number):
            author.writer.finish(*author.call())
        begun(author, 8 + number)
    window = Window()
    readers = [resting(path) for path in paths]
    held = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for place in (0, 1, 2, 1, 0, 2):
            assert through(window, readers[place]) == mapped(paths[place])
    authors[0].writer.note(ExitNote(), "it leaves", authors[0].site)
    assert through(window, readers[0]) == mapped(paths[0])
    assert through(window, readers[0])[0].notes
    assert len(os.listdir("/proc/self/fd")) == held


def test_one_that_is_cut_short_reads_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "0.flight"
    author = Author(path)
    begun(author, 8)
    reader, window = resting(path), Window()
    os.truncate(path, layout.RING_OFFSET - 1)
    with pytest.raises(OSError, match="the record ends at byte"):
        window.open(path)
    with looked_at(reader, window):
        assert not reader.still_whole()
        assert reader.view(ALIVE).waits == ()
    assert reader.cut
