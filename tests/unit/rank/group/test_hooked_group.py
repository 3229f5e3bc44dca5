"""Calls that torch's hooks tell of: kept until it is known from where on all ranks count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from distdebug.rank.group import outstanding
from distdebug.rank.group.hooked_group import HOOKED, HookedGroup
from distdebug.rank.record.recorder import Recorder
from distdebug.rank.torch_private.group_hooks import FoundGroup, Ring
from distdebug.record.layout import CallState
from distdebug.record.ops import OPS
from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Call, Process
from distdebug.record.writing.writer import FlightWriter
from tests.support.fake_nccl.backend import on_cuda

NAME, RANKS = "0", (0, 1, 2)


@dataclass
class Told:
    """What torch hands to a hook."""

    name: str
    op_id: int
    input_tensors: list[torch.Tensor] = field(default_factory=list)
    output_tensors: list[torch.Tensor] = field(default_factory=list)
    root: int = -1
    async_op: bool = False
    work: Any = None


class Work:
    done = False

    def is_completed(self) -> bool:
        return self.done

    def exception(self) -> None:
        return None


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    outstanding.forget()
    yield
    outstanding.forget()


@pytest.fixture
def group(tmp_path: Path) -> HookedGroup:
    recorder = Recorder(FlightWriter(tmp_path / "1.flight"), {})
    recorder.claim(1, 3, 1, 0, "installed", True)
    record = recorder.new_group(NAME, "default_pg", RANKS, 1, "gloo", None)
    assert record is not None
    return HookedGroup(recorder, FoundGroup(object(), NAME, "default_pg", RANKS, "gloo"), record)


def calls(tmp_path: Path) -> list[Call]:
    reader = FlightReader(tmp_path / "1.flight")
    reader.view(Process(alive=True))
    return list(reader.recent(100))


def make(group: HookedGroup, told: Told, work: Any = None) -> None:
    group.before(told)
    group.after(Told(told.name, told.op_id, work=work))


def all_reduce(op_id: int, elements: int) -> Told:
    return Told("HookOpName.ALLREDUCE", op_id, [torch.ones(elements)])


def test_what_was_made_before_the_start_is_dropped(group: HookedGroup, tmp_path: Path) -> None:
    under_way = Work()
    make(group, all_reduce(0, 1))
    make(group, all_reduce(1, 2))
    start_ns = time.time_ns()
    make(group, all_reduce(2, 3), under_way)
    group.before(all_reduce(3, 4))  # the backend has not accepted it yet
    assert calls(tmp_path) == []
    group.begin_after(start_ns)
    group.after(Told("HookOpName.ALLREDUCE", 3, work=(last := Work())))
    make(group, all_reduce(4, 5))
    texts = [(call.seq, str(call.signature)) for call in calls(tmp_path)]
    assert texts == [(seq, f"all_reduce(float32[{seq + 3}])") for seq in range(3)]
    assert [call.state for call in calls(tmp_path)] == [
        CallState.STARTED,
        CallState.STARTED,
        CallState.COMPLETED,
    ]
    assert sorted(outstanding.awaited) == [0, 1]
    under_way.done = last.done = True
    outstanding.poll()
    assert not outstanding.awaited
    assert {call.state for call in calls(tmp_path)} == {CallState.COMPLETED}


def test_ranks_that_came_at_different_moments_have_one_history(tmp_path: Path) -> None:
    chains = []
    for rank, first in ((1, 0), (2, 3)):
        folder = tmp_path / str(rank)
        folder.mkdir()
        recorder = Recorder(FlightWriter(folder / "1.flight"), {})
        record = recorder.new_group(NAME, "default_pg", RANKS, rank, "gloo", None)
        assert record is not None
        group = HookedGroup(recorder, FoundGroup(object(), NAME, "", RANKS, "gloo"), record)
        entries = []
        for number in range(1, 9):
            told = Told("HookOpName.BROADCAST", number, [torch.ones(number)], root=0)
            if number > first:  # it has hooks by now
                group.before(told)
            row = {"record_id": number - 1, "pg_id": 0, "process_group": [NAME, ""]}
            entries.append(row | {"collective_seq_id": number, "time_created_ns": time.time_ns()})
            if number > first:
                group.after(told)
        moment_ns = Ring([{"entries": entries}]).end_of(NAME, 3)
        assert moment_ns is not None
        group.begin_after(moment_ns)
        assert record.slot.issued == 5
        chains.append(record.slot.chain)
    assert chains[0] == chains[1]


def test_a_call_on_a_gpu_without_a_work_goes_on(
    group: HookedGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's NCCL hands out none where the program waits for the call itself."""
    end = Work()
    monkeypatch.setattr(outstanding, "StreamEnd", lambda inner, device: end)
    group.begin_after(0)
    make(group, Told("ALLREDUCE", 0, [on_cuda(torch.ones(1))]))
    outstanding.poll_streams()
    (call,) = calls(tmp_path)
    assert (call.state, outstanding.oldest()) == (CallState.STARTED, 0)
    end.done = True
    outstanding.poll_streams()
    (call,) = calls(tmp_path)
    assert (call.state, outstanding.oldest()) == (CallState.COMPLETED, None)


