"""Which data is wrong for which call."""

from __future__ import annotations

from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.errors.in_ranks import FindingRaised
from distdebug.rank.checks.non_finite import LossScaling, inspector, refused
from distdebug.rank.log import rank_log
from distdebug.rank.record import call_site
from distdebug.rank.record.recorder import GroupRecord
from distdebug.record.notes import NoteData
from distdebug.record.signature import Signature

NAN, INF = float("nan"), float("inf")
RANKS = (10, 20)
UNSCALED: Any = SimpleNamespace(watch=lambda: None, seen=False)


class Notes:
    """Stands for the recorder."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []

    def note(self, note: NoteData, message: str, site: int) -> None:
        self.taken.append({"kind": note.KIND, "message": message, "site": site, **note.data()})

    def safe_site(self, frame: FrameType | None) -> int:
        found = call_site.find(frame)
        return 0 if found is None else found.f_code.co_firstlineno


def looked_at(
    names: str, method: str, signature: Signature, *args: Any, rank: int = 0, scaling: Any = None
) -> tuple[Any, Notes]:
    """What the inspector answers for the call, and what it put on record."""
    slot: Any = None
    record = GroupRecord("0", "default_pg", 0, RANKS, rank, slot, "gloo", None)
    known: Any = SimpleNamespace(text=signature.to_json())
    notes: Any = Notes()
    inspect = inspector(frozenset(names.split(",")), notes, record, scaling or UNSCALED)
    assert inspect is not None
    return inspect(method, args, known, 7), notes


def call(op: str, root: int | None = None, reduce_op: str = "", peer: int | None = None) -> Any:
    return Signature(op, (("float32", (2,)),), reduce_op=reduce_op, root=root, peer=peer)


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


FINE = tensor(1, 2)
WRONG = [
    ("allreduce", call("all_reduce", reduce_op="sum"), [[tensor(1, NAN)]]),
    ("allreduce", call("all_reduce", reduce_op="avg"), [[tensor(INF, 1)]]),
    ("allreduce", call("all_reduce", reduce_op="max"), [[tensor(NAN, 1)]]),
    ("allreduce", call("all_reduce", reduce_op="sum"), [[tensor(NAN, dtype=torch.bfloat16)]]),
    ("allreduce", call("all_reduce", reduce_op="sum"), [[tensor(INF).to(torch.complex64)]]),
    (
        "allreduce",
        call("all_reduce", reduce_op="sum"),
        [[tensor(NAN).to(torch.float8_e4m3fn)]],
    ),
    ("allreduce_coalesced", call("all_reduce", reduce_op="sum"), [[FINE, tensor(NAN)]]),
    ("broadcast", call("broadcast", root=10), [[tensor(NAN)]]),
    ("_allgather_base", call("all_gather_into_tensor"), [FINE, tensor(NAN)]),
    ("allgather", call("all_gather"), [[[FINE, FINE]], [tensor(NAN)]]),
    ("scatter", call("scatter", root=10), [[FINE], [[FINE, tensor(NAN)]]]),
    ("reduce_scatter", call("reduce_scatter", reduce_op="sum"), [[FINE], [[FINE, tensor(INF)]]]),
    ("alltoall_base", call("all_to_all_single"), [FINE, tensor(NAN), [], []]),
    ("send", call("send", peer=20), [[tensor(NAN)], 1, 0]),
]
LEGAL = [
    ("allreduce", call("all_reduce", reduce_op="sum"), [[FINE]]),
    ("allreduce", call("all_reduce", reduce_op="max"), [[tensor(INF, -INF)]]),
    ("allreduce", call("all_reduce", reduce_op="sum"), [[torch.arange(4)]]),
    ("allreduce", call("all_reduce", reduce_op="sum"), [[torch.empty(0)]]),
    ("broadcast", call("broadcast", root=10), [[tensor(INF)]]),
    ("broadcast", call("broadcast", root=20), [[tensor(NAN)]]),
    ("scatter", call("scatter", root=20), [[tensor(NAN)], []]),
    ("_allgather_base", call("all_gather_into_tensor"), [tensor(NAN), FINE]),
    ("recv", call("recv", peer=20), [[tensor(NAN)], 1, 0]),
    ("barrier", Signature("barrier"), []),
    ("send", call("send", peer=20), [[tensor(INF)], 1, 0]),
]


@pytest.mark.parametrize(("method", "signature", "args"), WRONG)
def test_wrong(method: str, signature: Signature, args: list[Any]) -> None:
    with pytest.raises(
        FindingRaised, match=r"^\[distdebug\] nan: rank 10 contributes (nan|inf|\()"
    ):
        looked_at("nan", method, signature, *args)


@pytest.mark.parametrize(("method", "signature", "args"), LEGAL)
def test_legal(method: str, signature: Signature, args: list[Any]) -> None:
    after, notes = looked_at("nan", method, signature, *args)
    assert after is None
    assert not notes.taken


def test_what_is_said_and_put_on_record() -> None:
    sums = call("all_reduce", reduce_op="sum")
    with pytest.raises(FindingRaised) as caught:
        looked_at("nan", "allreduce", sums, [torch.tensor([[1.0, 2.0], [3.0, NAN]])], rank=1)
    assert str(caught.value) == (
        "[distdebug] nan: rank 20 contributes nan to all_reduce(sum, float32[2]) #7 of group "
        '"default_pg": element 3 is the first that is wrong'
    )


def test_overflow() -> None:
    """Looked at when the call is complete."""
    sums = call("all_reduce", reduce_op="sum")
    total = torch.tensor([1.0, 2.0])
    after, notes = looked_at("overflow", "allreduce", sums, [total])
    after()
    assert not notes.taken
    total[1] = -INF
    with pytest.raises(FindingRaised, match="overflowed: it is -inf at element 1"):
        after()
    (note,) = notes.taken
    assert (note["finding"], note["culprits"], note["victims"]) == ("overflow", (10, 20), ())
    assert (note["group"], note["seq"]) == (("0", 0), 7)
    assert note["site"] == test_overflow.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        ("allreduce", call("all_reduce", reduce_op="max")),
        ("broadcast", call("broadcast", root=10)),
        ("reduce", call("reduce", root=20, reduce_op="sum")),
    ],
)
def test_nothing_to_overflow(method: str, signature: Signature) -> None:
    after, _ = looked_at("nan,overflow", method, signature, [FINE])
    assert after is None


def test_nothing_asked_for() -> None:
    record: Any = SimpleNamespace(ranks=RANKS, group_rank=0)
    notes: Any = Notes()
    assert inspector(frozenset(), notes, record, UNSCALED) is None


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of scalers; none was used before."""
    lines: list[str] = []
    monkeypatch.setattr(rank_log, "write", lambda event, *_, **__: lines.append(event))
    return lines


