"""torch's options objects, whichever of its calling forms was used.

Every method of ProcessGroup takes an options object; most also take its fields instead, as
`allreduce(tensor, op, timeout)`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor

from ..torch_private import c10d

# torch's stubs do not have the constructors.
AllReduce: Any = c10d.AllreduceOptions
AllReduceCoalesced: Any = c10d.AllreduceCoalescedOptions
AllGather: Any = c10d.AllgatherOptions
AllToAll: Any = c10d.AllToAllOptions
Barrier: Any = c10d.BarrierOptions
Broadcast: Any = c10d.BroadcastOptions
Gather: Any = c10d.GatherOptions
Reduce: Any = c10d.ReduceOptions
ReduceScatter: Any = c10d.ReduceScatterOptions
Scatter: Any = c10d.ScatterOptions

_NONE = timedelta(0)


def options(kind: Any, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """`given` where it is an options object, else a new one with the fields that are not None;
    `given` then is the first of them."""
    if given is not None and given.__class__.__name__.endswith("Options"):
        return given
    made = kind()
    for position, (field, value) in enumerate(fields.items()):
        if value is None and position == 0:
            value = given
        if value is not None:
            setattr(made, field, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def listed(tensors: Any, tensor: Any) -> Any:
    """A list of tensors, where the one form takes a list and the other a tensor."""
    given = tensor if tensors is None else tensors
    return [given] if isinstance(given, Tensor) else given


def time_limit(given: Any, default_s: float) -> float:
    """Seconds: those of the options object, or the group's."""
    timeout = given.timeout
    return default_s if timeout <= _NONE else float(timeout.total_seconds())
