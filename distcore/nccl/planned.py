"""A call that is checked and can be launched: how it is planned, and whose memory it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine.staging import Staging
from .plan import Plan, merged


@dataclass(frozen=True)
class Planned:
    """`make` is called once, with the call's stream current. `blocks`: who waits for it waits on
    the host. As a `Body`, it is called with nothing to run on."""

    make: Callable[[], Plan]
    tensors: tuple[Tensor, ...]
    blocks: bool = False

    def __call__(self, _net: Any) -> Plan:
        return self.make()

    def plan(self) -> Plan:
        """`make`, in the modes of torch that the tensors need."""
        inference = any(tensor.is_inference() for tensor in self.tensors)
        with torch.inference_mode(inference), torch.no_grad():
            return self.make()


def together(calls: Sequence[Planned]) -> Planned:
    """Returns a call that does what these do."""
    return Planned(
        lambda: merged([call.make() for call in calls]),
        tuple(tensor for call in calls for tensor in call.tensors),
        any(call.blocks for call in calls),
    )


class DeviceStaging(Staging):
    """The copies of one call's tensors that do not lie in memory as NCCL needs them: made on the
    device, on the call's stream."""

    __slots__ = ()

    def _stand_in(self, tensor: Tensor) -> tuple[Tensor, None]:
        with torch.inference_mode(tensor.is_inference()):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), None

    def around(self, body: Any) -> Any:
        """The call with the copying before and after; the call itself if there is none."""
        if not self._copies or not isinstance(body, Planned):
            return body

        def make() -> Plan:
            self.load()
            plan = body.make()
            if plan:
                plan[-1].then.append(self.store)
            return plan

        mine = tuple(one for copy in self._copies for one in (copy.original, copy.scratch))
        return Planned(make, (*body.tensors, *mine), body.blocks)
