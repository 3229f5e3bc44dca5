"""The needs of a group that is written in Python where one of ours stands in front of it.

It may look itself up in torch's registries: its name, its ranks, its rank. The program may read and
set attributes of it. Ranks that are threads, and groups that torch does not register, are left
alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ...hook.loading import when_imported
from .modules import c10d
from .probe import before

_REGISTRIES = (
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_pg_to_tag",
)
_OUTER = "_distdebug_outer"
_own_world = type(getattr(c10d, "_world", None))


def has_threads_for_ranks() -> bool:
    """Whether torch's world is one a thread, as torch's own tests have it: no process is a rank."""
    return type(getattr(c10d, "_world", None)) is not _own_world


def on_unregistered_groups(note: Callable[[], None]) -> None:
    """`note()` is called when `torch.distributed._dist2` makes a group: it comes past the function
    that makes all others, and no registry has it."""

    def observe(module: Any) -> None:
        before(module, "new_group", lambda *_, **__: note())

    when_imported("torch.distributed._dist2", observe)


def answer_for(inner: Any, outer: Any) -> None:
    """From now on who asks for `inner` is told of `outer`, for as long as that is registered."""
    if type(inner).__module__.startswith(("distcore.", "torch._C.")):
        return  # these do not ask
    for name in _REGISTRIES:
        registry = getattr(c10d, name, None)
        if type(registry) is dict:
            setattr(c10d, name, _Registry(registry))
    setattr(inner, _OUTER, weakref.ref(outer))


class _Registry(dict[Any, Any]):
    """By group. It holds, counts and iterates over what torch has put into it, and no more."""

    def __missing__(self, key: Any) -> Any:
        outer = _outer_of(key)
        if outer is None or not dict.__contains__(self, outer):
            raise KeyError(key)
        return self[outer]

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        outer = _outer_of(key)
        return outer is not None and dict.__contains__(self, outer)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


def _outer_of(key: Any) -> Any:
    outer = getattr(key, _OUTER, None)
    return None if outer is None else outer()


def attributes(ours: Iterable[type]) -> dict[str, Any]:
    """Methods by which all attributes are the inner group's, but for those that the classes `ours`
    declare."""
    kept = {name for base in ours for name in vars(base).get("__annotations__", ())}

    def get(self: Any, name: str) -> Any:
        if name in kept:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def set_(self: Any, name: str, value: Any) -> None:
        if name in kept:
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    return {"__getattr__": get, "__setattr__": set_}
