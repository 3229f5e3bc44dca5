"""What a node tells of its flight records, and the head's copies of them: readers see the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.diagnosis.facts.world import World
from distdebug.diagnosis.limits import Limits
from distdebug.nodes.many_nodes import pace_for
from distdebug.nodes.messages import Message, Patch, unpacked
from distdebug.nodes.mirror import Mirror, MirrorError, Sampler
from distdebug.record import layout, steady_clock
from distdebug.record.notes import CrashNote, ExitNote
from distdebug.record.reading.record_source import STILL_CALLS, joined
from distdebug.record.reading.records import Records
from distdebug.record.requests.supervision import dump_path
from distdebug.record.snapshot import Process, Rank, Snapshot
from tests.unit.record.test_flight import ALL_REDUCE, WORLD, Author

ALIVE = Process(alive=True, state="S")
KILLED = Process(alive=False, signal=9, ended_ns=1_000_000_000)


class Node:
    """A node with records of `ranks`, and the copies that a head has of them."""

    def __init__(self, tmp_path: Path, ranks: Sequence[int]) -> None:
        self.folder, self.copies = tmp_path / "node", tmp_path / "head"
        for folder in (self.folder, self.copies):
            folder.mkdir()
        self.process = ALIVE
        self.authors = {rank: Author(self.folder / f"pid-{100 + rank}.flight") for rank in ranks}
        for rank, author in self.authors.items():
            author.writer.claim(rank, len(ranks), rank, 0)
        self.sampler = Sampler(self.folder, lambda _pid, _ticks: self.process)
        self.mirror = Mirror(self.copies, 3)
        self.mirror.offset_ns = steady_clock.offset_ns()
        self.records = Records(self.copies, far=self.mirror.copy_of)

    def tell(self) -> Message:
        """One digest now, and what comes of it."""
        self.sampler.hasten()
        (digest,) = self.sampler.digests()
        for number, name, size in digest.data.get("files", ()):
            self.mirror.announced(number, name, size)
        self.mirror.apply(unpacked(digest.blob), digest.data.get("busy") is not True)
        for number, *values in digest.data.get("processes", ()):
            self.mirror.seen(number, values)
        return digest

    def seen(self) -> Snapshot:
        """By the head."""
        self.records.look(again=True)
        (snapshot,) = self.records.snapshots(lambda _pid, _ticks: ALIVE)
        return snapshot

    def meant(self) -> Snapshot:
        """By whoever has the records themselves."""
        records = Records(self.folder, steady=True)
        records.look()
        (snapshot,) = records.snapshots(lambda _pid, _ticks: self.process)
        return snapshot


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Node:
    return Node(tmp_path, [0, 1])


def plain(rank: Rank) -> Rank:
    return replace(rank, history=None, replicas=(), node=0)


def test_the_copies_say_the_same(node: Node) -> None:
    for author in node.authors.values():
        for _ in range(5):
            number, thread = author.call()
            author.writer.hand_over(number, thread)
        author.writer.finish(number, None)
    node.tell()
    node.tell()  # the ranks stand still
    seen, meant = node.seen(), node.meant()
    assert {n: plain(one) for n, one in seen.ranks.items()} == {
        n: plain(one) for n, one in meant.ranks.items()
    }
    assert all(one.node == 3 for one in seen.ranks.values())
    for number, rank in seen.ranks.items():
        other = meant.ranks[number].history
        assert rank.history is not None
        assert other is not None
        assert rank.history.recent(10) == other.recent(10)
        assert rank.history.recent(10)[-1].signature == ALL_REDUCE


def test_who_reads_a_copy_as_it_is_written_sees_no_call_that_is_not_there(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app does, in a process of its own."""
    author = node.authors[0]
    author.call()
    node.tell()
    node.tell()
    issued = []
    write = os.pwrite

    def read_after(descriptor: int, data: bytes, offset: int) -> int:
        done = write(descriptor, data, offset)
        records = Records(node.copies)
        records.look()
        (snapshot,) = records.snapshots(lambda _pid, _ticks: ALIVE)
        (group,) = snapshot.ranks[0].groups.values()
        issued.append(group.issued)
        return done

    author.call()
    monkeypatch.setattr(os, "pwrite", read_after)
    node.tell()
    assert set(issued) == {1, 2}
    assert issued == sorted(issued)