def test_what_the_backend_refuses_is_no_call_of_the_group(
    group: HookedGroup, tmp_path: Path
) -> None:
    group.begin_after(0)
    group.before(all_reduce(0, 7))  # which raises: no hook comes after it
    make(group, all_reduce(1, 3))
    refused, made = calls(tmp_path)
    assert refused.state is CallState.FAILED
    assert (made.seq, group.record.slot.issued) == (0, 1)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (Told("ALLREDUCE", 0, [torch.ones(2, 3)]), "all_reduce(float32[2,3])"),
        (Told("BROADCAST", 0, [torch.ones(2)], root=2), "broadcast(src=2, float32[2])"),
        (
            Told("SCATTER", 0, [], [torch.ones(2, dtype=torch.int64)], root=1),
            "scatter(src=1, int64[2])",
        ),
        (
            Told("ALLTOALL_BASE", 0, [torch.ones(5)], [torch.ones(4)]),
            "all_to_all_single(float32[5])",
        ),
        (Told("BARRIER", 0), "barrier()"),
    ],
)
def test_how_a_call_reads(group: HookedGroup, tmp_path: Path, told: Told, text: str) -> None:
    group.begin_after(0)
    make(group, told)
    assert [str(call.signature) for call in calls(tmp_path)] == [text]
    assert group.record.slot.balance == 0  # splits are not known: nothing is said of them


def row_of(*elements: int) -> list[torch.Tensor]:
    return [torch.ones(number) for number in elements]


@pytest.mark.parametrize(
    ("family", "given", "made", "named"),
    [
        ("ALLGATHER", row_of(2), row_of(6), "ALLGATHER_BASE"),
        ("ALLGATHER", row_of(2), row_of(2, 2, 2), "ALLGATHER"),
        ("ALLGATHER", row_of(2, 3), row_of(6, 9), "ALLGATHER_INTO_TENSOR_COALESCED"),
        ("ALLGATHER", row_of(2, 3), row_of(2, 3) * 3, "ALLGATHER_COALESCED"),
        ("REDUCE_SCATTER", row_of(6), row_of(2), "REDUCE_SCATTER_BASE"),
        ("REDUCE_SCATTER", row_of(2, 2, 2), row_of(2), "REDUCE_SCATTER"),
        ("REDUCE_SCATTER", row_of(6, 9), row_of(2, 3), "REDUCE_SCATTER_TENSOR_COALESCED"),
        ("ALLTOALL", row_of(5), row_of(4), "ALLTOALL_BASE"),
        ("ALLTOALL", row_of(1, 2, 2), row_of(1, 1, 2), "ALLTOALL"),
        ("ALLREDUCE", row_of(2, 3), [], "ALLREDUCE_COALESCED"),
    ],
)
def test_a_torch_that_names_the_family_alone(
    group: HookedGroup,
    tmp_path: Path,
    family: str,
    given: list[torch.Tensor],
    made: list[torch.Tensor],
    named: str,
) -> None:
    """torch 2.14: the call goes on record as it does where torch names it."""
    group.begin_after(0)
    for number, name in enumerate((family, named)):
        make(group, Told(f"HookOpName.{name}", number, given, made))
    of_family, of_name = (call.signature for call in calls(tmp_path))
    assert of_family == of_name
    assert of_family.op == HOOKED[named]


def test_what_is_no_collective_is_left_out(group: HookedGroup, tmp_path: Path) -> None:
    group.begin_after(0)
    for number, name in enumerate(("SEND", "RECV", "SPLIT", "NEW_WINDOW", "UNKNOWN")):
        make(group, Told(f"HookOpName.{name}", number, [torch.ones(2)]))
    assert calls(tmp_path) == []
    assert set(HOOKED.values()) <= set(OPS)


def test_a_fault_of_ours_costs_the_record_only(
    group: HookedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISTDEBUG_RAISE_OWN_FAULTS", raising=False)
    group.begin_after(0)
    make(group, Told("HookOpName.ALLREDUCE", 0, [None]))  # type: ignore[list-item]
    make(group, all_reduce(1, 3))
    assert group.record.slot.issued == 0


def test_a_ring_that_has_come_round_says_so() -> None:
    def row(number: int, at_ns: int, made: int = 0, p2p: bool = False) -> dict[str, Any]:
        return {
            "record_id": number,
            "pg_id": made,
            "process_group": [NAME, "default_pg"],
            "collective_seq_id": number,
            "time_created_ns": at_ns,
            "is_p2p": p2p,
        }

    ring = Ring([{"entries": [row(8, 80), row(9, 90), row(3, 95, p2p=True), row(10, 100)]}])
    assert ring.wrapped
    assert (ring.last(NAME), ring.last_before(NAME, 95), ring.last("1")) == (10, 9, 0)
    assert (ring.end_of(NAME, 9), ring.end_of(NAME, 5), ring.end_of("1", 0)) == (90, None, 0)
    # A group that was destroyed and made again counts anew.
    again = Ring([{"entries": [row(8, 80), row(1, 90, made=1)]}, {}])
    assert again.entries == {NAME: [(1, 90)]}
