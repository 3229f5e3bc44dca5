"""A call that the backend refused at once: the record reads as if it had not been made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from distdebug.record import layout
from distdebug.record.layout import Activity, CallState, Definition, GroupState
from distdebug.record.ops import OP_CODES
from distdebug.record.reading.reader import FlightReader
from distdebug.record.signature import Signature, agreement_hash, exact_hash, split_contribution
from distdebug.record.snapshot import Process, Rank
from distdebug.record.writing.slots import CallDescription, CallOrigin, ChannelSlot, GroupSlot
from distdebug.record.writing.writer import FlightWriter

FLAT = Signature("all_reduce", (("float32", (4,)),), reduce_op="sum")
SHAPED = Signature("all_reduce", (("float32", (2, 3)),), reduce_op="sum")
SPLIT = Signature(
    "all_to_all_single", (("float32", (4,)),), (("float32", (4,)),), sends=(3, 1), receives=(2, 2)
)
SEND = Signature("send", (("float32", (2,)),), peer=1)
COLLECTIVES = (FLAT, SHAPED, SPLIT)
KEYS = [("0", 0), ("1", 0)]


class Program:
    """A rank with two groups and two channels, which makes the calls that it is told to."""

    def __init__(self, path: Path) -> None:
        self.writer = FlightWriter(path)
        self.groups = [self._group(name) for name, _ in KEYS]
        self.channels = [
            self.writer.add_channel(
                {"name": "0", "incarnation": 0, "op": "send", "peer": 1, "tag": tag}
            )
            for tag in range(2)
        ]

    def _group(self, name: str) -> GroupSlot:
        slot = self.writer.add_group(
            {
                "name": name,
                "incarnation": 0,
                "desc": "a group",
                "ranks": [0, 1],
                "backend": "gloo",
                "timeout_s": 60.0,
            }
        )
        assert slot is not None
        self.writer.group_state(slot, GroupState.READY)
        return slot

    def describe(self, signature: Signature, channel: ChannelSlot | None) -> CallDescription:
        return CallDescription(
            op_code=OP_CODES[signature.op],
            signature_id=self.writer.define(Definition.SIGNATURE, signature.to_json()),
            agree=agreement_hash(signature),
            exact=exact_hash(signature),
            contribution=split_contribution(signature, 0),
            channel=channel,
            volatile=None,
        )

    def make(self, what: str, refused: bool = False) -> None:
        """`00`: the first kind of collective in the first group; `m1`: a message in the second
        channel."""
        place = int(what[1])
        if what[0] == "m":
            group, channel, signature = self.groups[0], self.channels[place], SEND
        else:
            group, channel, signature = self.groups[int(what[0])], None, COLLECTIVES[place]
        call = self.describe(signature, channel)
        number, thread = self.writer.begin(group, call, CallOrigin(0), 0)
        if refused:
            assert self.writer.take_back(number, group, call)
            self.writer.break_off(number, thread)
        else:
            self.writer.finish(number, thread)

    def view(self) -> Rank:
        return FlightReader(self.writer.path).view(Process(alive=True))


def counts(view: Rank) -> list[object]:
    """All that is compared between ranks."""
    groups = [
        (group.key, group.issued, group.chain, group.exact, group.balance)
        for group in view.groups.values()
    ]
    channels = [(channel.tag, channel.issued, channel.chain) for channel in view.channels]
    return [groups, channels]


def sequences(view: Rank) -> list[object]:
    """What is found from the last call of each group and channel backwards."""
    history = view.history
    assert history is not None
    assert isinstance(history, FlightReader)
    found: list[object] = [[call.seq for call in history.recent(200, key)] for key in KEYS]
    for channel in view.channels:
        made = [history.message(channel, seq) for seq in range(channel.issued)]
        found.append([call and call.seq for call in made])
    for key in KEYS:
        issued = view.groups[key].issued
        found.append([history.chains_after(key, count) for count in range(issued + 1)])
    return found


@pytest.mark.parametrize("what", ["00", "02", "m0"])
def test_a_call_that_a_signal_came_before(what: str, tmp_path: Path) -> None:
    """On record or not, within something else or not: then it is as if it had not been made."""
    program = Program(tmp_path / "record")
    writer = program.writer
    channel = program.channels[0] if what[0] == "m" else None
    group = program.groups[0]
    program.make(what)
    before, states = program.view(), [CallState.COMPLETED]
    call = program.describe(SEND if channel else COLLECTIVES[int(what[1])], channel)
    writer.withdraw(group, None)  # it was not even described
    writer.withdraw(group, call)  # nor begun: the one before is not taken for it
    assert counts(program.view()) == counts(before)
    writer.begin(group, call, CallOrigin(0), 0)
    writer.withdraw(group, call)
    outer = writer.enter(int(Activity.STORE), 0, 0, 0)
    writer.begin(group, call, CallOrigin(0), 0)
    writer.withdraw(group, call)
    assert [wait.activity for wait in program.view().waits] == [Activity.STORE]
    writer.leave(outer)
    view = program.view()
    assert counts(view) == counts(before)
    assert not view.waits
    assert view.history is not None
    states += [CallState.FAILED] * 2
    assert sorted(one.state for one in view.history.recent(10)) == sorted(states)


def test_another_threads_call_is_not_taken_back(tmp_path: Path) -> None:
    program = Program(tmp_path / "record")
    call = program.describe(FLAT, None)
    other = threading.Thread(
        target=program.writer.begin, args=(program.groups[0], call, CallOrigin(0), 0)
    )
    other.start()
    other.join()
    program.writer.withdraw(program.groups[0], call)
    assert program.groups[0].issued == 1


MADE = ("00", "01", "m0", "10", "02", "12", "m1", "m0", "01", "02")


@pytest.mark.parametrize("refused", ["00", "01", "02", "11", "12", "m0", "m1"])
def test_a_refused_call_changes_nothing_that_is_compared(refused: str, tmp_path: Path) -> None:
    """Wherever it comes: as the first, between others of its group, behind another group's."""
    good, bad = Program(tmp_path / "good"), Program(tmp_path / "bad")
    for step, what in enumerate(("", *MADE)):
        if what:
            good.make(what)
            bad.make(what)
        for _ in range(1 + step % 2):
            bad.make(refused, refused=True)
        expected, view = good.view(), bad.view()
        assert counts(view) == counts(expected)
        assert sequences(view) == sequences(expected)
        assert not view.waits
    history = view.history
    assert history is not None
    states = [call.state for call in history.recent(100)]
    assert states.count(CallState.FAILED) == sum(1 + step % 2 for step in range(len(MADE) + 1))
    assert states.count(CallState.COMPLETED) == len(MADE)