def test_a_note_that_is_written_while_the_record_is_sampled(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a rank that is killed just then: no other note follows."""
    author = node.authors[0]
    author.call()
    node.tell()
    number, thread = author.call()
    author.writer.hand_over(number, thread)

    def noting(pieces: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        author.writer.note(ExitNote(), "killed by SIGKILL", author.site)
        monkeypatch.undo()
        return joined(pieces)

    monkeypatch.setattr("distdebug.record.reading.record_source.joined", noting)
    for _ in range(3):
        node.tell()
        (note,) = node.seen().ranks[0].notes
        assert note.message == "killed by SIGKILL"


def test_a_busy_rank_costs_little_and_a_still_one_tells_more(node: Node) -> None:
    node.tell()
    author = node.authors[0]
    for _ in range(1000):
        author.call()
    busy = node.tell()
    assert sum(len(one.data) for one in unpacked(busy.blob)) < 2000
    history = node.seen().ranks[0].history
    assert history is not None
    assert history.call(999) is not None
    assert history.call(500) is None, "what was not told reads as overwritten"
    node.tell()
    assert len(history.recent(2000)) == STILL_CALLS
    node.sampler.fill()
    node.tell()
    assert len(history.recent(2000)) == 1000
    nothing = node.tell()
    assert not nothing.blob


def test_a_busy_rank_tells_the_last_call_of_a_group_that_rests(node: Node) -> None:
    """A thread of its own made that call: who looks for it needs the call, hours later, too."""
    author = node.authors[0]
    busy, resting = author.group, author.writer.add_group({**WORLD, "name": "1"})
    assert resting is not None
    node.tell()
    author.group = resting
    for _ in range(20):
        author.call()
    author.group = busy
    for _ in range(2):
        for _ in range(100):
            author.call()
        node.tell()
    history = node.seen().ranks[0].history
    assert history is not None
    assert history.at(("1", 0), 19) is not None
    assert history.call(10) is None, "no more than that"


@pytest.mark.parametrize("inside", [True, False])
def test_a_busy_rank_tells_the_calls_that_its_threads_are_in_or_wait_for(
    node: Node, inside: bool
) -> None:
    """A thread waits for one of many calls of its group, while others go on to call."""
    author = node.authors[0]
    numbers = []
    for _ in range(10):
        number, thread = author.call()
        author.writer.hand_over(number, thread)
        numbers.append(number)
    node.tell()

    def waits() -> None:
        if inside:
            numbers.append(author.call()[0])
        else:
            author.writer.enter_wait(numbers[3] + 1, author.site)

    waiting = threading.Thread(target=waits)
    waiting.start()
    waiting.join()
    awaited = numbers[-1] if inside else numbers[3]
    for _ in range(2):
        for _ in range(100):
            number, thread = author.call()
            author.writer.hand_over(number, thread)
        node.tell()
    rank = node.seen().ranks[0]
    (wait,) = rank.waits
    assert wait.call == awaited
    assert rank.history is not None
    assert rank.history.call(awaited) is not None
    assert rank.history.call(numbers[5]) is None, "no more than that"


def test_how_a_process_ended_is_told(node: Node) -> None:
    node.tell()
    assert node.seen().ranks[1].process.alive
    node.process = replace(KILLED, ended_ns=steady_clock.now_ns(), asked=True, replaced=True)
    (digest,) = node.sampler.digests()  # it is told at once
    for number, *values in digest.data["processes"]:
        node.mirror.seen(number, values)
    assert node.seen().ranks[1].process == node.process


def test_what_a_process_wrote_as_a_signal_ended_it_is_told(node: Node, tmp_path: Path) -> None:
    """The line is that of the thread that crashed, on whichever node."""
    node.tell()
    path = dump_path(tmp_path / "stacks", os.getpid())
    path.parent.mkdir()
    path.write_text(
        "Fatal Python error: Aborted\n\n"
        "Current thread 0x00007f3b4e000740 (most recent call first):\n"
        '  File "/app/data.py", line 12 in compress\n'
    )
    now_ns = steady_clock.now_ns()
    node.process = Process(alive=False, signal=signal.SIGABRT, ended_ns=now_ns)
    node.tell()
    (note,) = CrashNote.among(node.seen().ranks[1].notes)
    assert str(note.site) == "/app/data.py:12 in compress"
    assert note.data == {"stack": ("/app/data.py:12 in compress",)}
    (meant,) = CrashNote.among(node.meant().ranks[1].notes)
    assert (note.site, note.data) == (meant.site, meant.data)
    (row, _) = node.sampler._processes.values()
    with pytest.raises(MirrorError, match="what a node reports of a process cannot be read"):
        node.mirror.seen(0, [*row[:-1], [["x"], "no line"]])


def test_a_clock_of_its_own(node: Node) -> None:
    """The node's monotonic clock is an hour ahead of ours: its times are ours all the same."""
    node.mirror.offset_ns = steady_clock.offset_ns() - 3600 * 10**9
    node.authors[0].call()
    node.tell()
    before = node.seen().ranks[0].started_ns
    assert abs(steady_clock.now_ns() - 3600 * 10**9 - before) < 60 * 10**9
    node.mirror.correct(steady_clock.offset_ns())
    assert abs(steady_clock.now_ns() - node.seen().ranks[0].started_ns) < 60 * 10**9


def times(rank: Rank) -> list[int]:
    """Of its first call, its one note of an exit, and its end."""
    (note,) = ExitNote.among(rank.notes)
    call = rank.history.call(0) if rank.history is not None else None
    assert call is not None
    assert rank.process.ended_ns is not None
    return [call.issued_ns, note.time_ns, rank.process.ended_ns]


def test_a_clock_that_comes_to_be_known_better_while_a_rank_ends(node: Node) -> None:
    """Its calls, what it noted and its end stay in their order: a rank that was killed at its next
    call was else said to stand at the last one."""
    author = node.authors[0]
    author.call()
    author.writer.note(ExitNote(), "killed by SIGKILL", author.site)
    node.process = replace(KILLED, ended_ns=steady_clock.now_ns())
    node.tell()
    before = times(node.seen().ranks[0])
    node.mirror.correct(node.mirror.offset_ns + 10**9)
    assert times(node.seen().ranks[0]) == [one + 10**9 for one in before]


def test_a_name_that_is_given_late(node: Node) -> None:
    node.tell()
    os.rename(node.folder / "pid-100.flight", node.folder / "0.flight")
    time.sleep(0.06)  # the clock's grain of the folder
    node.tell()
    assert sorted(path.name for path in node.copies.iterdir()) == [
        "node3-0.flight",
        "node3-pid-101.flight",
    ]
    assert list(node.seen().ranks) == [0, 1]


def test_a_head_that_knows_nothing_is_told_all(node: Node) -> None:
    node.authors[0].call()
    node.tell()
    node.sampler.anew()
    digest = node.tell()
    assert len(digest.data["files"]) == 2
    assert node.seen().ranks[0].calls == 1


def test_what_has_become_shorter_in_a_digest_that_was_lost(node: Node) -> None:
    """What was told before of its end must not stay: the rest would be no text, and the rank of
    another job."""
    for joins in (False, True):
        for author in node.authors.values():
            author.writer.identify({"host": "b", "job": "tcp://a:1", "joins": joins})
        if not joins:
            node.tell()
    node.sampler.hasten()
    assert node.sampler.digests()  # is lost, as the connection is
    node.sampler.anew()
    node.tell()
    assert [one.job for one in node.seen().ranks.values()] == ["tcp://a:1"] * 2
    assert all(one.joins for one in node.seen().ranks.values())


@pytest.mark.parametrize(
    "name", ["../0.flight", "0.flight\n", "/etc/passwd", ".flight", "node1-0.flight", "x.replicas"]
)
def test_names_that_no_record_has(node: Node, name: str) -> None:
    with pytest.raises(MirrorError):
        node.mirror.announced(7, name, layout.FILE_BYTES)
    assert not list(node.copies.iterdir())


def test_nothing_is_written_outside_a_copy(node: Node) -> None:
    node.tell()
    for patch in (Patch(9, 0, b"x"), Patch(0, layout.FILE_BYTES - 1, b"xx")):
        with pytest.raises(MirrorError):
            node.mirror.apply([patch])
    with pytest.raises(MirrorError):
        node.mirror.seen(0, [True, "S"])
    with pytest.raises(MirrorError):
        node.mirror.announced(8, "pid-1-1.replicas", 1 << 40)


def test_what_has_not_changed_is_not_read_again(node: Node) -> None:
    for author in node.authors.values():
        author.call()
    node.tell()
    node.tell()
    first = node.seen()
    assert node.seen().ranks[0] is first.ranks[0]
    mark = node.records.change_mark
    node.authors[1].call()
    node.tell()
    second = node.seen()
    assert second.ranks[0] is first.ranks[0]
    assert second.ranks[1].calls == 2
    assert node.records.change_mark != mark
    node.process = replace(KILLED, ended_ns=steady_clock.now_ns())
    node.tell()
    assert not node.seen().ranks[0].process.alive, "of the process alone something was told"


def test_replicas_are_read_again_when_their_own_file_has_changed(node: Node) -> None:
    node.tell()
    before = node.mirror.copy_of(node.copies / "node3-pid-100.flight")
    assert before is not None
    changes = before.changes
    node.mirror.announced(9, "pid-100-1.replicas", 4096)
    node.mirror.apply([Patch(9, 0, b"x")])
    assert before.changes == changes + 1


def test_more_copies_than_can_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each rank all can be read all the same, the calls of long ago too."""
    monkeypatch.setattr("distdebug.record.reading.records.MOST_COPIES_MAPPED", 2)
    node = Node(tmp_path, range(6))
    for author in node.authors.values():
        for _ in range(50):
            author.call()
    node.tell()
    node.tell()
    held = len(os.listdir("/proc/self/fd"))
    seen, meant = node.seen(), node.meant()
    for number, rank in seen.ranks.items():
        other = meant.ranks[number].history
        assert rank.history is not None
        assert other is not None
        assert rank.history.recent(40) == other.recent(40)
        assert rank.waits == meant.ranks[number].waits
    node.authors[5].call()
    node.tell()
    assert node.seen().ranks[5].calls == 51
    assert len(os.listdir("/proc/self/fd")) <= held + 2 + len(meant.ranks)


def test_a_rank_of_another_node_that_was_not_told_anew_has_not_moved(node: Node) -> None:
    """A second look at the same copies is as good as with records that are read again."""
    node.authors[0].call()
    node.tell()
    node.tell()
    before, now = node.seen(), node.seen()
    world = World(now, before, Limits())
    assert world.stable(0)
    node.authors[0].call()
    node.tell()
    assert not World(node.seen(), now, Limits()).stable(0)


def test_of_many_ranks_that_go_on_calling_some_are_read_with_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in turn; and who stands still, has a note or was asked for is read at once."""
    monkeypatch.setattr("distdebug.record.reading.records.MOST_CALLING_READ", 2)
    node = Node(tmp_path, range(6))
    node.tell()

    def call() -> list[int]:
        for author in node.authors.values():
            author.call()
        assert node.tell().data.get("busy") is True
        return [one.calls for one in node.seen().ranks.values()]

    for author in node.authors.values():
        author.call()
    node.tell()
    assert [one.calls for one in node.seen().ranks.values()] == [1] * 6, (
        "what is new is in the heap"
    )
    seen = [call() for _ in range(3)]
    assert sorted(seen[0]) == [1, 1, 1, 1, 2, 2]
    assert all(calls > 1 for calls in seen[2]), "each was read within three looks"
    node.sampler.fill(1)
    for author in node.authors.values():
        author.call()
    assert "busy" not in node.tell().data
    assert [one.calls for one in node.seen().ranks.values()] == [5] * 6
    call()
    node.tell()
    assert [one.calls for one in node.seen().ranks.values()] == [6] * 6, "they are still"


def test_that_ranks_go_on_calling_is_no_news(node: Node) -> None:
    """Everything else is: who comes to stand still, notes something, ends or is lost."""
    news = [node.mirror.news]

    def is_news() -> bool:
        news.append(node.mirror.news)
        return news[-1] > news[-2]

    node.tell()
    assert is_news()
    for author in node.authors.values():
        author.call()
    node.tell()
    assert is_news(), "the first call, whose signature is new"
    for _ in range(3):
        for author in node.authors.values():
            author.call()
        assert node.tell().data.get("busy") is True
        assert not is_news()
    node.mirror.correct(node.mirror.offset_ns + 10**6)
    assert not is_news(), "clocks drift apart: of 2,048 nodes one is known better all the time"
    node.tell()
    assert is_news(), "they stand still"
    node.mirror.correct(node.mirror.offset_ns + 10**6)
    assert is_news(), "a cause is found by the order of times"
    node.tell()
    assert not is_news(), "they still do"
    for author in node.authors.values():
        author.call()
    node.authors[0].writer.note(ExitNote(), "ended", node.authors[0].site)
    node.tell()
    assert is_news()
    node.process = KILLED
    node.tell()
    assert is_news()
    node.mirror.ended(1)
    assert is_news()


def test_what_may_matter_of_the_ranks_of_this_host(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distdebug.record.reading.records.HERE_EVERY_S", 0.0)
    records = Records(node.folder, steady=True)
    found: list[tuple[object, ...]] = []

    def differs() -> bool:
        found.append(records.here(lambda _pid, _ticks: node.process))
        return found[-1] != found[-2]

    def call() -> None:
        for author in node.authors.values():
            author.call()

    records.look()
    call()
    found.append(records.here(lambda _pid, _ticks: node.process))
    for _ in range(3):
        call()
        assert not differs(), "they go on calling"
    assert differs(), "they stand still"
    assert not differs()
    node.authors[1].call()
    assert differs(), "one calls again"
    assert differs(), "and stands still"
    node.authors[1].writer.note(ExitNote(), "ended", node.authors[1].site)
    assert differs()
    differs()
    node.process = KILLED
    assert differs()


def test_much_is_told_in_parts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 ranks all calls together are more than goes in a message."""
    node.tell()
    monkeypatch.setattr("distdebug.nodes.messages.MOST_PART_BYTES", 2000)
    for author in node.authors.values():
        for _ in range(300):
            author.call()
    node.sampler.fill(7)
    digests = node.sampler.digests()
    assert len(digests) > 1
    serials = [one.data["serial"] for one in digests]
    assert serials == list(range(serials[0], serials[0] + len(digests)))
    assert all(one.data.get("more") for one in digests[:-1])
    assert all("t" not in one.data and "filled" not in one.data for one in digests[:-1])
    assert digests[-1].data["filled"] == 7
    for one in digests:
        for number, name, size in one.data.get("files", ()):
            node.mirror.announced(number, name, size)
        node.mirror.apply(unpacked(one.blob), one.data.get("busy") is not True)
    seen, meant = node.seen(), node.meant()
    assert {n: plain(one).groups for n, one in seen.ranks.items()} == {
        n: plain(one).groups for n, one in meant.ranks.items()
    }


def test_more_files_than_a_node_has_are_left_out_and_the_others_followed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that were started one after the other, thousands of them, say."""
    monkeypatch.setattr("distdebug.nodes.mirror.MOST_FILES", 1)
    node.tell()
    assert node.mirror.left_out == 1
    node.authors[0].call()
    node.authors[1].call()
    node.tell()
    assert list(node.seen().ranks) == [0]


@pytest.mark.parametrize(
    ("nodes", "silent_s", "alive"),
    [(64, 20, True), (64, 100, False), (2048, 100, True), (2048, 300, False)],
)
def test_who_has_the_copies_alone_knows_how_seldom_nodes_tell(
    tmp_path: Path, nodes: int, silent_s: int, alive: bool
) -> None:
    """Of many nodes a rank that goes on calling may be told of after two minutes, and lives."""
    node = Node(tmp_path, [0, 1])
    node.mirror = Mirror(node.copies, nodes)
    node.mirror.offset_ns = steady_clock.offset_ns()
    for author in node.authors.values():
        author.writer.heartbeat(1, author.writer.serial, author.site)
    node.tell()
    records = Records(node.copies)
    records.look()
    now_ns = steady_clock.now_ns() + silent_s * 10**9
    (snapshot,) = records.snapshots(lambda _pid, _ticks: KILLED, now_ns=now_ns)
    assert [one.process.alive for one in snapshot.ranks.values()] == [alive, alive]


def test_the_numbers_are_right_as_soon_as_ranks_of_many_nodes_rest(tmp_path: Path) -> None:
    """However long nobody has told of them: for the head's looks, and for who has its files."""
    node = Node(tmp_path, [0, 1])
    node.sampler.pace = replace(pace_for(2048), least_s=0.0)
    node.tell()
    for _ in range(500):
        for author in node.authors.values():
            author.writer.finish(*author.call())
    assert node.sampler.digests() == [], "they go on calling"
    assert {one.calls for one in node.seen().ranks.values()} == {0}
    (digest,) = node.sampler.digests()
    assert "busy" not in digest.data, "they have come to stand still, which is told at once"
    news = node.mirror.news
    node.mirror.apply(unpacked(digest.blob), digest.data.get("busy") is not True)
    assert node.mirror.news > news, "the head looks at them"
    assert {one.calls for one in node.seen().ranks.values()} == {500}
    records = Records(node.copies)
    records.look()
    (snapshot,) = records.snapshots()
    assert {one.calls for one in snapshot.ranks.values()} == {500}
