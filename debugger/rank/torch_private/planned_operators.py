"""Every operator and function of torch that a thread calls, seen from two places: below autograd,
with plain tensors, and where Python calls it, with whatever numbers it was given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .modules import Wrapped
from .operator_calls import Unnoticed, accesses_of
from .probe import Part, Private, patch

BELOW_OTHERS = Part(
    "planned_late_watching",
    "a plan follows all operators from the start of a rank, which takes twice the time",
    Private("torch._C", "_len_torch_function_stack", (), called=True),
    Private("torch._C", "_pop_torch_function_stack", (), called=True),
    Private("torch._C", "_push_on_torch_function_stack"),
    Private("torch._C", "_len_torch_dispatch_stack", (), called=True),
    Private("torch._C", "_pop_torch_dispatch_stack"),
    Private("torch._C", "_push_on_torch_dispatch_stack"),
    Private("torch.autograd.graph", "_engine_run_backward"),
)

_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
_PLAIN = (Tensor, Parameter)
OVERWRITES = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
    | {"cauchy_", "geometric_", "log_normal_", "eye_", "_foreach_copy_", "_foreach_zero_"}
)
"""Operators whose first argument keeps nothing of what it held."""

Call = Callable[[], Any]


class Watching:
    """What a thread's operators are told to. The methods make the call by `call()`."""

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
        """An operator on plain tensors."""
        raise NotImplementedError

    def communication(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> Any:
        """One that makes a call of a group."""
        raise NotImplementedError

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function as Python calls it."""
        raise NotImplementedError


@functools.cache
def _classes() -> tuple[Any, Any]:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    dispatch_base: Any = TorchDispatchMode
    function_base: Any = TorchFunctionMode

    class Operators(Unnoticed, dispatch_base):  # type: ignore[misc]
        def __init__(self, watching: Watching) -> None:
            super().__init__()
            self._watching = watching

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True
            given = kwargs or {}
            if types and not all(one in _PLAIN for one in types):
                if any(issubclass(one, FakeTensor) for one in types):
                    return func(*args, **given)  # which has no values
                return NotImplemented  # a subclass first makes its own calls of it
            call = functools.partial(func, *args, **given)
            if getattr(func, "namespace", "") in _COMMUNICATION:
                return self._watching.communication(func, args, given, call)
            return self._watching.operator(func, args, given, call)

    class Functions(function_base):  # type: ignore[misc]
        def __init__(self, watching: Watching) -> None:
            super().__init__()
            self._watching = watching

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True
            del types
            return self._watching.function(func, args, kwargs or {})

    return Operators, Functions


def watch_thread(watching: Watching) -> None:
    """From now on, until it ends, the calls of this thread are told: below the modes that the
    program is in, each of which it leaves in its turn."""
    operators, functions = _classes()
    if not BELOW_OTHERS.works:
        operators(watching).__enter__()
        functions(watching).__enter__()
        return
    private: Any = torch._C
    _put_below(
        operators(watching),
        private._len_torch_dispatch_stack(),
        lambda: private._pop_torch_dispatch_stack(None),
        private._push_on_torch_dispatch_stack,
    )
    _put_below(
        functions(watching),
        private._len_torch_function_stack(),
        private._pop_torch_function_stack,
        private._push_on_torch_function_stack,
    )


def _put_below(mode: Any, depth: int, pop: Callable[[], Any], push: Callable[[Any], None]) -> None:
    above = [pop() for _ in range(depth)]
    mode.__enter__()
    for one in reversed(above):
        push(one)


def before_backward(begin: Callable[[], None]) -> None:
    """`begin` is called before each backward pass: what a thread enters within one it has left
    again when that ends."""
    import torch.autograd
    import torch.autograd.graph

    def backward(original: Wrapped) -> Wrapped:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin()
            return original(*args, **kwargs)

        return run

    for module in (torch.autograd, torch.autograd.graph):
        patch(module, "_engine_run_backward", backward)


def tensors_of(given: Any) -> Iterator[Tensor]:
    """The tensors in arguments, or in results."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from tensors_of(one)
    elif isinstance(given, dict):
        yield from tensors_of(list(given.values()))


def looks_at_elements(operator: Any) -> bool:
    """Whether what an operator gives depends on the elements that it is given: not so of views, and
    of what only has another's shape."""
    return accesses_of(operator) is not None


def written_by(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among its arguments that an operator writes."""
    for place, (name, how) in enumerate(accesses_of(operator) or ()):
        if how == "written":
            yield from tensors_of(args[place] if place < len(args) else kwargs.get(name))


def overwritten_by(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Tensor]:
    """Those of which nothing of what they held is left: of an operator that puts its result
    elsewhere, as the overload says, and of one that fills."""
    name, _, overload = str(operator.name()).removeprefix("aten::").partition(".")
    if name in OVERWRITES:
        yield from tensors_of(args[:1])
    elif overload == "out" or overload.endswith("_out") or "out" in kwargs:
        yield from written_by(operator, args, kwargs)
