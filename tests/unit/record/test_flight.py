"""The flight record: what is written is read back, torn and overwritten slots are told apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.layout import Activity, CallState, Definition, GroupState, Phase, Role
from distdebug.record.notes import ExceptionNote
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightError, FlightReader
from distdebug.record.signature import Signature, agreement_key, exact_key, hash64
from distdebug.record.snapshot import CallSite, Process
from distdebug.record.writing.slots import (
    CallDescription,
    CallOrigin,
    ChannelSlot,
    GroupSlot,
    ThreadSlot,
)
from distdebug.record.writing.writer import FlightWriter
from tests.support.chains import extend_chain

ALL_REDUCE = Signature("all_reduce", (("float32", (4,)),), reduce_op="sum")
WORLD = {
    "name": "0",
    "incarnation": 0,
    "desc": "default_pg",
    "ranks": [0, 1],
    "backend": "gloo",
    "timeout_s": 5.0,
}
KEY = ("0", 0)
ALIVE = Process(alive=True)


def test_a_signature_of_an_op_that_nobody_knows() -> None:
    assert str(Signature("fly", root=3)) == "fly(root=3)"


class Author:
    """Writes calls as the layer does."""

    def __init__(self, path: Path) -> None:
        self.writer = FlightWriter(path)
        group = self.writer.add_group(WORLD)
        assert group is not None
        self.group: GroupSlot = group
        self.site = self.writer.define(Definition.SITE, json.dumps(["/a/train.py", 7, "step"]))

    def describe(
        self, signature: Signature = ALL_REDUCE, channel: ChannelSlot | None = None
    ) -> CallDescription:
        return CallDescription(
            op_code=OP_CODES[signature.op],
            signature_id=self.writer.define(Definition.SIGNATURE, signature.to_json()),
            agree=hash64(agreement_key(signature)),
            exact=hash64(exact_key(signature)),
            contribution=0,
            channel=channel,
            volatile=None,
        )

    def call(
        self, signature: Signature = ALL_REDUCE, channel: ChannelSlot | None = None
    ) -> tuple[int, ThreadSlot]:
        return self.writer.begin(
            self.group, self.describe(signature, channel), CallOrigin(self.site), 0
        )


@pytest.fixture(name="author")
def _author(tmp_path: Path) -> Author:
    return Author(tmp_path / "0.flight")


def read(author: Author) -> FlightReader:
    reader = FlightReader(author.writer.path)
    reader.view(ALIVE)
    return reader


def test_a_call_is_read_back(author: Author) -> None:
    number, thread = author.call()
    author.writer.hand_over(number, thread)
    author.writer.finish(number, None)
    view = FlightReader(author.writer.path).view(ALIVE)
    assert view.history is not None
    call = view.history.call(0)
    assert call is not None
    assert (call.signature, call.seq, call.group) == (ALL_REDUCE, 0, KEY)
    assert call.site == CallSite("/a/train.py", 7, "step")
    assert call.state is CallState.COMPLETED
    assert call.issued_ns <= call.started_ns <= call.completed_ns
    assert view.groups[KEY].issued == 1


def test_chain_is_the_one_of_the_format(author: Author) -> None:
    chain = 0
    for _ in range(3):
        author.call()
        chain = extend_chain(chain, hash64(agreement_key(ALL_REDUCE)))
    reader = read(author)
    assert reader.view(ALIVE).groups[KEY].chain == chain
    chains = reader.chains_after(KEY, 3)
    assert chains is not None
    assert chains[0] == chain
    assert reader.chains_after(KEY, 0) == (0, 0, 0)


def test_overwritten_calls_read_as_absent(author: Author) -> None:
    for _ in range(layout.RING + 10):
        author.call()
    reader = read(author)
    assert reader.call(9) is None
    assert reader.at(KEY, 9) is None
    assert reader.call(10) is not None
    assert reader.chains_after(KEY, 5) is None
    last = reader.recent(3, KEY)
    assert [call.seq for call in last] == [layout.RING + 7, layout.RING + 8, layout.RING + 9]


def test_timings_are_of_calls_that_are_on_record(author: Author) -> None:
    channel = author.writer.add_channel(
        {"name": "0", "incarnation": 0, "op": "recv", "peer": 1, "tag": 3}
    )
    message = Signature("recv", (("float32", (4,)),), peer=1, tag=3)
    author.writer.complete(*author.call())
    author.writer.hand_over(*author.call())
    author.call(message, channel)
    reader = read(author)
    first, second, third = reader.timings(range(-2, 9))
    assert [one.number for one in (first, second, third)] == [0, 1, 2]
    assert [(one.group, one.seq) for one in (first, second, third)] == [
        (KEY, 0),
        (KEY, 1),
        (KEY, 0),
    ]
    assert [one.blocks for one in (first, second, third)] == [True, False, True]
    assert [one.message for one in (first, second, third)] == [None, None, ("recv", 1, 3)]
    whole = reader.call(0)
    assert whole is not None
    assert (first.issued_ns, first.completed_ns) == (whole.issued_ns, whole.completed_ns)
    assert first.completed_ns >= first.issued_ns > 0
    assert third.completed_ns == 0
    for _ in range(layout.RING):
        author.call()
    assert [one.number for one in reader.timings([0, 2, 3])] == [3]


def test_checkpoints_answer_without_walking(author: Author) -> None:
    for _ in range(3 * layout.CHECKPOINT_EVERY):
        author.call()
    reader = read(author)
    for issued in (64, 128, 192):
        walked = next(
            (row[11], row[12], row[13])
            for _, row in reader._walk(3 * 64 - 1)
            if row[10] == issued - 1
        )
        assert reader.chains_after(KEY, issued) == walked


def test_torn_slot_reads_as_absent(author: Author) -> None:
    author.call()
    author.call()
    at = layout.RING_OFFSET + layout.SLOT.size
    with open(author.writer.path, "r+b") as file:
        file.seek(at + layout.SLOT.size - 8)
        file.write(bytes(8))  # the second mark never arrived
    reader = read(author)
    assert reader.call(0) is not None
    assert reader.call(1) is None


def test_channels_count_per_peer_and_tag(author: Author) -> None:
    channel = author.writer.add_channel(
        {"name": "0", "incarnation": 0, "op": "send", "peer": 1, "tag": 3}
    )
    assert channel is not None
    send = Signature("send", (("float32", (2,)),), peer=1, tag=3)
    author.call()
    author.call(send, channel)
    author.call(send, channel)
    reader = read(author)
    found = reader.view(ALIVE).channels[0]
    assert (found.op, found.peer, found.tag, found.issued) == ("send", 1, 3, 2)
    message = reader.message(found, 1)
    assert message is not None
    assert message.signature == send
    assert reader.view(ALIVE).groups[KEY].issued == 1  # sends do not count as collectives


def test_waits_nest(author: Author) -> None:
    writer = author.writer
    detail = writer.define(Definition.DETAIL, '{"op":"store.get","key":"k"}')
    outer = writer.enter(int(Activity.STORE), 0, detail, author.site)
    inner = writer.enter(int(Activity.IN_CALL), 5, 0, author.site)
    assert [wait.call for wait in read(author).view(ALIVE).waits] == [4]
    writer.leave(inner)
    (wait,) = read(author).view(ALIVE).waits
    assert (wait.activity, wait.detail["key"]) == (Activity.STORE, "k")
    before = wait.serial
    writer.leave(outer)
    assert not read(author).view(ALIVE).waits
    assert read(author).view(ALIVE).layer_serial > before


def test_heartbeat_counts_only_for_its_serial(author: Author) -> None:
    author.writer.heartbeat(2, author.writer.serial, author.site)
    view = read(author).view(ALIVE)
    assert (view.free_threads, view.location) == (2, CallSite("/a/train.py", 7, "step"))
    author.writer.leave(author.writer.enter(int(Activity.INIT), 0, 0, 0))
    assert read(author).view(ALIVE).free_threads == -1


def test_a_reader_that_stays_open_sees_what_comes(author: Author) -> None:
    reader = FlightReader(author.writer.path)
    assert reader.view(ALIVE).calls == 0
    before = reader.change_mark
    author.call()
    author.writer.note(ExceptionNote(type="ValueError"), "ValueError: no", author.site)
    assert reader.change_mark != before
    view = reader.view(ALIVE)
    assert view.calls == 1
    assert view.notes[0].kind == "exception"


def test_signatures_that_never_repeat_go_to_the_volatile_area(author: Author) -> None:
    text = Signature("all_reduce", (("float32", (99,)),), reduce_op="max")
    description = replace(
        author.describe(),
        signature_id=layout.VOLATILE_SIGNATURE,
        volatile=text.to_json().encode(),
    )
    place = CallOrigin(author.site)  # the same call comes from it again
    for _ in range(3):
        author.writer.complete(*author.writer.begin(author.group, description, place, 0))
    reader = read(author)
    for number in range(3):
        call = reader.call(number)
        assert call is not None
        assert call.signature == text


@pytest.mark.parametrize("last", [7, (1 << 29) - 1, 1 << 29, (1 << 32) - 1, 1 << 32, (1 << 40) + 5])
def test_the_call_before_is_on_record_by_its_low_bits(author: Author, last: int) -> None:
    author.group.last = last
    author.call()
    row = layout.SLOT.unpack_from(author.writer._map, layout.RING_OFFSET)
    assert row[8] == last % (1 << 32)


def test_a_call_that_raises_is_failed(author: Author) -> None:
    number, thread = author.call()
    author.writer.break_off(number, thread)
    reader = read(author)
    call = reader.call(0)
    assert call is not None
    assert call.state is CallState.FAILED
    assert not reader.view(ALIVE).waits


def test_a_call_in_progress_is_a_wait(author: Author) -> None:
    author.call()
    (wait,) = read(author).view(ALIVE).waits
    assert (wait.activity, wait.call) == (Activity.IN_CALL, 0)


def test_a_call_within_a_call_and_a_wait_within_both(author: Author) -> None:
    def waits() -> list[tuple[Activity, int | None, CallSite | None]]:
        found = read(author).view(ALIVE).waits
        return [(wait.activity, wait.call, wait.site) for wait in found]

    line = CallSite("/a/train.py", 7, "step")
    outer, thread = author.call()
    since_ns = read(author).view(ALIVE).waits[0].since_ns
    inner, same = author.call()
    assert thread is same
    assert waits() == [(Activity.IN_CALL, inner, line)]
    author.writer.enter(int(Activity.STORE), 0, 0, 0)
    assert waits() == [(Activity.STORE, None, None)]
    author.writer.leave(thread)
    author.writer.finish(inner, thread)
    assert waits() == [(Activity.IN_CALL, outer, line)]
    assert since_ns == read(author).call(outer).issued_ns  # type: ignore[union-attr]
    author.writer.finish(outer, thread)
    assert waits() == []
    last, thread = author.call()
    assert waits() == [(Activity.IN_CALL, last, line)]
    author.writer.hand_over(last, thread)
    assert waits() == []


def test_a_thread_that_stays_in_a_call_keeps_its_line(author: Author) -> None:
    """Also when others have made so many calls that its own is overwritten."""
    entered, go_on = threading.Event(), threading.Event()

    def stay() -> None:
        number, thread = author.call()
        entered.set()
        go_on.wait()
        author.writer.finish(number, thread)

    staying = threading.Thread(target=stay)
    staying.start()
    entered.wait()
    before = read(author)
    assert before.call(0) is not None
    issued_ns = before.call(0).issued_ns  # type: ignore[union-attr]
    for _ in range(layout.RING + 5):
        number, thread = author.call()
        author.writer.finish(number, thread)
    reader = read(author)
    assert reader.call(0) is None
    (wait,) = reader.view(ALIVE).waits
    assert (wait.activity, wait.call) == (Activity.IN_CALL, 0)
    assert (wait.site, wait.since_ns) == (CallSite("/a/train.py", 7, "step"), issued_ns)
    go_on.set()
    staying.join()
    view = read(author).view(ALIVE)
    assert not view.waits


def test_groups_and_channels_in_turns_have_their_counts(author: Author) -> None:
    other = author.writer.add_group({**WORLD, "name": "1"})
    assert other is not None
    channels = [
        author.writer.add_channel(
            {"name": "0", "incarnation": 0, "op": "send", "peer": 1, "tag": tag}
        )
        for tag in (0, 1)
    ]
    send = Signature("send", (("float32", (2,)),), peer=1)
    world = author.group
    chains = {KEY: 0, ("1", 0): 0}
    issued = dict.fromkeys((KEY, ("1", 0), 0, 1), 0)
    for turn in (0, 0, "m0", 1, 0, "m1", "m1", 1, 1, "m0", 0):
        if isinstance(turn, int):
            author.group, key = ((world, KEY), (other, ("1", 0)))[turn]
            number, thread = author.call()
            chains[key] = extend_chain(chains[key], hash64(agreement_key(ALL_REDUCE)))
            issued[key] += 1
        else:
            author.group = world
            number, thread = author.call(send, channels[int(turn[1])])
            issued[int(turn[1])] += 1
        author.writer.hand_over(number, thread)
        view = read(author).view(ALIVE)
        counts = {key: group.issued for key, group in view.groups.items()}
        counts.update({channel.tag: channel.issued for channel in view.channels})  # type: ignore[misc]
        assert counts == issued
        assert {key: group.chain for key, group in view.groups.items()} == chains


def test_a_group_in_the_place_of_another_has_none_of_its_calls(author: Author) -> None:
    author.call()
    author.writer.group_state(author.group, GroupState.DESTROYED)
    for number in range(1, layout.GROUPS):
        author.writer.add_group({**WORLD, "name": str(number)})
    new = author.writer.add_group({**WORLD, "name": "new"})
    assert new is not None
    assert new.index == author.group.index
    group = read(author).view(ALIVE).groups["new", 0]
    assert (group.issued, group.last, group.chain) == (0, None, 0)
    other, author.group = author.writer.add_group({**WORLD, "name": "other"}), new
    assert other is None  # all places are taken
    author.group = author.writer._group_slots[7]
    author.call()  # the call before it was the destroyed group's
    group = read(author).view(ALIVE).groups["new", 0]
    assert (group.issued, group.last, group.chain) == (0, None, 0)
    author.group = new
    author.call()
    assert read(author).view(ALIVE).groups["new", 0].issued == 1


def test_threads_that_share_a_place_are_still_seen_to_move(author: Author) -> None:
    for ident in range(layout.THREADS + 1):
        author.writer._threads[-ident] = ThreadSlot(min(ident, layout.THREADS - 1), 0, ident >= 63)
    slot = author.writer._threads[-layout.THREADS]
    author.writer._threads[threading.get_ident()] = slot
    before = author.writer.serial
    number, thread = author.call()
    assert thread is slot
    between = author.writer.serial
    assert read(author).view(ALIVE).calls == 1
    author.writer.finish(number, thread)
    assert before < between < author.writer.serial == read(author).view(ALIVE).layer_serial


def test_an_inferred_wait_ends_with_the_next_call(author: Author) -> None:
    first, thread = author.call()
    author.writer.hand_over(first, thread)
    author.writer.infer(threading.get_ident(), 1, first + 1, author.site)
    (wait,) = read(author).view(ALIVE).waits
    assert (wait.inferred, wait.call) == (True, first)
    number, thread = author.call()
    (wait,) = read(author).view(ALIVE).waits
    assert (wait.inferred, wait.call) == (False, number)
    author.writer.finish(number, thread)
    assert not read(author).view(ALIVE).waits


def test_a_full_heap_costs_texts_only(author: Author) -> None:
    for size in (60_000, 1_000, 1):
        while author.writer.define(Definition.DETAIL, json.dumps("x" * size + str(os.urandom(8)))):
            pass
    assert author.writer.define(Definition.SITE, json.dumps(["/b.py" * 100, 1, "f"])) == 0
    # The last words of a rank still find room.
    assert author.writer.define(Definition.NOTE, '{"kind": "layer_off"}') > 0
    number, thread = author.call()
    author.writer.finish(number, thread, 1)
    call = read(author).call(number)
    assert call is not None
    assert call.signature.op == "all_reduce"


def test_identity_and_phase(author: Author) -> None:
    author.writer.identify({"host": "here", "job": "j"})
    author.writer.claim(3, 8, 1, 2, 4)
    author.writer.phase(Phase.ENDED, 5)
    author.writer.group_state(author.group, GroupState.DESTROYED)
    reader = FlightReader(author.writer.path)
    view = reader.view(Process(alive=False))
    assert (view.rank, view.world_size, view.local_rank, view.restart_count) == (3, 8, 1, 2)
    assert view.max_restarts == 4
    assert (view.host, view.job, view.phase, view.exit_code) == ("here", "j", Phase.ENDED, 5)
    assert view.process.ended_ns
    assert view.groups[KEY].state is GroupState.DESTROYED
    assert reader.role is Role.RANK


def test_since_when_it_leaves(author: Author) -> None:
    """The process's end is that of the leaving that began before."""
    reader = FlightReader(author.writer.path)
    assert reader.view(Process(alive=True)).exiting_ns == 0
    author.writer.phase(Phase.EXITING, 3)
    began_ns = reader.view(Process(alive=True)).exiting_ns
    author.writer.phase(Phase.ENDED, 3)
    view = reader.view(Process(alive=False))
    assert began_ns
    assert (view.exiting_ns, view.exit_code) == (began_ns, 3)


