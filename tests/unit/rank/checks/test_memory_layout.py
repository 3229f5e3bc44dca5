"""Which tensors are unsafe for which backend; what is right here was right in trials, too."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.errors.in_ranks import FindingRaised
from distdebug.rank.checks.memory_layout import TensorCheck, backend_of_cpu, layout, settle, unsafe
from distdebug.rank.record.recorder import ON_FINDING, GroupRecord
from distdebug.record.notes import OwnFindingNote
from distdebug.record.signature import Signature

SIZE = 3


def columns() -> torch.Tensor:
    """With gaps."""
    return torch.zeros(3, 8)[:, :4]


def turned() -> torch.Tensor:
    """Without gaps, in another order."""
    return torch.zeros(4, 3).t()


def usual(*shape: int) -> torch.Tensor:
    return torch.zeros(shape or (3, 4))


def negated() -> torch.Tensor:
    return torch.zeros(3, dtype=torch.complex64).conj().imag


def image() -> torch.Tensor:
    return torch.zeros(3, 2, 4, 4).to(memory_format=torch.channels_last)


ROOT_0: Any = SimpleNamespace(rootRank=0)
ROOT_1: Any = SimpleNamespace(rootRank=1)
BUFFER = torch.zeros(4 * SIZE)
SAME = torch.zeros(4)
PARTS = [usual(4) for _ in range(SIZE)]

WRONG_FOR_GLOO: dict[str, tuple[str, list[Any]]] = {
    "all_reduce with gaps": ("allreduce", [[columns()]]),
    "all_reduce of one element many times": ("allreduce", [[torch.zeros(4).expand(3, 4)]]),
    "all_reduce of a negation": ("allreduce", [[negated()]]),
    "broadcast with gaps": ("broadcast", [[columns()], ROOT_0]),
    "broadcast into a negation": ("broadcast", [[negated()], ROOT_1]),
    "reduce with gaps": ("reduce", [[columns()], ROOT_1]),
    "reduce into a negation": ("reduce", [[negated()], ROOT_0]),
    "scatter of parts with gaps": ("scatter", [[usual()], [[columns()] * SIZE], ROOT_0]),
    "scatter into gaps": ("scatter", [[columns()], [], ROOT_1]),
    "scatter into another order": ("scatter", [[turned()], [[usual()] * SIZE], ROOT_0]),
    "scatter of negations": ("scatter", [[usual(3)], [[negated()] * SIZE], ROOT_0]),
    "reduce_scatter into gaps": ("reduce_scatter", [[columns()], [[usual()] * SIZE]]),
    "reduce_scatter from another order": ("reduce_scatter", [[usual()], [[turned()] * SIZE]]),
    "reduce_scatter into another order": ("reduce_scatter", [[turned()], [[usual()] * SIZE]]),
    "reduce_scatter into another's part": ("reduce_scatter", [[PARTS[1]], [PARTS]]),
    "all_to_all_single in place": ("alltoall_base", [BUFFER, BUFFER, [], []]),
    "all_to_all_single overlapping": ("alltoall_base", [BUFFER[:-3], BUFFER[3:], [], []]),
    "all_to_all_single into another order": ("alltoall_base", [turned(), usual(), [], []]),
    "all_to_all_single from another order": ("alltoall_base", [torch.zeros(3, 2, 4, 4), image()]),
}
WRONG_FOR_ALL: dict[str, tuple[str, list[Any]]] = {
    "all_gather into one": ("allgather", [[[SAME] * SIZE], [usual(4)]]),
    "all_gather into overlapping": (
        "allgather",
        [[[BUFFER[:4], BUFFER[4:8], BUFFER[6:10]]], [usual(4)]],
    ),
    "gather into one": ("gather", [[[SAME] * SIZE], [usual(4)], ROOT_0]),
    "all_to_all into one": ("alltoall", [[SAME] * SIZE, PARTS]),
}
WRONG_FOR_TCP: dict[str, tuple[str, list[Any]]] = {
    "all_gather from another's place": ("allgather", [[list(BUFFER.chunk(SIZE))], [BUFFER[4:8]]]),
    "the same into one tensor": ("_allgather_base", [BUFFER, BUFFER[4:8]]),
    "the same between two": ("_allgather_base", [BUFFER, BUFFER[1:5]]),
    "all_to_all_single overlapping": ("alltoall_base", [BUFFER[:-3], BUFFER[3:], [], []]),
}
RIGHT_FOR_GLOO: dict[str, tuple[str, list[Any]]] = {
    "all_reduce in any order": ("allreduce", [[turned()]]),
    "all_reduce of images": ("allreduce", [[image()]]),
    "all_reduce of a slice": ("allreduce", [[BUFFER[2:5]]]),
    "all_reduce of nothing": ("allreduce", [[torch.zeros(0, 8)[:, :4]]]),
    "all_reduce of a single element": ("allreduce", [[torch.zeros(1, 8)[:, :1]]]),
    "all_reduce of rows of size 1": ("allreduce", [[torch.zeros(3, 1, 4)[:, :, :]]]),
    "all_reduce of sparse ones": ("allreduce", [[torch.zeros(3).to_sparse()]]),
    "coalesced with gaps": ("allreduce_coalesced", [[columns(), columns()]]),
    "broadcast of a negation": ("broadcast", [[negated()], ROOT_0]),
    "all_gather of gaps": ("allgather", [[[usual() for _ in range(SIZE)]], [columns()]]),
    "all_gather into gaps": ("allgather", [[[columns() for _ in range(SIZE)]], [usual()]]),
    "all_gather into columns": ("allgather", [[list(usual(3, 6).chunk(SIZE, 1))], [usual(3, 2)]]),
    "all_gather in place": ("_allgather_base", [BUFFER, BUFFER[:4]]),
    "all_gather of nothing": ("allgather", [[[torch.zeros(0)] * SIZE], [torch.zeros(0)]]),
    "scatter in one order": ("scatter", [[turned()], [[turned()] * SIZE], ROOT_0]),
    "scatter of one part": ("scatter", [[usual()], [[usual()] * SIZE], ROOT_0]),
    "reduce_scatter from gaps": ("reduce_scatter", [[usual()], [[columns()] * SIZE]]),
    "reduce_scatter in one order": ("reduce_scatter", [[turned()], [[turned()] * SIZE]]),
    "reduce_scatter in place": ("reduce_scatter", [[PARTS[0]], [PARTS]]),
    "reduce_scatter_tensor in place": ("_reduce_scatter_base", [BUFFER[:4], BUFFER]),
    "all_to_all_single of images": ("alltoall_base", [image(), image()]),
    "all_to_all_single that gloo refuses": ("alltoall_base", [usual(), columns()]),
    "all_to_all in place": ("alltoall", [PARTS, PARTS]),
    "send of gaps": ("send", [[columns()], 1, 0]),
    "barrier": ("barrier", []),
}


@pytest.mark.parametrize("name", WRONG_FOR_GLOO)
def test_wrong_for_gloo(name: str) -> None:
    method, args = WRONG_FOR_GLOO[name]
    assert unsafe("gloo", 0, method, tuple(args)) is not None
    if name != "all_to_all_single overlapping":
        assert unsafe("tcp", 0, method, tuple(args)) is None
    assert unsafe("mpi", 0, method, tuple(args)) is None


@pytest.mark.parametrize("name", WRONG_FOR_ALL)
@pytest.mark.parametrize("backend", ["gloo", "tcp", "mpi", ""])
def test_wrong_for_all(name: str, backend: str) -> None:
    method, args = WRONG_FOR_ALL[name]
    wrong = unsafe(backend, 0, method, tuple(args))
    assert wrong is not None
    assert "in the same memory" in wrong


@pytest.mark.parametrize("name", WRONG_FOR_TCP)
def test_wrong_for_tcp(name: str) -> None:
    method, args = WRONG_FOR_TCP[name]
    assert unsafe("tcp", 0, method, tuple(args)) is not None


@pytest.mark.parametrize("name", RIGHT_FOR_GLOO)
@pytest.mark.parametrize("backend", ["gloo", "tcp"])
def test_right(name: str, backend: str) -> None:
    method, args = RIGHT_FOR_GLOO[name]
    assert unsafe(backend, 0, method, tuple(args)) is None


def checked(notes: list[Any]) -> TensorCheck:
    """Of rank 20, in a group of two."""
    recorder: Any = SimpleNamespace(
        note=lambda *given: notes.append(given), safe_site=lambda _frame: 3
    )
    slot: Any = None
    record = GroupRecord("0", "default_pg", 0, (10, 20), 1, slot, "cpu:gloo,cuda:nccl", None)
    return TensorCheck(recorder, record)


@pytest.mark.parametrize(("outputs", "refused"), [(3, True), (2, False)])
def test_what_the_backend_refuses_it_refuses_itself(outputs: int, refused: bool) -> None:
    """A list of the wrong length: the program hears so from the call, and may go on."""
    notes: list[Any] = []
    known: Any = SimpleNamespace(text=Signature("all_gather", (("float32", (4,)),)).to_json())
    args = ([[SAME] * outputs], [usual(4)])
    with nullcontext() if refused else pytest.raises(FindingRaised, match="the same memory"):
        checked(notes).before("allgather", args, known, 7)
    assert not notes if refused else notes


def test_the_finding() -> None:
    notes: list[Any] = []
    known: Any = SimpleNamespace(text=Signature("all_reduce", (("float32", (3, 4)),)).to_json())
    check = checked(notes)
    check.before("allreduce", ([usual()],), known, 7)
    assert not notes
    with pytest.raises(FindingRaised, match=r"rank 20 .*#7 of group .* strides \(8, 1\)"):
        check.before("allreduce", ([columns()],), known, 7)
    ((note, *_),) = notes
    assert note == OwnFindingNote("unsafe_tensor", (20,), (10,), ("0", 0), 7)


def test_backends() -> None:
    assert backend_of_cpu("gloo") == "gloo"
    assert backend_of_cpu("cpu:gloo,cuda:nccl") == "gloo"
    assert backend_of_cpu("cuda:nccl") == ""


def test_orders_that_all_ranks_must_have() -> None:
    def of(tensor: torch.Tensor, backend: str = "gloo", method: str = "broadcast") -> str:
        return layout(backend, method, ([tensor],))

    assert of(usual()) == of(turned(), "tcp") == of(turned(), method="allgather") == ""
    assert of(turned()) != ""
    assert of(torch.zeros(3, 1).t()) == "", "one order, whatever the strides say"
    one, other = torch.zeros(4, 1, 3).permute(2, 1, 0), torch.zeros(4, 3, 1).permute(1, 2, 0)
    assert one.shape == other.shape
    assert one.stride() != other.stride()
    assert of(one) == of(other) != ""
    call = Signature("broadcast", (("float32", (3, 4)),), root=0)
    assert settle(call, ["", "", ""], (0, 1, 2), "#3") is None
    dispute = settle(call, ["", "[[1, 3]]", ""], (0, 1, 2), "#3")
    assert dispute is not None
    assert (dispute.kind, dispute.culprits, dispute.victims) == ("unsafe_tensor", (1,), (0, 2))
    assert "rank 1 has strides [1, 3]" in dispute.message


def test_of_a_run_that_goes_on_the_first_on_a_line_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ON_FINDING, "report")
    notes: list[Any] = []
    line = 3
    recorder: Any = SimpleNamespace(
        note=lambda *given: notes.append(given), safe_site=lambda _frame: line, reported=set()
    )
    slot: Any = None
    record = GroupRecord("0", "default_pg", 0, (10, 20), 1, slot, "gloo", None)
    known: Any = SimpleNamespace(text=Signature("all_reduce", (("float32", (3, 4)),)).to_json())
    check = TensorCheck(recorder, record)
    for seq in range(3):
        check.before("allreduce", ([columns()],), known, seq)
    line = 4
    check.before("allreduce", ([columns()],), known, 3)
    assert [(note.seq, site) for note, _, site in notes] == [(0, 3), (3, 4)]
