"""The collective calls of torch's ProcessGroup: checks, the call's text, then the engine.

Methods have torch's names, arguments and calling forms. Each raises ValueError or TypeError for
what is wrong by itself, before anything is sent, and what `distcore.errors` describes for what
goes wrong on the way. The coalesced forms are in `coalesced.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..base.reduction import KNOWN, reduction_for
from ..engine.base import Body, Engine
from ..engine.staging import NO_COPIES, Parts, Staging
from ..engine.work import CallWork
from ..torch_private import profiler_enabled
from . import arguments, lists
from .arguments import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Caller,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    listed,
    options,
    time_limit,
)


class Issuing:
    """The base of a group's calls. The group sets the attributes."""

    _engine: Engine
    _is_plain: Callable[[Tensor], bool]
    _ranks: tuple[int, ...]
    _rank: int
    _size: int
    _timeout_s: float
    _coalescing: list[CallWork] | None
    _callers: dict[str, Caller]
    _profiled = staticmethod(profiler_enabled)

    def _caller(self, call: str) -> Caller:
        """Returns the caller, for the messages of the checks."""
        known = self._callers.get(call)
        if known is None:
            known = self._callers[call] = Caller(call, self._ranks, self._rank, self._engine.reach)
        return known

    def _pair(self, caller: Caller, output: Any, data: Any) -> tuple[Tensor, Tensor, Staging]:
        """Output and input, checked, as the engine shall take them; and their copying."""
        if self._is_plain(output) and self._is_plain(data):
            arguments.same_dtype(caller, "output", output, "input", data)
            return output, data, NO_COPIES
        arguments.pair(caller, "output", output, "input", data)
        staging = self._engine.staging()
        return staging.take(output, False, True), staging.take(data, True, False), staging

    def _issue(
        self, operator: str, text: str, opts: Any, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Start a call; `operator` is the name of torch's own operator for it, for the profiler."""
        timeout_s = time_limit(opts, self._timeout_s)
        at_once = not getattr(opts, "asyncOp", True)
        start = self._engine.start
        if not self._profiled():
            work = start(text, timeout_s, at_once, body, tensors)
        else:
            work = self._recorded(
                operator, text, lambda: start(text, timeout_s, at_once, body, tensors)
            )
        if self._coalescing is not None and not at_once:
            self._coalescing.append(work)
        return work

    def _recorded(self, operator: str, text: str, start: Callable[[], CallWork]) -> CallWork:
        """Under torch's own name on the caller's thread, as its dispatcher would record it; and
        under the backend's name for as long as the call takes."""
        name = text.split("(", 1)[0]
        with torch.profiler.record_function(f"c10d::{operator}"):
            whole = torch.profiler.record_function(f"{self._engine.name}:{name}")
            with whole:
                work = start()
                if not work.is_completed():
                    record = whole._call_end_callbacks_on_future(work.record_future())
                    work.recorded_until(record)
        return work

    def _start_coalescing(self, _device: Any = None) -> None:
        """Until `_end_coalescing`, gather the handles of asynchronous calls."""
        self._coalescing = []
        self._engine.begin_batch()

    def _end_coalescing(self, _device: Any = None) -> CallWork:
        """Returns a handle for all calls since `_start_coalescing`."""
        works, self._coalescing = self._coalescing or [], None
        return self._engine.end_batch(works)

    def start_coalescing(self, device: Any = None) -> None:
        """Called by this name from torch's C++ code, since 2.14."""
        self._start_coalescing(device)

    def end_coalescing(self, device: Any = None) -> CallWork:
        """Called by this name from torch's C++ code, since 2.14."""
        return self._end_coalescing(device)


_NO_ROOT = "invalid root rank"


class Collectives(Issuing):
    """Mixed into the process group."""

    def _reduction(self, op: Any, dtype: torch.dtype) -> Any:
        """Returns how to combine. Raises as `reduction_for` does."""
        return reduction_for(op, dtype, self._engine.name)

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
        if not isinstance(tensors, list):
            tensors = listed(tensors, tensor)
        if len(tensors) != 1 or not self._is_plain(tensors[0]):
            return self._other_all_reduce(tensors, opts)
        data = tensors[0]
        reduce_op = opts.reduceOp
        kind = hash(reduce_op)
        dtype = data.dtype
        combine = KNOWN.get((kind, dtype)) or self._reduction(reduce_op, dtype)
        text = call_text.reducing("all_reduce", kind, dtype, data.numel())
        return self._issue(
            "allreduce_", text, opts, self._engine.all_reduce(data, combine), tensors
        )

    def _other_all_reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduces several tensors a rank, sparse ones, or one that must be staged."""
        caller, kind = self._caller("all_reduce"), hash(opts.reduceOp)
        several = len(tensors) != 1
        if several:
            tensors = lists.checked(caller, tensors)
        data = tensors[0]
        layout = data.layout if isinstance(data, Tensor) else torch.strided
        if layout is torch.sparse_coo or (several and layout is not torch.strided):
            text, body = lists.all_reduce_sparse(caller, tensors, kind, self._engine)
            return self._issue("allreduce_", text, opts, body, tensors)
        if several:
            combine = self._reduction(opts.reduceOp, data.dtype)
            text, body = lists.all_reduce(caller, tensors, kind, combine, self._engine)
            return self._issue("allreduce_", text, opts, body, tensors)
        arguments.tensor(caller, "tensor", data, written=True)
        combine = self._reduction(opts.reduceOp, data.dtype)
        staging = self._engine.staging()
        flat = staging.take(data, True, True)
        text = call_text.reducing("all_reduce", kind, data.dtype, data.numel())
        body = staging.around(self._engine.all_reduce(flat, combine))
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
        root = arguments.group_rank(caller, "root", opts.rootRank, _NO_ROOT)
        words = "requires a single-element tensor list"
        data = arguments.only_one(caller, "tensors", tensors, words)
        arguments.root_tensor(caller, opts.rootTensor, tensors)
        arguments.tensor(caller, "tensor", data, written=root == self._rank)
        kind = hash(opts.reduceOp)
        combine = self._reduction(opts.reduceOp, data.dtype)
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
        output = arguments.only_one(caller, "output", output_tensors)
        arguments.tensor(caller, "output", output, written=True)
        inputs = arguments.only_one(caller, "input_list", input_tensors)
        inputs = arguments.tensors(caller, "input_list", inputs, self._size)
        own = inputs[self._rank]
        arguments.same_dtype(caller, "output", output, "input_list", own)
        arguments.count(caller, "output", output, own.numel(), f"as input_list[{self._rank}]")
        kind = hash(opts.reduceOp)
        combine = self._reduction(opts.reduceOp, output.dtype)
        counts = [one.numel() for one in inputs]
        text = call_text.of_list("reduce_scatter", kind, output.dtype, counts)
        staging = self._engine.staging()
        sources = staging.inputs(inputs)
        target = staging.take(output, False, True)
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
        arguments.part(caller, "output", output, "input", data)
        kind = hash(opts.reduceOp)
        combine = self._reduction(opts.reduceOp, output.dtype)
        text = call_text.reducing("reduce_scatter_tensor", kind, output.dtype, output.numel())
        body = self._engine.reduce_scatter(target, Parts.even(source, self._size), combine)
        return self._issue("_reduce_scatter_base_", text, opts, staging.around(body), [output])

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
        root = arguments.group_rank(caller, "root", opts.rootRank, _NO_ROOT)
        if len(tensors) != 1 or opts.rootTensor:
            which = arguments.root_tensor(caller, opts.rootTensor, tensors)
            lists.checked(caller, tensors)
            text, body = lists.broadcast(caller, tensors, root, which, self._engine)
            return self._issue("broadcast_", text, opts, body, tensors)
        [data] = tensors
        flat, staging = data, NO_COPIES
        if not self._is_plain(data):
            arguments.tensor(caller, "tensor", data, written=root != self._rank)
            staging = self._engine.staging()
            flat = staging.take(data, root == self._rank, root != self._rank)
        text = call_text.rooted("broadcast", "src", self._ranks[root], data.dtype, data.numel())
        body = self._engine.broadcast(flat, root)
        return self._issue("broadcast_", text, opts, staging.around(body), [data])

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
        outputs = arguments.tensors(caller, "tensor_list", outputs, self._size, written=True)
        arguments.tensor(caller, "tensor", data)
        own = outputs[self._rank]
        arguments.same_dtype(caller, "tensor_list", own, "tensor", data)
        arguments.count(
            caller, f"tensor_list[{self._rank}]", own, data.numel(), "those of tensor, this rank's"
        )
        counts = [one.numel() for one in outputs]
        staging = self._engine.staging()
        source = staging.take(data, True, False)
        targets = staging.outputs(outputs)
        text = call_text.of_list("all_gather", None, data.dtype, counts)
        body = staging.around(self._engine.all_gather(targets, source))
        return self._issue("allgather_", text, opts, body, outputs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        if opts.__class__ is not AllGather:
            opts = options(AllGather, opts)
        data = input
        caller = self._caller("all_gather_into_tensor")
        target, source, staging = self._pair(caller, output, data)
        arguments.part(caller, "input", data, "output", output)
        text = call_text.moving("all_gather_into_tensor", data.dtype, data.numel())
        body = self._engine.all_gather(Parts.even(target, self._size), source)
        return self._issue("_allgather_base_", text, opts, staging.around(body), [output])

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
        data = arguments.only_one(caller, "tensor", listed(input_tensors, input_tensor), words)
        arguments.tensor(caller, "tensor", data)
        root = arguments.group_rank(caller, "dst", opts.rootRank, _NO_ROOT)
        if len(output_tensors) and isinstance(output_tensors[0], Tensor):
            output_tensors = [output_tensors]
        staging = self._engine.staging()
        source = staging.take(data, True, False)
        outputs = self._roots_list(caller, "gather_list", root, output_tensors, data, "output")
        targets = staging.outputs(outputs) if root == self._rank else None
        text = call_text.rooted("gather", "dst", self._ranks[root], data.dtype, data.numel())
        body = staging.around(self._engine.gather(targets, source, root))
        return self._issue("gather_", text, opts, body, outputs)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Gathers into one tensor on the root; the other ranks' output is ignored. Since torch
        2.14."""
        opts = options(Gather, opts)
        caller = self._caller("gather_into_tensor")
        data = arguments.tensor(caller, "tensor", input)
        root = arguments.group_rank(caller, "dst", opts.rootRank)
        staging = self._engine.staging()
        source = staging.take(data, True, False)
        outputs, targets = [], None
        if root == self._rank:
            arguments.pair(caller, "gather_tensor", output, "tensor", data)
            arguments.part(caller, "tensor", data, "gather_tensor", output)
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
        output = arguments.only_one(caller, "tensor", listed(output_tensors, output_tensor), words)
        arguments.tensor(caller, "tensor", output, written=True)
        root = arguments.group_rank(caller, "src", opts.rootRank, _NO_ROOT)
        if len(input_tensors) and isinstance(input_tensors[0], Tensor):
            input_tensors = [input_tensors]
        staging = self._engine.staging()
        inputs = self._roots_list(caller, "scatter_list", root, input_tensors, output, "input")
        sources = staging.inputs(inputs) if root == self._rank else None
        target = staging.take(output, False, True)
        text = call_text.rooted("scatter", "src", self._ranks[root], output.dtype, output.numel())
        body = staging.around(self._engine.scatter(target, sources, root))
        return self._issue("scatter_", text, opts, body, [output])

    def _roots_list(
        self, caller: Caller, name: str, root: int, given: Any, like: Tensor, side: str
    ) -> list[Tensor]:
        """The root's tensors, one for each rank; other ranks give none."""
        if root == self._rank:
            words = f"requires a single-element {side} list"
            tensors = arguments.only_one(caller, name, given, words)
            written = side == "output"
            tensors = arguments.tensors(caller, name, tensors, self._size, written=written)
            arguments.counts(caller, name, tensors, "tensor", like)
            return tensors
        if any(len(row) for row in given):
            role = "dst" if side == "output" else "src"
            expected, words = (
                f"none, for this rank is not {role}",
                f"requires empty {side} on non-root",
            )
            caller.wrong(name, expected, "a list of tensors", words)
        return []

    # -- exchanging ------------------------------------------------------------------------------

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
        outputs = arguments.tensors(
            caller, "output_tensor_list", given_out, self._size, written=True
        )
        inputs = arguments.tensors(caller, "input_tensor_list", given_in, self._size)
        arguments.same_dtype(
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
        return self._issue("alltoall_base_", text, opts, staging.around(body), [output])

    alltoall_base = all_to_all_single

    def _split(
        self, caller: Caller, name: str, given: Sequence[int], of: Tensor, taken: Tensor
    ) -> Parts:
        """`taken`, which is or stands for `of`, as the program wants it split."""
        argument = f"{name}_split_sizes"
        if not given:
            arguments.divides(caller, name, of)
            return Parts.even(taken, self._size)
        return Parts(taken, arguments.splits(caller, argument, given, of, name))

    def _own_part(self, caller: Caller, receives: int, sends: int) -> None:
        if receives != sends:
            caller.wrong(
                "the part that this rank sends to itself",
                f"{receives} elements, as its output has room for",
                sends,
            )

    # -- meeting ---------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = options(Barrier, opts, timeout)
        return self._issue("barrier", "barrier()", opts, self._engine.barrier(), [])