def test_the_file_is_private_and_never_overwritten(author: Author) -> None:
    assert author.writer.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        FlightWriter(author.writer.path)


def test_detached_writer_leaves_the_file_alone(author: Author) -> None:
    author.call()
    author.writer.detach()
    author.call()
    assert read(author).view(ALIVE).calls == 1


def test_what_was_written_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "0.flight"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.record.test_flight import Author\n"
        "author = Author(Path(sys.argv[1]))\n"
        "for _ in range(100): author.call()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[3], timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    view = FlightReader(path).view(Process(alive=False))
    assert view.groups[KEY].issued == 100


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a flight record"),
        (b"PK\x03\x04 something else", "is not a flight record"),
        (layout.MAGIC + (1).to_bytes(4, "little"), "version 1, which distdebug 0.1.0 reads"),
        (layout.MAGIC + (5).to_bytes(4, "little") + bytes(layout.FILE_BYTES), "version 5; this"),
        (layout.MAGIC + layout.VERSION.to_bytes(4, "little"), "is truncated"),
    ],
)
def test_foreign_files_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "0.flight"
    path.write_bytes(content)
    with pytest.raises(FlightError, match=words):
        FlightReader(path)


def test_a_link_is_refused(author: Author, tmp_path: Path) -> None:
    link = tmp_path / "1.flight"
    link.symlink_to(author.writer.path)
    with pytest.raises(FlightError):
        FlightReader(link)


