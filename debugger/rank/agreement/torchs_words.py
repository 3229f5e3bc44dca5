"""A disagreement as torch's own DETAIL says it: programs and tests look for those words."""

from __future__ import annotations

from collections.abc import Sequence

from ...record.ops import op_type
from ...record.signature import Signature, scalar_of


def of_mismatch(
    calls: Sequence[Signature], ranks: Sequence[int], culprits: Sequence[int], seq: int, device: str
) -> str:
    """The calls of a culprit and of a rank whose call is another one; the same on all ranks.

    `calls` are those of the `ranks`, in this order; `device` is that of their tensors.
    """
    odd = next((rank for rank in ranks if rank in culprits), ranks[0])
    first = calls[list(ranks).index(odd)]
    place = next((at for at, call in enumerate(calls) if call != first), None)
    if place is None:
        return ""
    other = calls[place]
    rows = sorted([(odd, first), (ranks[place], other)], key=lambda row: row[0])
    (one, its), (another, theirs) = rows
    return (
        f"Detected mismatch between collectives on ranks. Rank {one} is running collective: "
        f"{_fingerprint(its, seq, device)}, but Rank {another} is running collective: "
        f"{_fingerprint(theirs, seq, device)}.Collectives differ in the following aspects: "
        + "  ".join(_differences(its, theirs))
    )


def _fingerprint(call: Signature, seq: int, device: str) -> str:
    fields = [f"SequenceNumber={seq}", f"OpType={_op(call)}"]
    if call.tensors:
        fields.append(f"TensorShape={_shapes(call)}")
        fields.append(f"TensorDtypes={_dtypes(call)}")
        fields.append(f"TensorDeviceTypes=TensorOptions(device={device})")
    return f"CollectiveFingerPrint({', '.join(fields)})"


def _differences(one: Signature, other: Signature) -> list[str]:
    return [
        f"{what}: {its} vs {theirs}"
        for what, its, theirs in (
            ("Op type", _op(one), _op(other)),
            ("Tensor Tensor shapes", _shapes(one), _shapes(other)),
            ("Tensor Tensor dtypes", _dtypes(one), _dtypes(other)),
        )
        if its != theirs
    ]


def _op(call: Signature) -> str:
    return op_type(call.op)


def _shapes(call: Signature) -> str:
    return ", ".join(str(list(shape)) for shape in call.shapes)


def _dtypes(call: Signature) -> str:
    return ", ".join(scalar_of(dtype) for dtype in call.dtypes)
