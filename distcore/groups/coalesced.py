"""The coalesced collectives: several tensors in one call, small ones in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..engine.base import Body
from ..engine.staging import Parts
from . import arguments
from .arguments import AllGather, AllReduceCoalesced, ReduceScatter, options
from .collectives import Collectives


class Coalesced(Collectives):
    """Mixed into the process group."""

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Makes one all_reduce for each tensor; the tensors may differ in dtype."""
        opts = options(AllReduceCoalesced, opts)
        caller = self._caller("all_reduce_coalesced")
        tensors = _list(caller, "tensors", tensors, written=True)
        kind = hash(opts.reduceOp)
        combines = [self._reduction(opts.reduceOp, one.dtype) for one in tensors]
        staging = self._engine.staging()
        flats = [staging.take(one, True, True) for one in tensors]
        text = call_text.coalesced("all_reduce_coalesced", kind, _facts(tensors))

        body = self._engine.all_reduce_coalesced(flats, combines)
        return self._issue("allreduce_coalesced_", text, opts, staging.around(body), tensors)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Makes one all_gather_into_tensor for each pair."""
        opts = options(AllGather, opts)
        caller = self._caller("all_gather_into_tensor_coalesced")
        outputs, inputs = _pairs(caller, outputs, inputs)
        for index, (output, data) in enumerate(zip(outputs, inputs, strict=True)):
            arguments.part(caller, f"inputs[{index}]", data, f"outputs[{index}]", output)
        staging = self._engine.staging()
        sources = [staging.take(one, True, False) for one in inputs]
        targets = [Parts.even(staging.take(one, False, True), self._size) for one in outputs]
        text = call_text.coalesced("all_gather_into_tensor_coalesced", None, _facts(inputs))

        body = self._all_gathers(targets, sources)
        return self._issue(
            "allgather_into_tensor_coalesced_", text, opts, staging.around(body), outputs
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(
        self,
        outputTensors: Any,
        inputTensors: Any,
        opts: Any = None,
    ) -> Any:
        """Makes one reduce_scatter_tensor for each pair."""
        opts = options(ReduceScatter, opts)
        caller = self._caller("reduce_scatter_tensor_coalesced")
        outputs, inputs = _pairs(caller, outputTensors, inputTensors)
        for index, (output, data) in enumerate(zip(outputs, inputs, strict=True)):
            arguments.part(caller, f"outputs[{index}]", output, f"inputs[{index}]", data)
        kind = hash(opts.reduceOp)
        combines = [self._reduction(opts.reduceOp, one.dtype) for one in outputs]
        staging = self._engine.staging()
        sources = [Parts.even(staging.take(one, True, False), self._size) for one in inputs]
        targets = [staging.take(one, False, True) for one in outputs]
        text = call_text.coalesced("reduce_scatter_tensor_coalesced", kind, _facts(outputs))

        body = self._engine.together(
            [
                self._engine.reduce_scatter(target, parts, combine)
                for target, parts, combine in zip(targets, sources, combines, strict=True)
            ]
        )
        return self._issue(
            "reduce_scatter_tensor_coalesced_", text, opts, staging.around(body), outputs
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """Makes one all_gather for each input; `output_lists[rank][index]` is where input `index`
        of that rank goes."""
        opts = options(AllGather, opts)
        caller = self._caller("all_gather_coalesced")
        inputs = _list(caller, "input_list", input_list)
        if len(output_lists) != self._size:
            caller.wrong(
                "output_lists", f"{self._size} lists, one for each rank", len(output_lists)
            )
        staging = self._engine.staging()
        targets: list[list[Tensor]] = [[] for _ in inputs]
        for rank, row in enumerate(output_lists):
            name = f"output_lists[{rank}]"
            if len(row) != len(inputs):
                caller.wrong(name, f"{len(inputs)} tensors, as input_list has", len(row))
            for index, one in enumerate(row):
                name = f"output_lists[{rank}][{index}]"
                arguments.tensor(caller, name, one, written=True)
                arguments.same_dtype(caller, name, one, f"input_list[{index}]", inputs[index])
                arguments.count(caller, name, one, inputs[index].numel(), f"as input_list[{index}]")
                targets[index].append(staging.take(one, False, True))
        sources = staging.inputs(inputs)
        text = call_text.coalesced("all_gather_coalesced", None, _facts(inputs))

        body = self._all_gathers(targets, sources)
        every = [one for row in output_lists for one in row]
        return self._issue("allgather_coalesced_", text, opts, staging.around(body), every)

    def _all_gathers(self, targets: Sequence[Sequence[Tensor]], sources: Sequence[Tensor]) -> Body:
        return self._engine.together(
            [
                self._engine.all_gather(parts, source)
                for parts, source in zip(targets, sources, strict=True)
            ]
        )


def _list(caller: Any, argument: str, given: Any, *, written: bool = False) -> list[Tensor]:
    """Tensors that may differ in dtype."""
    if not isinstance(given, list | tuple) or not given:
        caller.wrong_type(argument, "a list of tensors", given)
    return [
        arguments.tensor(caller, f"{argument}[{index}]", one, written=written)
        for index, one in enumerate(given)
    ]


def _pairs(caller: Any, outputs: Any, inputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    outputs = _list(caller, "outputs", outputs, written=True)
    inputs = _list(caller, "inputs", inputs)
    if len(outputs) != len(inputs):
        caller.wrong("outputs", f"{len(inputs)} tensors, as inputs has", len(outputs))
    for index, (output, data) in enumerate(zip(outputs, inputs, strict=True)):
        arguments.same_dtype(caller, f"outputs[{index}]", output, f"inputs[{index}]", data)
    return outputs, inputs


def _facts(tensors: Sequence[Tensor]) -> list[tuple[torch.dtype, int]]:
    return [(one.dtype, one.numel()) for one in tensors]
