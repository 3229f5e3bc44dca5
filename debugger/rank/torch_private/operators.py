"""torch's operators that ask the backend below a group, and so pass by the one in front of it.

Those for compiled code (`PASS_BY`) are served by distcore's kernels for its own groups. Those of
torch.ops.c10d are given a group in its box. Only who holds such a box calls them so, but every call
of torch.distributed's comes through them as well, behind the group in front: so they are torch's
own until the box of a group in front is asked for, and cost nothing as long.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from distcore.groups.operators import open_operators_to

from ...record.ops import OF_METHOD
from .groups import FrontGroup, is_python_group
from .operator_calls import tensors_of
from .probe import DIST, Private, WatchedPart, c10d, dist, private

PASS_BY = ("all_gather_into_tensor_out",)
OPERATORS = WatchedPart(
    "operators",
    f"calls of torch.ops._c10d_functional.{', '.join(PASS_BY)} are not recorded",
    private("_resolve_process_group"),
    Private("torch._C._distributed_c10d", "_register_work", ("tensor", "work"), called=True),
    Private("torch._C", "DispatchKeySet"),
    Private("torch._C", "DispatchKey.CompositeExplicitAutograd"),
)
"""All that were tried have these; where a later torch does not, its own kernel asks the group."""


def record_operators() -> None:
    """From now on these operators reach groups in front; again it changes nothing.

    inductor's planning of memory emits `all_gather_into_tensor_out`. All other groups are served by
    torch's own kernel, as before; from 2.15 on that asks groups in Python, too.
    """
    if OPERATORS.works:
        try:
            open_operators_to(_is_front, PASS_BY)
        except Exception as error:
            OPERATORS.switch_off(f"putting a kernel before torch's failed: {error!r}")


def _is_front(group: Any) -> bool:
    return isinstance(group, FrontGroup)


BOXED = WatchedPart(
    "boxed_groups",
    "calls of torch.ops.c10d are not recorded",
    Private(DIST, "ProcessGroup.boxed", ("self",), called=True),
    Private(DIST, "ProcessGroup.unbox"),
    Private(DIST, "Work.boxed", ("self",), called=True),
    Private("torch._C", "DispatchKey.BackendSelect"),
    Private("torch._C", "_dispatch_keys"),
    Private("torch._C", "_dispatch_keyset_full_after"),
    Private("torch._C", "_get_schema"),
    gaps=True,
)
_BEFORE_BACKENDS = "BackendSelect"
"""The dispatcher's key under which torch looks for the right device: every call comes by there,
and torch has nothing there for these operators, since their tensors tell."""
METHODS = {
    operator: (method, row.options)
    for method, row in OF_METHOD.items()
    for operator in (method, f"{method.replace('anysource', 'any_source')}_")
}
"""By operator, which has the name of a method or that with an underscore behind it: the method of a
group that is the same, and the class of its options."""
_OPTIONS = {
    "async_op": "asyncOp",
    "device_ids": "device_ids",
    "reduce_op": "reduceOp",
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
}
_PREMUL_SUM = int(dist.ReduceOp.RedOpType.PREMUL_SUM.value)
_MOST_HANDLES = 10_000

_handles: deque[Any] = deque(maxlen=_MOST_HANDLES)
"""Handles in Python, which their boxes do not keep."""


class _OtherFormError(Exception):
    """An argument that a method of a group in Python cannot be given."""


def record_boxed_groups() -> None:
    """Makes calls with the box of a group in front reach that group."""
    if BOXED.works:
        try:
            _open()
        except Exception as error:
            BOXED.switch_off(f"putting kernels before torch's failed: {error!r}")


@functools.cache
def _open() -> Any:
    made: Any = torch.library.Library
    library = made("c10d", "IMPL")
    for name in METHODS:
        operator = getattr(torch.ops.c10d, name, None)
        if operator is not None:  # else of another release
            library.impl(name, _kernel(name, operator.default), _BEFORE_BACKENDS)
    return library


def _kernel(name: str, overload: Any) -> Callable[..., Any]:
    private: Any = torch._C
    below = private._dispatch_keyset_full_after(private.DispatchKey.BackendSelect)
    schema = private._get_schema(f"c10d::{name}", "")
    parameters = [one.name for one in schema.arguments]
    defaults = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    place = parameters.index("process_group")
    results = len(schema.returns)

    def serve(*args: Any, **kwargs: Any) -> Any:
        group: Any = dist.ProcessGroup.unbox(args[place])
        if isinstance(group, FrontGroup) and not is_python_group(group._inner):
            given = {**defaults, **dict(zip(parameters, args, strict=False)), **kwargs}
            try:
                call = _call(name, given, parameters[:place])
            except _OtherFormError as error:
                BOXED.switch_off(f"{error} is not known to groups in Python")
            else:
                work = call(group)
                if not results:
                    return None
                if type(work) is not dist.Work:
                    _handles.append(work)
                box = work.boxed()
                return box if results == 1 else (args[0], box)
        # Without the GIL, unlike what `torch.library.get_kernel` gives: gloo's threads may need it.
        keys = private._dispatch_keys(tensors_of(args)[0])
        return overload.redispatch(keys & below, *args, **kwargs)

    return serve


def _call(name: str, given: dict[str, Any], tensors: list[str]) -> Callable[[Any], Any]:
    """Returns the call as a method of a group."""
    method, class_name = METHODS[name]
    if given.get("sparse_indices") is not None:
        raise _OtherFormError("sparse_indices")
    # From their own words, in the order in which methods take them.
    more = [given[one] for one in ("output_split_sizes", "input_split_sizes") if one in given]
    more += [given[one] for one in ("dst", "src", "tag") if one in given]
    timeout = timedelta(milliseconds=given["timeout"]) if given.get("timeout", -1) >= 0 else None
    if name == "monitored_barrier_":
        return lambda group: group.monitored_barrier(timeout, given["wait_all_ranks"])
    own = [] if name == "barrier" else [given[one] for one in tensors]
    if not class_name:
        return lambda group: getattr(group, method)(*own, *more)
    options = getattr(c10d, class_name)()
    for word, attribute in _OPTIONS.items():
        if word in given and hasattr(options, attribute):
            value = _reduce_op(given[word]) if word == "reduce_op" else given[word]
            setattr(options, attribute, value)
    if timeout is not None:
        options.timeout = timeout
    return lambda group: getattr(group, method)(*own, *more, options)


def _reduce_op(box: Any) -> Any:
    unbox = getattr(dist.ReduceOp, "unbox", None)  # from 2.14 on
    if unbox is not None:
        return unbox(box)
    kind = int(box.op())
    if kind == _PREMUL_SUM:
        raise _OtherFormError("the factor of PREMUL_SUM")
    return dist.ReduceOp(dist.ReduceOp.RedOpType(kind))
