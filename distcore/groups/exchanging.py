"""The calls in which every rank has something else for every other one: all_to_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..base import call_text
from ..engine.parts import Parts
from ..engine.staging import around
from . import argument_checks
from .argument_checks import Caller
from .call_options import AllToAll, options
from .issuing import Issuing


class Exchanging(Issuing):
    """Mixed into the process group."""

    def alltoall(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        input_tensor: Any = None,
        output: Any = None,
        input: Any = None,  # noqa: A002 - torch's names
    ) -> Any:
        given_out = next(x for x in (output_tensors, output_tensor, output) if x is not None)
        given_in = next(x for x in (input_tensors, input_tensor, input) if x is not None)
        opts = options(AllToAll, opts, timeout)
        caller = self._caller("all_to_all")
        outputs = argument_checks.tensors(
            caller, "output_tensor_list", given_out, self._size, written=True
        )
        inputs = argument_checks.tensors(caller, "input_tensor_list", given_in, self._size)
        argument_checks.same_dtype(
            caller, "output_tensor_list", outputs[0], "input_tensor_list", inputs[0]
        )
        self._own_part(caller, outputs[self._rank].numel(), inputs[self._rank].numel())
        staging = self._engine.staging()
        sources, targets = staging.inputs(inputs), staging.outputs(outputs)
        text = call_text.uncounted("all_to_all", inputs[0].dtype)
        body = staging.around(self._engine.all_to_all(targets, sources))
        return self._issue("alltoall_", text, opts, body, outputs)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002 - torch's name
        output_split_sizes: Any = (),
        input_split_sizes: Any = (),
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        if opts.__class__ is not AllToAll:
            opts = options(AllToAll, opts, timeout)
        data = input
        caller = self._caller("all_to_all_single")
        target, source, staging = self._pair(caller, output, data)
        targets = self._split(caller, "output", output_split_sizes, output, target)
        sources = self._split(caller, "input", input_split_sizes, data, source)
        if targets.each != sources.each or targets.each < 0:
            self._own_part(caller, targets.counts[self._rank], sources.counts[self._rank])
        text = call_text.uncounted("all_to_all_single", data.dtype)
        body = self._engine.all_to_all(targets, sources)
        return self._issue("alltoall_base_", text, opts, around(staging, body), [output])

    alltoall_base = all_to_all_single

    def _split(
        self, caller: Caller, name: str, given: Sequence[int], of: Tensor, taken: Tensor
    ) -> Parts:
        """`taken`, which is or stands for `of`, as the program wants it split."""
        argument = f"{name}_split_sizes"
        if not given:
            argument_checks.divides(caller, name, of)
            return Parts.even(taken, self._size)
        return Parts(taken, argument_checks.splits(caller, argument, given, of, name))

    def _own_part(self, caller: Caller, receives: int, sends: int) -> None:
        if receives != sends:
            caller.wrong(
                "the part that this rank sends to itself",
                f"{receives} elements, as its output has room for",
                sends,
            )