def test_any_bytes_can_be_read(author: Author) -> None:
    """A damaged or hostile record may read as nonsense, but never breaks its reader."""
    import random

    for _ in range(20):
        author.call()
    author.writer.note(ExceptionNote(), "ValueError: no")
    good = author.writer.path.read_bytes()
    path = author.writer.path.with_name("1.flight")
    dice = random.Random(7)
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(dice.choice((1, 20, 2000))):
            at = dice.choice((dice.randrange(16, 80_000), dice.randrange(16, len(good))))
            damaged[at] = dice.randrange(256)
        heap = layout.HEAP_OFFSET + layout.DEFINITION.size
        damaged[heap : heap + 10] = dice.randbytes(10)
        path.write_bytes(damaged)
        reader = FlightReader(path)
        view = reader.view(ALIVE)
        reader.recent(50)
        reader.timings(range(50))
        for key in view.groups:
            reader.chains_after(key, 3)
            reader.at(key, 2)
        for channel in view.channels:
            reader.message(channel, 0)
        reader.close()


def test_a_place_whose_calls_differ(author: Author) -> None:
    """What its slots have in common is packed once, and anew for another call, flag or thread."""
    place = CallOrigin(author.site)
    calls = [author.describe(), author.describe(Signature("barrier"))]
    flags = (0, layout.ASYNC_FLAG)

    def make(call: CallDescription, flag: int) -> None:
        number, thread = author.writer.begin(author.group, call, place, flag)
        author.writer.complete(number, thread)

    made = [(call, flag) for call in calls for flag in flags for _ in range(2)]
    for call, flag in made:
        make(call, flag)
        other = threading.Thread(target=make, args=(call, flag))
        other.start()
        other.join()
    rows = [
        layout.SLOT.unpack_from(author.writer._map, layout.RING_OFFSET + at * layout.SLOT.size)
        for at in range(2 * len(made))
    ]
    for at, row in enumerate(rows):
        call, flag = made[at // 2]
        assert (row[0], row[1], row[3], row[5]) == (at + 1, author.group.index, call.op_code, flag)
        assert row[6:8] == (call.signature_id, author.site)
        assert (row[2] != rows[0][2]) == bool(at % 2)
