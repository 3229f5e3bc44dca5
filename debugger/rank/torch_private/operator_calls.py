"""torch's operators as they are called on one thread: what each reads and writes, and what is known
of memory.

A plan sees every operator and function from two places: below autograd, with plain tensors, and
where Python calls it, with whatever numbers it was given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from torch.nn import Parameter

from .probe import Private, WatchedPart, Wrapped, before, instead

_MODES = "torch.utils._python_dispatch"
OPERATOR_CALLS = WatchedPart(
    "reads_in_flight",
    "buffers that are read between an asynchronous call and its wait() are not noticed",
    Private(_MODES, "TorchDispatchMode.__torch_dispatch__", ("self", "func", "types", "args")),
    Private(_MODES, "TorchDispatchMode.supports_higher_order_operators"),
    Private(_MODES, "TorchDispatchMode._should_skip_dynamo", (), called=True),
    Private("torch._C", "_len_torch_dispatch_stack", (), called=True),
    Private("torch._C", "_get_schema"),
)
SAVING = WatchedPart(
    "reads_of_saving",
    "buffers that are saved between an asynchronous call and its wait() are not noticed",
    Private("torch._C", "PyTorchFileWriter.write_record"),
)
_OF_METADATA = frozenset({"is_pinned", "record_stream", "set_"})
"""Operators that look at no element of the tensors that they are given; and those that make another
one like it, which `_looks_at_metadata` knows by their names."""
_IN_PART = ("diag", "embedding", "gather", "index", "masked_", "put", "scatter", "take", "trace")
"""The beginnings of the names of operators that may look at some elements of their first argument
alone."""

Look = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class Unnoticed:
    """Mixed into a mode of ours: torch and the compiler go on as without it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, the first operator would load the compiler. It leaves us alone."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile works below the mode, too."""
        return True


def calls_with(look: Look, made: Callable[[Any, Any], None] | None = None) -> Any:
    """A mode, for one thread: while it is entered, `look(operator, args, kwargs)` comes before each
    operator, and `made(operator, result)` after it. None where torch cannot."""
    return _mode_class()(look, made) if OPERATOR_CALLS.works else None


@functools.cache
def on_reads_past_operators(
    look: Callable[[Any, bool], None], gave: Callable[[Any, Any], None]
) -> None:
    """From now on `look(what, whole)` comes before what reads a tensor or a storage without an
    operator that a mode sees: to make a list of it, to print it (a large one in part), for which
    torch leaves all modes, and to save it. `gave(tensor, other)` comes after a tensor has given its
    memory to numpy, or to another library."""

    def giving(original: Wrapped, self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("copy") is True:  # numpy.array(tensor): asked once more without, if refused
            look(self, True)
        given = original(self, *args, **kwargs)
        gave(self, given)
        return given

    before(torch.Tensor, "tolist", lambda one, *_, **__: look(one, True))
    before(torch.Tensor, "__repr__", lambda one, *_, **__: look(one, False))
    before(torch.UntypedStorage, "__getitem__", lambda one, *_, **__: look(one, False))
    for name in ("numpy", "__array__", "__dlpack__"):
        instead(torch.Tensor, name, giving)
    if SAVING.works:
        private: Any = torch._C
        writer = private.PyTorchFileWriter
        before(writer, "write_record", lambda _, _name="", data=None, *__: look(data, False))


def depth() -> int:
    """Returns how many such modes this thread is in, the program's own counted."""
    private: Any = torch._C
    return int(private._len_torch_dispatch_stack())


@functools.cache
def _mode_class() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode

    class Calls(Unnoticed, base):  # type: ignore[misc]
        def __init__(self, look: Look, made: Callable[[Any, Any], None] | None) -> None:
            super().__init__()
            self._look, self._made = look, made

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            self._look(func, args, given)
            result = func(*args, **given)
            if self._made is not None:
                self._made(func, result)
            return result

    return Calls


def accesses(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, str, bool]]:
    """The arguments at whose elements this call looks, where they are tensors or hold some: each
    with "read" or "written", and whether that is each element."""
    if getattr(operator, "namespace", "") != "aten":
        return  # of communication, or made by somebody else
    parameters = accesses_of(operator)
    if parameters is None:
        return
    in_part = operator.name().removeprefix("aten::").lstrip("_").startswith(_IN_PART)
    for place, (name, how) in enumerate(parameters):
        given = args[place] if place < len(args) else kwargs.get(name)
        if given is not None:
            yield given, how, bool(place) or not in_part


@functools.cache
def accesses_of(operator: Any) -> tuple[tuple[str, str], ...] | None:
    """By place, each parameter's name, and what the operator does to the elements of what it is
    given; None for an operator that looks at none: one that makes a view, or one of metadata."""
    name, _, overload = str(operator.name()).partition(".")
    if _looks_at_metadata(name.removeprefix("aten::")):
        return None
    private: Any = torch._C
    schema = private._get_schema(name, overload)
    results = [one.alias_info for one in schema.returns]
    if results and all(one is not None and not one.is_write for one in results):
        return None  # views
    return tuple(
        (one.name, "written" if one.alias_info is not None and one.alias_info.is_write else "read")
        for one in schema.arguments
    )


def _looks_at_metadata(name: str) -> bool:
    return name in _OF_METADATA or name.endswith("_like") or name.startswith("new_")


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


# A weak reference keeps the address of a storage from being given to another one. Torch has no
# types for it.
WeakStorage: Any = reductions.StorageWeakRef
STORAGES = WatchedPart(
    "weak_storages", "a plan follows no values", Private("torch", "UntypedStorage._cdata")
)
_SWEEP_AT = 4096

Mark = TypeVar("Mark")


def storage_address(tensor: Tensor) -> int:
    """Returns what tells a tensor's storage from others that there are; 0 where it has none."""
    try:
        storage: Any = tensor.untyped_storage()
        return int(storage._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


class MarkedStorages(Generic[Mark]):
    """A mark for each of some storages of this process. Views of a tensor share its storage."""

    def __init__(self) -> None:
        self._marked: dict[int, tuple[Any, Mark]] = {}
        self._sweep_at = _SWEEP_AT

    def __bool__(self) -> bool:
        return bool(self._marked)

    def of(self, tensor: Tensor) -> Mark | None:
        """Returns the mark of the memory of this tensor."""
        found = self._marked.get(storage_address(tensor))
        return None if found is None else found[1]

    def put(self, tensor: Tensor, mark: Mark) -> None:
        """Marks the memory of a tensor."""
        address = storage_address(tensor)
        if not address:
            return
        kept = self._marked.get(address)
        if kept is not None:
            if kept[1] != mark:
                self._marked[address] = (kept[0], mark)
            return
        if len(self._marked) >= self._sweep_at:
            self._marked = {at: one for at, one in self._marked.items() if not one[0].expired()}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._marked))
        self._marked[address] = (WeakStorage(tensor.untyped_storage()), mark)

    def drop(self, tensor: Tensor) -> None:
        """Takes the mark away."""
        self._marked.pop(storage_address(tensor), None)

    def alive(self) -> Iterator[Mark]:
        """The marks of those that there still are."""
        return (mark for reference, mark in self._marked.values() if not reference.expired())
