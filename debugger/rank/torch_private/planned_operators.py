"""Every operator and function of torch that a thread calls, seen from two places: below autograd,
with plain tensors, and where Python calls it, with whatever numbers it was given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .operator_calls import Unnoticed, accesses_of
from .probe import Private, WatchedPart, before

BELOW_OTHERS = WatchedPart(
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


@functools.cache
def _classes() -> tuple[Any, Any]:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    dispatch_base: Any = TorchDispatchMode
    function_base: Any = TorchFunctionMode

    class Operators(Unnoticed, dispatch_base):  # type: ignore[misc]
        def __init__(self, watching: Any) -> None:
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
        def __init__(self, watching: Any) -> None:
            super().__init__()
            self._watching = watching

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True
            del types
            return self._watching.function(func, args, kwargs or {})

    return Operators, Functions


def watch_thread(watching: Any) -> None:
    """From now on, until it ends, the calls of this thread are told: below the modes that the
    program is in, each of which it leaves in its turn.

    `watching.operator(func, args, kwargs, call)` has operators on plain tensors, `communication`
    with the same arguments those that make a call of a group, `function(func, args, kwargs)`
    functions as Python calls them; each makes the call."""
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

    for module in (torch.autograd, torch.autograd.graph):
        before(module, "_engine_run_backward", lambda *_, **__: begin())


def tensors_of(given: Any) -> list[Tensor]:
    """The tensors in arguments, or in results."""
    found: list[Tensor] = []
    _collect(given, found)
    return found


def _collect(given: Any, found: list[Tensor]) -> None:
    for one in given if isinstance(given, list | tuple) else (given,):
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            _collect(one, found)
        elif isinstance(one, dict):
            _collect(list(one.values()), found)


class Operator:
    """An operator of torch, as far as it is known: asked for at each of its calls."""

    def __init__(self, given: Any) -> None:
        packet = getattr(given, "overloadpacket", None)
        # Others, such as `cond`, do not say what they do to their arguments.
        accesses = () if packet is None else accesses_of(given)
        tags = getattr(given, "tags", ())
        overload = str(given.name()).partition(".")[2]
        self.given = given
        self.text = str(given)
        self.name = self.text if packet is None else str(packet.__name__)
        self.gives_number = torch.Tag.data_dependent_output in tags
        self.shapes = torch.Tag.dynamic_output_shape in tags
        """Whether its result has a shape that depends on elements."""
        self.is_seeded = torch.Tag.nondeterministic_seeded in tags
        self.overwrites = self.name in OVERWRITES
        """Whether its first argument keeps nothing of what it held."""
        self.puts = overload == "out" or overload.endswith("_out")
        """Whether it puts its result elsewhere."""
        self.written: tuple[tuple[int, str], ...] | None = None
        """Place and name of each parameter that it writes; None where it looks at no elements: that
        is so of views, and of what only has another's shape."""
        if accesses is not None:
            places = enumerate(accesses)
            self.written = tuple((at, name) for at, (name, how) in places if how == "written")

    def written_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors among its arguments that it writes."""
        found: list[Tensor] = []
        for place, name in self.written or ():
            _collect(args[place] if place < len(args) else kwargs.get(name), found)
        return found

    def overwritten_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Returns the tensors of which nothing of what they held is left."""
        if self.overwrites:
            return tensors_of(args[:1])
        return self.written_in(args, kwargs) if self.puts or "out" in kwargs else []


_operators: dict[int, Operator] = {}


def operator_of(given: Any) -> Operator:
    """By its address, which it keeps: what torch hashes an operator by takes longer."""
    found = _operators.get(id(given))
    if found is None:
        found = _operators[id(given)] = Operator(given)
    return found
