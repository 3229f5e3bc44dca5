"""Probes of torch's private names: what the watching needs is found out, not assumed, part by part.

Each part of the watching lists the private names that it uses, with what is known of them. Where a
release does not have one, or has something else by that name, the part stays off: torch is left as
it is, one sentence says what is not watched and why, and the program runs on. The tables are also
what `tests/ranks/debugger/test_future_torch.py` takes names away by.

Known are torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed
import torch.distributed.distributed_c10d

from distcore.base.wrapping import around

dist: Any = torch.distributed
c10d: Any = torch.distributed.distributed_c10d

Wrapped = Callable[..., Any]


C10D = "torch.distributed.distributed_c10d"
DIST = "torch.distributed"

Function = TypeVar("Function", bound=Callable[..., Any])
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Private:
    """A private name of torch's, as the releases that were tried have it.

    `path` leads to it from the module: "_world.pg_map". `takes`: the names of its first parameters,
    which the caller or the wrapper relies on; None where it is not called, or does not tell them.
    `called`: whether this package calls it, so that it must need no other argument. `kind`: what
    it is an instance of.
    """

    module: str
    path: str
    takes: tuple[str, ...] | None = None
    called: bool = False
    kind: type | None = None

    def __post_init__(self) -> None:
        if self.module in sys.modules:
            kept_module(self.module)

    @property
    def shown(self) -> str:
        """`distributed_c10d._world.pg_map`."""
        return f"{self.module.rpartition('.')[2]}.{self.path}"

    def find(self) -> Any:
        """Returns what torch has by that name. Raises AttributeError and ImportError."""
        found: Any = kept_module(self.module)
        for name in self.path.split("."):
            found = getattr(found, name)
        return found

    def unlike(self) -> str:
        """Tells what is not as known, as a part of a sentence; "" where all is."""
        version = f"torch {torch.__version__}"
        try:
            found = self.find()
        except (AttributeError, ImportError):
            return f"{version} has no {self.shown}"
        except Exception as error:
            return f"{self.shown} of {version} cannot be read ({type(error).__name__})"
        if self.kind is not None and not isinstance(found, self.kind):
            return f"{self.shown} of {version} is no {self.kind.__name__}"
        if self.takes is None:
            return ""
        if not callable(found):
            return f"{self.shown} of {version} cannot be called"
        parameters = _parameters(found)
        if parameters is None:
            return ""
        if tuple(parameters)[: len(self.takes)] != self.takes:
            return f"{self.shown} of {version} takes other arguments ({', '.join(parameters)})"
        more = [name for name, needed in parameters.items() if needed and name not in self.takes]
        if more and self.called:
            return f"{self.shown} of {version} needs more arguments ({', '.join(more)})"
        return ""


@functools.cache
def kept_module(name: str) -> Any:
    """The module, kept from the time when the layer was loaded. Raises ImportError.

    A program may have dropped torch's modules from `sys.modules` when a part is first asked for, as
    what reloads plugins does: torch would be imported again, register its types a second time, and
    the process would abort at its end.
    """
    if sys.modules.get(DIST) is not torch.distributed:
        raise ImportError(f"the program has dropped {DIST} from sys.modules")
    return import_module(name)


def _parameters(function: Any) -> dict[str, bool] | None:
    """The names of the parameters, and whether each must be given; None where nobody can tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return _of_documentation(function)
    if any(one.kind is one.VAR_POSITIONAL for one in found):
        return None
    return {one.name: one.default is one.empty for one in found if one.kind is not one.VAR_KEYWORD}


def _of_documentation(function: Any) -> dict[str, bool] | None:
    """The same from the first line that pybind11 writes: `name(self: A, x: B[C, D] = E) -> F`."""
    name = getattr(function, "__name__", "")
    line = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    if not name or not line.startswith(f"{name}(") or "*args" in line:
        return None
    inside, depth, start = [], 0, len(name) + 1
    for at, letter in enumerate(line[start:], start):
        depth += (letter in "([{<") - (letter in ")]}>" and line[at - 1] != "-")
        if depth < 0 or (letter == "," and not depth):
            inside.append(line[start:at])
            start = at + 1
        if depth < 0:
            break
    parameters = [part.strip() for part in inside if part.strip()]
    return {part.partition(":")[0]: " = " not in part for part in parameters}


