"""Which changes of a buffer in flight are seen, and which may well be right."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.errors.in_ranks import FindingRaised
from distdebug.rank.checks.in_flight import Held, hold
from distdebug.rank.record.recorder import GroupRecord
from distdebug.record.notes import OwnFindingNote
from distdebug.record.signature import Signature

Change = Callable[[torch.Tensor], object]


def held(method: str, *args: Any, peer: int | None = None) -> tuple[Held | None, list[Any]]:
    """What is kept of the call, and where its finding goes."""
    notes: list[Any] = []
    recorder: Any = SimpleNamespace(
        note=lambda *given: notes.append(given), safe_site=lambda _frame: 3, off=()
    )
    slot: Any = SimpleNamespace(issued=8)
    record = GroupRecord("0", "default_pg", 0, (10, 20), 1, slot, "gloo", None)
    op = "send" if peer is not None else "all_reduce"
    known: Any = SimpleNamespace(text=Signature(op, (("float32", (4,)),), peer=peer).to_json())
    return hold(method, args, recorder, record, known), notes


WRONG: dict[str, tuple[Change, str]] = {
    "write": (lambda t: t.zero_(), "written"),
    "write to a part": (lambda t: t[1:].fill_(3), "written"),
    "write under no_grad": (lambda t: t.detach().add_(1), "written"),
    "freed": (lambda t: t.untyped_storage().resize_(0), "resized or freed"),
    "grown": (lambda t: t.resize_(100), "resized or freed"),
}


@pytest.mark.parametrize("change", WRONG)
@pytest.mark.parametrize("method", ["allreduce", "send", "_allgather_base"])
def test_seen(method: str, change: str) -> None:
    tensor = torch.ones(4)
    args = [torch.empty(8), tensor] if method == "_allgather_base" else [[tensor]]
    kept, notes = held(method, *args, peer=10 if method == "send" else None)
    assert kept is not None
    kept.check()
    assert not notes
    act, what = WRONG[change]
    act(tensor)
    with pytest.raises(FindingRaised, match=f"was {what} between the call and its wait"):
        kept.check()
    ((note, *_),) = notes
    seq = None if method == "send" else 7
    assert note == OwnFindingNote("inflight_write", (20,), (10,), ("0", 0), seq)


def test_outputs_are_the_backends() -> None:
    output, tensor = torch.empty(8), torch.ones(4)
    kept, _ = held("_allgather_base", output, tensor)
    output.zero_()
    assert kept is not None
    kept.check()


def test_what_counts_together_with_others_is_left_out() -> None:
    flat = torch.ones(8)
    assert held("allreduce", [flat[:4]])[0] is None
    assert held("allreduce", [flat.view(2, 4)])[0] is None
    assert held("send", [flat[:4].detach()], peer=10)[0] is None
    with torch.inference_mode():
        assert held("allreduce", [torch.ones(4)])[0] is None


def test_subclasses_are_left_out() -> None:
    """They may have no memory of their own."""

    class Tensor(torch.Tensor):
        pass

    assert held("send", [torch.ones(4).as_subclass(Tensor)], peer=10)[0] is None
    assert held("send", [torch.nn.Parameter(torch.ones(4))], peer=10)[0] is not None


def test_what_the_backend_copies_is_left_out() -> None:
    tensor = torch.ones(4)
    assert held("allreduce_coalesced", [tensor, tensor])[0] is None
    assert held("barrier")[0] is None
    assert held("recv", [tensor], 0, 0)[0] is None
