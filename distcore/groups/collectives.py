"""The collective calls of torch's ProcessGroup: checks, the call's text, then the engine.

Methods have torch's names, arguments and calling forms. Each raises ValueError or TypeError for
what is wrong by itself, before anything is sent, and what `distcore.errors` describes for what
goes wrong on the way. all_to_all is in `exchanging.py`, the coalesced forms in `coalesced.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..base.reduction import reduction_for
from ..engine.parts import Parts
from ..engine.staging import around
from . import argument_checks, lists, sparse
from .call_options import (
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    listed,
    options,
)
from .exchanging import Exchanging

_reductions: dict[tuple[int, torch.dtype], Any] = {}


class Collectives(Exchanging):
    """Mixed into the process group."""

    def _reduction(self, kind: int, op: Any, dtype: torch.dtype) -> Any:
        """Returns how to combine; `kind` is the number of the op. Raises as `reduction_for`
        does."""
        known = _reductions.get((kind, dtype))
        if known is None:
            known = reduction_for(op, dtype, self._engine.name)
            if kind != call_text.PREMUL_SUM:  # which carries its factor with it
                _reductions[kind, dtype] = known
        return known

    # -- reducing --------------------------------------------------------------------------------

    def allreduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        op: Any = None,
    ) -> Any:
        if opts.__class__ is not AllReduce:
            opts = options(AllReduce, opts, timeout, reduceOp=op)
        if not isinstance(tensors, list) or len(tensors) != 1:
            tensors = listed(tensors, tensor)
            if len(tensors) != 1:
                return self._all_reduce_of_several(tensors, opts)
        data = tensors[0]
        reduce_op = opts.reduceOp
        kind = hash(reduce_op)
        if not self._is_plain(data):
            return self._staged_all_reduce(data, reduce_op, kind, opts)
        dtype = data.dtype
        combine = _reductions.get((kind, dtype)) or self._reduction(kind, reduce_op, dtype)
        text = call_text.reducing("all_reduce", kind, dtype, data.numel())
        return self._issue(
            "allreduce_",
            text,
            opts,
            self._engine.all_reduce(data, combine),
            tensors,
        )

    def _staged_all_reduce(self, data: Any, reduce_op: Any, kind: int, opts: Any) -> Any:
        caller = self._caller("all_reduce")
        if isinstance(data, Tensor) and data.layout is torch.sparse_coo:
            text, body = sparse.all_reduce(caller, [data], kind, self._engine)
            return self._issue("allreduce_", text, opts, body, [data])
        argument_checks.tensor(caller, "tensor", data, written=True)
        combine = self._reduction(kind, reduce_op, data.dtype)
        staging = self._engine.staging()
        flat = staging.take(data, True, True)
        text = call_text.reducing("all_reduce", kind, data.dtype, data.numel())
        body = staging.around(self._engine.all_reduce(flat, combine))
        return self._issue("allreduce_", text, opts, body, [data])

    def _all_reduce_of_several(self, tensors: Any, opts: Any) -> Any:
        caller = self._caller("all_reduce")
        tensors = lists.checked(caller, tensors)
        kind = hash(opts.reduceOp)
        combine = None
        if tensors[0].layout is torch.strided:
            combine = self._reduction(kind, opts.reduceOp, tensors[0].dtype)
        text, body = lists.all_reduce(caller, tensors, kind, combine, self._engine)
        return self._issue("allreduce_", text, opts, body, tensors)

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any:
        opts = options(Reduce, opts, timeout, rootRank=root, reduceOp=op)
        caller = self._caller("reduce")
        tensors = listed(tensors, tensor)
        root = argument_checks.root(caller, "root", opts.rootRank)
        words = "requires a single-element tensor list"
        data = argument_checks.only_one(caller, "tensors", tensors, words)
        argument_checks.root_tensor(caller, opts.rootTensor, tensors)
        argument_checks.tensor(caller, "tensor", data, written=root == self._rank)
        kind = hash(opts.reduceOp)
        combine = self._reduction(kind, opts.reduceOp, data.dtype)
        staging = self._engine.staging()
        flat = staging.take(data, True, root == self._rank)
        text = call_text.reducing_to(self._ranks[root], kind, data.dtype, data.numel())
        body = staging.around(self._engine.reduce(flat, root, combine))
        return self._issue("reduce_", text, opts, body, [data])

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        op: Any = None,
    ) -> Any:
        opts = options(ReduceScatter, opts, timeout, reduceOp=op)
        caller = self._caller("reduce_scatter")
        if input_tensors is None:
            input_tensors = input_tensor
        if isinstance(output_tensors, Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        output = argument_checks.only_one(caller, "output", output_tensors)
        argument_checks.tensor(caller, "output", output, written=True)
        inputs = argument_checks.only_one(caller, "input_list", input_tensors)
        inputs = argument_checks.tensors(caller, "input_list", inputs, self._size)
        own = inputs[self._rank]
        argument_checks.same_dtype(caller, "output", output, "input_list", own)
        argument_checks.count(caller, "output", output, own.numel(), f"as input_list[{self._rank}]")
        kind = hash(opts.reduceOp)
        combine = self._reduction(kind, opts.reduceOp, output.dtype)
        counts = [one.numel() for one in inputs]
        if len(set(counts)) == 1:
            text = call_text.reducing("reduce_scatter", kind, output.dtype, counts[0])
        else:
            text = call_text.uneven("reduce_scatter", kind, output.dtype, counts)
        staging = self._engine.staging()
        sources = staging.inputs(inputs)
        target = staging.outputs([output])[0]
        body = staging.around(self._engine.reduce_scatter(target, sources, combine))
        return self._issue("reduce_scatter_", text, opts, body, [output])

    def reduce_scatter_single(
        self,
        outputTensor: Any,
        inputTensor: Any,
        opts: Any = None,
    ) -> Any:
        if opts.__class__ is not ReduceScatter:
            opts = options(ReduceScatter, opts)
        output, data = outputTensor, inputTensor
        caller = self._caller("reduce_scatter_tensor")
        target, source, staging = self._pair(caller, output, data)
        argument_checks.part(caller, "output", output, "input", data)
        kind = hash(opts.reduceOp)
        combine = self._reduction(kind, opts.reduceOp, output.dtype)
        text = call_text.reducing("reduce_scatter_tensor", kind, output.dtype, output.numel())
        body = self._engine.reduce_scatter(target, Parts.even(source, self._size), combine)
        return self._issue("_reduce_scatter_base_", text, opts, around(staging, body), [output])

    _reduce_scatter_base = reduce_scatter_single

    # -- moving ----------------------------------------------------------------------------------

    def broadcast(
        self,
        tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any:
        if opts.__class__ is not Broadcast:
            opts = options(Broadcast, opts, timeout, rootRank=root)
        caller = self._caller("broadcast")
        tensors = listed(tensors, tensor)
        root = argument_checks.root(caller, "root", opts.rootRank)
        if len(tensors) != 1 or opts.rootTensor:
            which = argument_checks.root_tensor(caller, opts.rootTensor, tensors)
            lists.checked(caller, tensors)
            text, body = lists.broadcast(caller, tensors, root, which, self._engine)
            return self._issue("broadcast_", text, opts, body, tensors)
        [data] = tensors
        flat, staging = data, None
        if not self._is_plain(data):
            argument_checks.tensor(caller, "tensor", data, written=root != self._rank)
            staging = self._engine.staging()
            flat = staging.take(data, root == self._rank, root != self._rank)
        text = call_text.rooted("broadcast", "src", self._ranks[root], data.dtype, data.numel())
        body = self._engine.broadcast(flat, root)
        return self._issue("broadcast_", text, opts, around(staging, body), [data])

    def allgather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
    ) -> Any:
        opts = options(AllGather, opts, timeout)
        caller = self._caller("all_gather")
        inputs = listed(input_tensors, input_tensor)
        if len(output_tensors) and isinstance(output_tensors[0], Tensor):
            output_tensors = [output_tensors]
        if len(inputs) != 1 or len(output_tensors) != 1:
            lists.checked(caller, inputs, "tensor")
            text, body, written = lists.all_gather(caller, output_tensors, inputs, self._engine)
            return self._issue("allgather_", text, opts, body, written)
        [data], [outputs] = inputs, output_tensors
        outputs = argument_checks.tensors(caller, "tensor_list", outputs, self._size, written=True)
        argument_checks.tensor(caller, "tensor", data)
        own = outputs[self._rank]
        argument_checks.same_dtype(caller, "tensor_list", own, "tensor", data)
        argument_checks.count(
            caller, f"tensor_list[{self._rank}]", own, data.numel(), "those of tensor, this rank's"
        )
        counts = [one.numel() for one in outputs]
        staging = self._engine.staging()
        source = staging.inputs([data])[0]
        targets = staging.outputs(outputs)
        if len(set(counts)) == 1:
            text = call_text.moving("all_gather", data.dtype, counts[0])
        else:
            text = call_text.uneven("all_gather", None, data.dtype, counts)
        body = staging.around(self._engine.all_gather(targets, source))
        return self._issue("allgather_", text, opts, body, outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        if opts.__class__ is not AllGather:
            opts = options(AllGather, opts)
        data = input
        caller = self._caller("all_gather_into_tensor")
        target, source, staging = self._pair(caller, output, data)
        argument_checks.part(caller, "input", data, "output", output)
        text = call_text.moving("all_gather_into_tensor", data.dtype, data.numel())
        body = self._engine.all_gather(Parts.even(target, self._size), source)
        return self._issue("_allgather_base_", text, opts, around(staging, body), [output])

    _allgather_base = all_gather_single

    def gather(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        input_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        opts = options(Gather, opts, timeout, rootRank=root)
        caller = self._caller("gather")
        words = "requires a single-element input tensor list"
        data = argument_checks.only_one(
            caller, "tensor", listed(input_tensors, input_tensor), words
        )
        argument_checks.tensor(caller, "tensor", data)
        root = argument_checks.root(caller, "dst", opts.rootRank)
        if len(output_tensors) and isinstance(output_tensors[0], Tensor):
            output_tensors = [output_tensors]
        staging = self._engine.staging()
        source = staging.inputs([data])[0]
        outputs, targets = [], None
        if root == self._rank:
            words = "requires a single-element output list"
            outputs = argument_checks.only_one(caller, "gather_list", output_tensors, words)
            outputs = argument_checks.tensors(
                caller, "gather_list", outputs, self._size, written=True
            )
            argument_checks.counts(caller, "gather_list", outputs, "tensor", data)
            targets = staging.outputs(outputs)
        elif any(len(row) for row in output_tensors):
            expected, words = "none, for this rank is not dst", "requires empty output on non-root"
            caller.wrong("gather_list", expected, "a list of tensors", words)
        text = call_text.rooted("gather", "dst", self._ranks[root], data.dtype, data.numel())
        body = staging.around(self._engine.gather(targets, source, root))
        return self._issue("gather_", text, opts, body, outputs)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Gathers into one tensor on the root; the other ranks' output is ignored. Since torch
        2.14."""
        opts = options(Gather, opts)
        caller = self._caller("gather_into_tensor")
        data = argument_checks.tensor(caller, "tensor", input)
        root = argument_checks.group_rank(caller, "dst", opts.rootRank)
        staging = self._engine.staging()
        source = staging.take(data, True, False)
        outputs, targets = [], None
        if root == self._rank:
            argument_checks.pair(caller, "gather_tensor", output, "tensor", data)
            argument_checks.part(caller, "tensor", data, "gather_tensor", output)
            outputs = [output]
            targets = Parts.even(staging.take(output, False, True), self._size)
        text = call_text.rooted(
            "gather_into_tensor", "dst", self._ranks[root], data.dtype, data.numel()
        )
        body = staging.around(self._engine.gather(targets, source, root))
        return self._issue("gather_into_tensor_", text, opts, body, outputs)

    gather_into_tensor = gather_single

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output_tensor: Any = None,
        root: Any = None,
    ) -> Any:
        opts = options(Scatter, opts, timeout, rootRank=root)
        caller = self._caller("scatter")
        words = "requires a single-element output tensor list"
        output = argument_checks.only_one(
            caller, "tensor", listed(output_tensors, output_tensor), words
        )
        argument_checks.tensor(caller, "tensor", output, written=True)
        root = argument_checks.root(caller, "src", opts.rootRank)
        if len(input_tensors) and isinstance(input_tensors[0], Tensor):
            input_tensors = [input_tensors]
        staging = self._engine.staging()
        sources = None
        if root == self._rank:
            words = "requires a single-element input list"
            inputs = argument_checks.only_one(caller, "scatter_list", input_tensors, words)
            inputs = argument_checks.tensors(caller, "scatter_list", inputs, self._size)
            argument_checks.counts(caller, "scatter_list", inputs, "tensor", output)
            sources = staging.inputs(inputs)
        elif any(len(row) for row in input_tensors):
            expected, words = "none, for this rank is not src", "requires empty input on non-root"
            caller.wrong("scatter_list", expected, "a list of tensors", words)
        target = staging.outputs([output])[0]
        text = call_text.rooted("scatter", "src", self._ranks[root], output.dtype, output.numel())
        body = staging.around(self._engine.scatter(target, sources, root))
        return self._issue("scatter_", text, opts, body, [output])

    # -- meeting ---------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = options(Barrier, opts, timeout)
        return self._issue("barrier", "barrier()", opts, self._engine.barrier(), [])
