"""The lines of a rank's calls, as its writer puts them on record and a reader has them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.layout import Definition
from distdebug.record.lines import PackedLines
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightReader
from distdebug.record.reading.record_source import RecordSource
from distdebug.record.snapshot import Channel, Group, Place, Process
from distdebug.record.writing.slots import CallDescription, CallOrigin, ChannelSlot, GroupSlot
from distdebug.record.writing.writer import FlightWriter
from tests.support.lines_of_calls import places

WORLD = {
    "name": "0",
    "incarnation": 0,
    "desc": "default_pg",
    "ranks": [0, 1],
    "backend": "gloo",
    "timeout_s": 5.0,
}


class Rank:
    """Calls from lines by their number; a caller makes another place of a line."""

    def __init__(self, path: Path, folder: str = "/a/work") -> None:
        self.writer = FlightWriter(path)
        self.group = self.add_group("0")
        self._folder = folder
        self.call = self.describe(None)

    def add_group(self, name: str) -> GroupSlot:
        group = self.writer.add_group({**WORLD, "name": name})
        assert group is not None
        return group

    def describe(self, channel: ChannelSlot | None) -> CallDescription:
        op = "all_reduce" if channel is None else "send"
        return CallDescription(OP_CODES[op], 1, 5, 5, 0, channel, None)

    def origin(self, line: int, *callers: int) -> CallOrigin:
        file = f"{self._folder}/train.py"
        row = [file, line, "step", "", [[file, at, "main"] for at in callers]]
        site = self.writer.define(Definition.SITE, json.dumps(row if callers else row[:3]))
        return CallOrigin(site, placed=line > 0)

    def make(self, lines: Iterable[int], group: GroupSlot | None = None) -> None:
        origins: dict[int, CallOrigin] = {}
        for line in lines:
            origin = origins.get(line) or origins.setdefault(line, self.origin(line))
            call = self.writer.begin(group or self.group, self.call, origin, 0)
            self.writer.complete(*call)

    def read(self, name: str = "0") -> Group:
        view = FlightReader(self.writer.path).view(Process(alive=True))
        return view.groups[name, 0]


@pytest.fixture(name="rank")
def _rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "0.flight")


def lines_of(owner: Group | Channel) -> list[int]:
    assert owner.lines is not None
    found = places(owner.lines, owner.issued)
    return [0 if place is None else place.sites[0].line for place in found]


def test_what_is_read_is_what_was_called(rank: Rank) -> None:
    calls = [1, 2, 2, 3, 0, 1] * 5 + [7, 0, 0] + [1, 2, 2, 3, 0, 1] * 9
    for made in range(1, len(calls) + 1):
        rank.make([calls[made - 1]])
        group = rank.read()
        assert lines_of(group) == calls[:made]
    lines = rank.read().lines
    assert lines is not None
    assert lines.surprises[0].seq == 0
    assert len(lines.surprises) < 30


def test_a_slip_is_still_there_after_100_000_calls(tmp_path: Path) -> None:
    usual = [10, 20, 20, 20, 30] * 20_000
    slipped = [*usual[:6], *usual[7:]]
    ranks = [Rank(tmp_path / f"{number}.flight") for number in range(2)]
    for rank, calls in zip(ranks, (usual, slipped), strict=True):
        rank.make(calls)
        group = rank.read()
        assert lines_of(group) == calls
        assert group.lines is not None
        assert len(group.lines.surprises) < 15
    ours, theirs = (rank.read() for rank in ranks)
    assert ours.lines is not None
    assert theirs.lines is not None
    assert ours.lines.mark != theirs.lines.mark
    pairs = zip(lines_of(ours), lines_of(theirs), strict=False)
    assert next(seq for seq, (one, other) in enumerate(pairs) if one != other) == 8


def test_marks_are_the_same_on_every_host(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path / "0.flight"), Rank(tmp_path / "1.flight", "/scratch/b/work")]
    ranks[1].origin(99)  # its ids are others
    for rank, calls in zip(ranks, (40, 55), strict=True):
        rank.make([1, 2, 3] * calls)
    ours, theirs = (rank.read().lines for rank in ranks)
    assert ours is not None
    assert theirs is not None
    assert ours.mark == theirs.mark
    assert [one.place for one in ours.surprises] == [one.place for one in theirs.surprises]


def test_callers_are_a_part_of_the_place(rank: Rank) -> None:
    for caller in (50, 60, 50, 60):
        call = rank.writer.begin(rank.group, rank.call, rank.origin(7, caller, 90), 0)
        rank.writer.complete(*call)
    group = rank.read()
    assert group.lines is not None
    found = list(places(group.lines, 4))
    assert found[0] == found[2] != found[1] == found[3]
    assert isinstance(found[0], Place)
    assert [site.line for site in found[0].sites] == [7, 50, 90]
    reader = FlightReader(rank.writer.path)
    reader.view(Process(alive=True))
    call_0 = reader.call(0)
    assert call_0 is not None
    assert call_0.site == found[0].sites[0]


def test_groups_and_channels_have_lines_of_their_own(rank: Rank) -> None:
    groups = [rank.add_group(f"{number}") for number in range(1, 40)]
    channels = [
        rank.writer.add_channel(
            {"group": 0, "name": "0", "incarnation": 0, "op": "send", "peer": 1, "tag": tag}
        )
        for tag in range(30)
    ]
    for step in range(20):
        for number, group in enumerate(groups):
            rank.make([100 + number, 200 + number, 5], group)
        for tag, channel in enumerate(channels):
            line = tag if step % 2 else 300 + tag
            call = rank.writer.begin(rank.group, rank.describe(channel), rank.origin(line), 0)
            rank.writer.complete(*call)
    view = FlightReader(rank.writer.path).view(Process(alive=True))
    for number in range(1, 40):
        assert lines_of(view.groups[f"{number}", 0]) == [99 + number, 199 + number, 5] * 20
    assert view.groups["0", 0].lines is None  # no call
    for tag, read in enumerate(view.channels):
        assert lines_of(read) == [300 + tag, tag] * 10


def test_without_order_the_lines_are_given_up_and_others_are_kept(rank: Rank) -> None:
    other = rank.add_group("other")
    rank.make([1, 2, 3] * 10, other)
    state = 1
    calls = []
    for _ in range(9000):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        calls.append(1 + (state >> 16) % 7)
    rank.make(calls)
    assert rank.read().lines is None
    assert lines_of(rank.read("other")) == [1, 2, 3] * 10


def test_what_is_overwritten_is_taken_from_the_ring_of_calls(rank: Rank) -> None:
    rank.make([1, 2, 3, 4, 5] * 400)
    chaos = [rank.add_group(f"{number}") for number in range(1, 6)]
    for number, group in enumerate(chaos):
        rank.make(range(10 * number, 10 * number + 1023), group)
    group = rank.read()
    assert group.lines is not None
    assert group.lines.mark == rank.read().lines.mark  # type: ignore[union-attr]
    assert group.lines.surprises == []  # nor has the ring a call of it
    rank.make([1, 2, 3, 4, 5] * 4)
    group = rank.read()
    assert group.lines is not None
    assert group.lines.surprises[0].seq == 2000
    assert lines_of(group) == [1, 2, 3, 4, 5] * 4


@pytest.mark.parametrize("expected", [True, False])
def test_a_refused_call_is_as_if_it_had_not_been_made(rank: Rank, expected: bool) -> None:
    rank.make([1, 2, 3] * 5)
    for _ in range(2):
        refused = rank.writer.begin(rank.group, rank.call, rank.origin(1 if expected else 9), 0)
        assert rank.writer.take_back(refused[0], rank.group, rank.call)
        rank.writer.break_off(*refused)
        rank.make([1])
        assert lines_of(rank.read())[-4:] == [1, 2, 3, 1]
        rank.make([2, 3])
    rank.make([1, 2, 3] * 4)
    group = rank.read()
    assert group.issued == 5 * 3 + 6 + 12
    assert lines_of(group) == [1, 2, 3] * 11


def test_threads_that_call_in_one_group_are_in_the_order_of_their_calls(rank: Rank) -> None:
    def work(lines: Sequence[int]) -> None:
        rank.make(lines * 150)

    threads = [threading.Thread(target=work, args=([at, at + 1],)) for at in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    group = rank.read()
    assert group.issued == 900
    assert group.last is not None
    reader = FlightReader(rank.writer.path)
    reader.view(Process(alive=True))
    ring = reader.recent(900)
    assert [call.seq for call in ring] == list(range(900))
    assert lines_of(group) == [call.site.line for call in ring if call.site is not None]


def test_other_nodes_are_told(rank: Rank, tmp_path: Path) -> None:
    source = RecordSource(rank.writer.path)
    copy = bytearray(layout.FILE_BYTES)
    path = tmp_path / "node1-0.flight"
    for calls in ([1, 2, 3] * 5, [2, 3], [1, 2, 3] * 50, [4]):
        rank.make(calls)
        for at, data in source.sample():
            copy[at : at + len(data)] = data
        path.write_bytes(copy)
        view = FlightReader(path).view(Process(alive=True))
        ours = rank.read()
        theirs = view.groups["0", 0]
        assert lines_of(theirs) == lines_of(ours)
        assert theirs.lines is not None
        assert theirs.lines.mark == ours.lines.mark  # type: ignore[union-attr]


def test_what_a_hostile_record_says_is_no_log(rank: Rank) -> None:
    rank.make([1, 2, 3] * 5)
    at = layout.SURPRISES_OFFSET + 2 * layout.SURPRISE.size
    row = list(layout.SURPRISE.unpack_from(rank.writer._map, at))
    for period in (0, 900):
        row[3] = period
        layout.SURPRISE.pack_into(rank.writer._map, at, *row)
        assert lines_of(rank.read()) == [1, 2, 3] * 5  # from the ring
    layout.LINES.pack_into(rank.writer._map, rank.group.lines_at, 3, 9, 1, 4)
    assert rank.read().lines is None  # torn


def test_the_log_is_that_of_all_calls(rank: Rank) -> None:
    calls = [1, 2, 2, 5] * 30
    rank.make(calls)
    read = rank.read().lines
    assert read is not None
    packed = PackedLines(enumerate(places(read, len(calls))))
    assert list(read.surprises) == packed.surprises
    assert read.mark == packed.mark


def test_a_call_is_known_before_its_surprise_is_on_record(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.make([1, 2, 3] * 5)
    monkeypatch.setattr(rank.writer, "_surprised", lambda *_: None)
    rank.make([9])
    assert lines_of(rank.read()) == [*[1, 2, 3] * 5, 9]
