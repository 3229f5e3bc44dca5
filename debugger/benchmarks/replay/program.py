"""The program of every rank of a replay: it runs its own file of the plan, call by call.

    program.py FOLDER BACKEND PACE      PACE: recorded, fast

A script of its own, which imports nothing of distdebug: it runs as any user's program does, below
the same layer. Each call is made by a frame that has the recorded file, line and function, so that
what is found is told with the line of the program that once made it. The tensors are zeros, on the
CPU, of the recorded dtypes and shapes.

Events: ["init", group], ["create", group or null, ranks, site, whether among themselves],
["call", group, signature, site, number, blocks, failed], ["wait", number]; behind each the time in
ns since the rank went on from the one before. A signature is the JSON of `record.signature`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import types
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor
_Row = list[Any]
_LEAST_SLEEP_S = 5e-5
_LOOK_EVERY_S = 0.1
_NOT_MADE = re.compile(
    r"(?:not|n't) (?:yet )?(?:support|implement|available|have)|unsupported|cannot use reduceop"
    r"|no backend type|invalid scalar type",
    re.IGNORECASE,
)
"""The words with which a backend refuses a call that it does not have; nothing was sent then."""
_AS_SUM = {"gloo": ("avg", "premul_sum"), "mpi": ("premul_sum",), "tcp": ("premul_sum",)}
"""Reduce ops that a backend does not have, or whose factor is not on record; they move as much."""


class Replay:
    """The replay of one rank."""

    def __init__(self, plan: dict[str, Any], folder: Path, backend: str, keeps_pace: bool) -> None:
        self._plan = plan
        self._folder = folder
        self._backend = backend
        self._keeps_pace = keeps_pace
        self._owed_s = 0.0
        self._groups: dict[int, Any] = {}
        self._works: dict[int, tuple[Any, list[Tensor], bool]] = {}
        self._free: dict[tuple[torch.dtype, tuple[int, ...]], list[Tensor]] = {}
        self._signatures = [json.loads(text) for text in plan["signatures"]]
        self._frames = [_frame_of(*text.split("\0")) for text in plan["sites"]]
        self._said: set[str] = set()

    def run(self) -> None:
        """All events; then what is still under way is waited for."""
        does: dict[str, Callable[..., None]] = {
            "init": self._init,
            "create": self._create,
            "call": self._call,
            "wait": self._wait,
        }
        for name, *arguments, gap_ns in self._plan["events"]:
            if self._keeps_pace:
                self._pass(gap_ns / 1e9)
            does[name](*arguments)
        for number in [*self._works]:
            self._wait(number)
        if self._plan["stays"]:
            # The recorded rank had not ended when the run was: until all have come here, or are
            # stopped, this one is alive and calls nothing.
            (self._folder / f"{self._plan['rank']}.at-the-end").touch()
            while len([*self._folder.glob("*.at-the-end")]) < self._plan["world_size"]:
                time.sleep(_LOOK_EVERY_S)
        if dist.is_initialized():
            dist.destroy_process_group()

    def _pass(self, gap_s: float) -> None:
        """Sleeps as long as the program took for something else; what a sleep was too long is made
        up."""
        wanted_s = gap_s - self._owed_s
        if wanted_s < _LEAST_SLEEP_S:
            self._owed_s = max(0.0, -wanted_s)
            return
        begin_s = time.monotonic()
        time.sleep(wanted_s)
        self._owed_s = time.monotonic() - begin_s - wanted_s

    # -- groups --------------------------------------------------------------------------------

    def _init(self, group: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        about = self._plan["groups"][group]
        dist.init_process_group(self._backend, **_timeout(about))
        self._groups[group] = dist.group.WORLD

    def _create(self, group: int | None, ranks: list[int], site: int | None, among: bool) -> None:
        """Makes the group, on all ranks or, `among`, on its own alone."""
        about = {} if group is None else self._plan["groups"][group]
        desc = about.get("desc")
        named = {"group_desc": desc} if desc and desc != "undefined" else {}
        options = {"backend": self._backend, **_timeout(about), **named}
        make = partial(dist.new_group, ranks, use_local_synchronization=among, **options)
        made = self._at(site)(make)
        if group is not None:
            self._groups[group] = made

    # -- calls ---------------------------------------------------------------------------------

    def _call(
        self, group: int, signature: int, site: int | None, number: int, blocks: bool, failed: bool
    ) -> None:
        row = self._signatures[signature]
        taken: list[Tensor] = []
        make = self._made(row, self._plan["groups"][group], self._groups[group], blocks, taken)
        try:
            work = self._at(site)(make)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if _is_finding(error) or not (failed or self._is_refusal(row[0], error)):
                raise
            work = None
        if work is None or blocks:
            self._give_back(taken)
        else:
            self._works[number] = (partial(self._at(site), work.wait), taken, failed)

    def _wait(self, number: int) -> None:
        wait, taken, failed = self._works.pop(number, (None, [], False))
        if wait is None:
            return
        try:
            wait()
        except RuntimeError as error:
            if _is_finding(error) or not failed:
                raise
        self._give_back(taken)

    def _is_refusal(self, op: str, error: Exception) -> bool:
        """Whether this backend has no such call; then all ranks are told so, and go on."""
        if isinstance(error, RuntimeError) and not _NOT_MADE.search(str(error)):
            return False
        words = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        self._say_once(op, f"{self._backend} does not make {op}, left out: {words}")
        return True

    def _say_once(self, about: str, sentence: str) -> None:
        """Prints a sentence once, by rank 0, for all do the same."""
        if about not in self._said:
            self._said.add(about)
            if self._plan["rank"] == 0:
                print(f"replay: {sentence}", flush=True)

    def _at(self, site: int | None) -> Callable[[Callable[[], Any]], Any]:
        return _plainly if site is None else self._frames[site]

    # -- one call ------------------------------------------------------------------------------

    def _made(
        self, row: _Row, about: dict[str, Any], group: Any, blocks: bool, taken: list[Tensor]
    ) -> Callable[[], Any]:
        """The call that this signature describes, with tensors of its own (added to `taken`)."""
        # The JSON of a signature leaves out trailing defaults.
        defaults: _Row = [None, [], [], "", None, [], [], None, 0, ""]
        fields: _Row = [*row, *defaults[len(row) :]]
        op, tensors, others, reduce_op, root, sends, receives, peer, tag, _ = fields
        given = [self._take(one, taken) for one in tensors]
        other = [self._take(one, taken) for one in others]
        waits = {"group": group, "async_op": not blocks}
        reducing = {"op": self._reduce_op(reduce_op)} if reduce_op else {}
        ranks, rank = about["ranks"], self._plan["rank"]
        match op:
            case "all_reduce":
                return partial(dist.all_reduce, given[0], **reducing, **waits)
            case "broadcast":
                return partial(dist.broadcast, given[0], root, **waits)
            case "reduce":
                return partial(dist.reduce, given[0], root, **reducing, **waits)
            case "all_gather":
                return partial(dist.all_gather, other, given[0], **waits)
            case "all_gather_into_tensor":
                return partial(dist.all_gather_into_tensor, other[0], given[0], **waits)
            case "gather":
                listed = other if rank == root else None
                return partial(dist.gather, given[0], listed, root, **waits)
            case "scatter":
                listed = other if rank == root else None
                return partial(dist.scatter, given[0], listed, root, **waits)
            case "reduce_scatter":
                return partial(dist.reduce_scatter, other[0], given, **reducing, **waits)
            case "reduce_scatter_tensor":
                return partial(dist.reduce_scatter_tensor, other[0], given[0], **reducing, **waits)
            case "all_to_all":
                return partial(dist.all_to_all, other, given, **waits)
            case "all_to_all_single":
                target, source, parts = _split(other[0], receives, given[0], sends)
                return partial(dist.all_to_all_single, target, source, *parts, **waits)
            case "barrier":
                return partial(dist.barrier, **waits)
            case "monitored_barrier":
                return partial(dist.monitored_barrier, group, **_timeout(about))
            case "send":
                send = dist.send if blocks else dist.isend
                return partial(send, given[0], peer, group=group, tag=tag)
            case "recv":
                recv = dist.recv if blocks else dist.irecv
                origin = None if peer is None or peer < 0 else peer
                return partial(recv, given[0], origin, group=group, tag=tag)
            case _:
                position = ranks.index(root) if root in ranks else 0
                return _of_group(op, given, other, group, reducing, position, blocks)

    def _take(self, described: _Row, taken: list[Tensor]) -> Tensor:
        """A tensor that no call under way uses."""
        name, shape = described
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"this torch has no dtype {name}")
        key = (dtype, tuple(shape))
        free = self._free.setdefault(key, [])
        tensor = free.pop() if free else torch.zeros(prod(shape), dtype=dtype).view(shape)
        taken.append(tensor)
        return tensor

    def _give_back(self, taken: list[Tensor]) -> None:
        for tensor in taken:
            self._free[tensor.dtype, tuple(tensor.shape)].append(tensor)

    def _reduce_op(self, name: str) -> Any:
        if name in _AS_SUM.get(self._backend, ()):
            self._say_once(name, f"{name} is made as sum on {self._backend}")
            name = "sum"
        return getattr(dist.ReduceOp, name.upper())


def _of_group(
    op: str,
    given: list[Tensor],
    other: list[Tensor],
    group: Any,
    reducing: dict[str, Any],
    root: int,
    blocks: bool,
) -> Callable[[], Any]:
    """Calls that torch.distributed makes on a group's own methods."""
    match op:
        case "all_reduce_coalesced":
            options: Any = dist.AllreduceCoalescedOptions()
            options.reduceOp = reducing.get("op", dist.ReduceOp.SUM)
            call = partial(group.allreduce_coalesced, given, options)
        case "all_gather_coalesced":
            size = max(len(other) // max(len(given), 1), 1)
            by_rank = [
                other[at : at + len(given)] for at in range(0, len(given) * size, len(given))
            ]
            call = partial(group.allgather_coalesced, by_rank, given)
        case "all_gather_into_tensor_coalesced":
            call = partial(group.allgather_into_tensor_coalesced, other, given)
        case "reduce_scatter_tensor_coalesced":
            options = dist.ReduceScatterOptions()
            options.reduceOp = reducing.get("op", dist.ReduceOp.SUM)
            call = partial(group.reduce_scatter_tensor_coalesced, other, given, options)
        case "gather_into_tensor":
            method = getattr(group, "gather_single", None) or group.gather_into_tensor
            options = dist.GatherOptions()
            options.rootRank = root
            call = partial(method, other[0] if other else None, given[0], options)
        case _:
            raise NotImplementedError(f"replay does not support {op}")
    return partial(_waited, call) if blocks else call


def _waited(call: Callable[[], Any]) -> None:
    work = call()
    if work is not None:
        work.wait()


def _split(
    target: Tensor, receives: list[int], source: Tensor, sends: list[int]
) -> tuple[Tensor, Tensor, tuple[list[int], list[int]]]:
    """Counts of elements as parts of the first dimension; where they are none, of flat tensors."""
    rows = [prod(one.shape[1:]) for one in (target, source)]
    fits = all(
        one.dim() and row and all(count % row == 0 for count in counts)
        for one, row, counts in zip((target, source), rows, (receives, sends), strict=True)
    )
    if not fits:
        return target.view(-1), source.view(-1), (receives, sends)
    parts = ([count // rows[0] for count in receives], [count // rows[1] for count in sends])
    return target, source, parts


def _timeout(about: dict[str, Any]) -> dict[str, Any]:
    seconds = about.get("timeout_s")
    return {} if not seconds else {"timeout": timedelta(seconds=seconds)}


def _frame_of(file: str, line: str, function: str) -> Callable[[Callable[[], Any]], Any]:
    """A function that calls what it is given, and that stands, in a traceback and for the layer,
    at this line."""
    code = _plainly.__code__.replace(
        co_filename=file, co_firstlineno=max(int(line) - 1, 0), co_name=function
    )
    return types.FunctionType(code, {})


def _plainly(make: Callable[[], Any]) -> Any:
    return make()


def _is_finding(error: BaseException) -> bool:
    """Whether the layer has raised what was found, which ends this rank."""
    return hasattr(error, "kind") and hasattr(error, "own")


def main() -> None:
    """Replay what this rank has to do."""
    folder, backend, pace = Path(sys.argv[1]), *sys.argv[2:4]
    warnings.simplefilter("ignore", FutureWarning)
    if backend in ("tcp", "mpi"):
        import distcore  # noqa: F401  (it registers them)
    rank = int(os.environ["RANK"])
    plan = json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
    Replay(plan, folder, backend, pace == "recorded").run()


if __name__ == "__main__":
    main()