@pytest.fixture(scope="module")
def watched() -> LossScaling:
    """What torch tells of scalers, once for all: it cannot be told to stop."""
    return LossScaling()


@pytest.fixture
def scaling(watched: LossScaling) -> LossScaling:
    watched.seen = False
    return watched


def test_a_scaled_loss(logged: list[str], scaling: LossScaling) -> None:
    """Its gradients overflow on purpose; what is no reduction must still be fine."""
    sums = call("all_reduce", reduce_op="sum")
    looked_at("nan,overflow", "allreduce", sums, [FINE], scaling=scaling)
    for _ in range(2):
        torch.amp.GradScaler("cpu", init_scale=2.0**24).scale(torch.ones(1))
    found, _ = looked_at("nan,overflow", "allreduce", sums, [tensor(INF)], scaling=scaling)
    assert found is None
    assert len(logged) == 1
    with pytest.raises(FindingRaised):
        looked_at("nan", "broadcast", call("broadcast", root=10), [tensor(NAN)], scaling=scaling)


def test_a_scaler_that_was_in_use_before(logged: list[str]) -> None:
    """A check that begins late has not seen its first loss."""
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    late = LossScaling()
    late.watch()
    assert late.seen
    assert len(logged) >= 1


def test_a_scaler_that_is_off(logged: list[str], scaling: LossScaling) -> None:
    sums = call("all_reduce", reduce_op="sum")
    looked_at("nan", "allreduce", sums, [FINE], scaling=scaling)
    torch.amp.GradScaler("cpu", enabled=False).scale(torch.ones(1))
    with pytest.raises(FindingRaised):
        looked_at("nan", "allreduce", sums, [tensor(NAN)], scaling=scaling)
    assert not logged


TORCHS_WORDS = "NaN found in input tensor."


def raised_by_torch(words: str, method: str, signature: Signature, *args: Any) -> BaseException:
    """The error with which torch has refused rank 10's call, as the program gets it."""
    slot: Any = SimpleNamespace(issued=7)
    record = GroupRecord("0", "default_pg", 0, RANKS, 0, slot, "gloo", None)
    known: Any = SimpleNamespace(text=signature.to_json())
    error = RuntimeError(words)
    refused(error, method, args, record, known)
    return error


def test_torch_itself_has_refused_a_nan() -> None:
    sums = call("all_reduce", reduce_op="sum")
    error: Any = raised_by_torch(TORCHS_WORDS, "allreduce", sums, [tensor(INF, 1, NAN)])
    assert (error.finding.kind, str(error)) == ("nan", TORCHS_WORDS)
    assert error.finding.message == (
        "rank 10 contributes nan to all_reduce(sum, float32[2]) #7 of group "
        '"default_pg": element 2 is the first that is wrong'
    )


@pytest.mark.parametrize(
    ("words", "method", "signature", "args"),
    [
        ("invalid tensor type", "allreduce", call("all_reduce"), [[tensor(NAN)]]),
        (TORCHS_WORDS, "allreduce", call("all_reduce"), [[tensor(INF)]]),
        (TORCHS_WORDS, "broadcast", call("broadcast", root=20), [[tensor(NAN)]]),
        (TORCHS_WORDS, "barrier", Signature("barrier"), []),
    ],
)
def test_torch_has_refused_something_else(
    words: str, method: str, signature: Signature, args: list[Any]
) -> None:
    """It stays torch's error, with nothing of ours."""
    assert not hasattr(raised_by_torch(words, method, signature, *args), "finding")


def test_a_search_that_fails_leaves_torchs_error(capfd: pytest.CaptureFixture[str]) -> None:
    broken: Any = SimpleNamespace(ranks=RANKS, group_rank=5, slot=SimpleNamespace(issued=0))
    known: Any = SimpleNamespace(text=call("all_reduce").to_json())
    error = RuntimeError(TORCHS_WORDS)
    refused(error, "allreduce", ([tensor(NAN)],), broken, known)
    assert not hasattr(error, "finding")
    assert "the search for the NaN" in capfd.readouterr().err