class Registry:
    """Every part, each with its private names, and who hears of those that are off. A part is
    looked at when it is first asked for, which may be before the layer is there."""

    def __init__(self) -> None:
        self.parts: list[WatchedPart] = []
        self.tell: Callable[[WatchedPart], None] = lambda _: None

    def on_off(self, listener: Callable[[WatchedPart], None]) -> None:
        """`listener(part)` hears of each part that is off, also of those that were found before."""
        self.tell = listener
        for part in self.parts:
            if part.why:
                listener(part)


REGISTRY = Registry()


class WatchedPart:
    """A part of the watching that needs private names: on where all are as known, else off."""

    def __init__(self, name: str, lost: str, *needs: Private, gaps: bool = False) -> None:
        """`name` is the part's in a report. `lost` says what is not watched without it. `gaps`:
        whether the record of calls is incomplete then, so that nothing follows from its gaps."""
        self.name = name
        self.lost = lost
        self.needs = needs
        self.gaps = gaps
        self._why: str | None = None
        REGISTRY.parts.append(self)

    @property
    def works(self) -> bool:
        """Whether it is on. It is looked at once, when it is first asked for."""
        if self._why is None:
            self._why = next(filter(None, (one.unlike() for one in self.needs)), "")
            if self._why:
                REGISTRY.tell(self)
        return not self._why

    @property
    def why(self) -> str:
        """Why it is off; "" while it is on."""
        return self._why or ""

    def switch_off(self, why: str) -> None:
        """Switches the part off, which has turned out not to work."""
        if not self._why:
            self._why = why
            REGISTRY.tell(self)

    def __call__(self, function: Function) -> Function:
        """A decorator: the function does nothing, and returns None, where the part is off."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.works else None

        return guarded  # type: ignore[return-value]


def private(path: str, takes: Sequence[str] | None = None, **more: Any) -> Private:
    """A private name of `torch.distributed.distributed_c10d`."""
    return Private(C10D, path, None if takes is None else tuple(takes), **more)


def patch(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Replace `owner.name` by `make(original)`; re-exports of it in torch.distributed follow.
    Returns what takes that back.

    To others it is what it was: its signature, its name, and what pickle finds by that name.
    """
    original = getattr(owner, name, None)
    if original is None:
        return lambda: None
    replacement = around(original)(make(original))
    owners = [owner, *([dist] if owner is c10d and getattr(dist, name, None) is original else [])]
    for one in owners:
        setattr(one, name, replacement)
    if inspect.ismodule(owner):
        home = sys.modules.get(str(getattr(original, "__module__", "")))
        if getattr(home, name, _MISSING) is not replacement:
            replacement.__module__, replacement.__qualname__ = owner.__name__, name

    def take_back() -> None:
        for one in owners:
            setattr(one, name, original)

    return take_back


def instead(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Have `call(original, *args, **kwargs)` made in the place of each call of `owner.name`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        around(original)(call)  # its frame does not count either

        def replaced(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return call(original, *args, **kwargs)

        return replaced

    patch(owner, name, make)


def before(owner: Any, name: str, hear: Callable[..., object]) -> Callable[[], None]:
    """Have `hear` called with the same arguments before each call of `owner.name`. Returns what
    takes that back."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            hear(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    return patch(owner, name, make)


def after(owner: Any, name: str, hear: Callable[..., object]) -> None:
    """Have `hear` called with the result and the arguments of each call of `owner.name`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            hear(result, *args, **kwargs)
            return result

        return call

    patch(owner, name, make)


def within(
    owner: Any, name: str, watch: Callable[..., contextlib.AbstractContextManager[object]]
) -> None:
    """Have each call of `owner.name` made within what `watch` returns for its arguments."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with watch(*args, **kwargs):
                return original(*args, **kwargs)

        return call

    patch(owner, name, make)


STORE_ARGUMENTS = (
    "host_name",
    "port",
    "world_size",
    "is_master",
    "timeout",
    "wait_for_workers",
    "multi_tenant",
    "master_listen_fd",
    "use_libuv",
)


def without_prefixes(store: Any) -> Any:
    """Returns the store behind the prefixes that stand before it."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