@pytest.mark.parametrize("first", [False, True])
def test_another_group_may_have_made_a_call_since(first: bool, tmp_path: Path) -> None:
    good, bad = Program(tmp_path / "good"), Program(tmp_path / "bad")
    for program in (good, bad):
        if not first:
            program.make("01")
    group = bad.groups[0]
    call = bad.describe(SPLIT, None)
    number, thread = bad.writer.begin(group, call, CallOrigin(0), 0)
    for program in (good, bad):
        other = threading.Thread(target=program.make, args=("10",))
        other.start()
        other.join()
    assert bad.view().groups[KEYS[0]].issued == good.view().groups[KEYS[0]].issued + 1
    assert bad.writer.take_back(number, group, call)
    bad.writer.break_off(number, thread)
    assert counts(bad.view()) == counts(good.view())
    assert sequences(bad.view()) == sequences(good.view())
    for program in (good, bad):
        program.make("11")
        program.make("00")
    assert counts(bad.view()) == counts(good.view())
    assert sequences(bad.view()) == sequences(good.view())


def test_where_the_group_has_made_another_call_since_it_stays(tmp_path: Path) -> None:
    program = Program(tmp_path / "0")
    group = program.groups[0]
    call = program.describe(FLAT, None)
    number, thread = program.writer.begin(group, call, CallOrigin(0), 0)
    other = threading.Thread(target=program.make, args=("01",))
    other.start()
    other.join()
    before = counts(program.view())
    assert not program.writer.take_back(number, group, call)
    program.writer.break_off(number, thread)
    assert counts(program.view()) == before
    assert program.view().groups[KEYS[0]].issued == 2


def test_the_chains_at_a_checkpoint_are_those_of_the_call_that_counts(tmp_path: Path) -> None:
    good, bad = Program(tmp_path / "good"), Program(tmp_path / "bad")
    for program in (good, bad):
        for number in range(layout.CHECKPOINT_EVERY - 1):
            program.make(f"0{number % 3}")
    bad.make("02", refused=True)
    for program in (good, bad):
        for _ in range(3):
            program.make("01")
    assert sequences(bad.view()) == sequences(good.view())


def test_a_call_that_the_ring_has_lost_stays(tmp_path: Path) -> None:
    program = Program(tmp_path / "0")
    call = program.describe(FLAT, None)
    number, _ = program.writer.begin(program.groups[0], call, CallOrigin(0), 0)
    meanwhile = threading.Thread(
        target=lambda: [program.make("10") for _ in range(layout.RING + 1)]
    )
    meanwhile.start()
    meanwhile.join()
    assert not program.writer.take_back(number, program.groups[0], call)
    assert program.view().groups[KEYS[0]].issued == 1
