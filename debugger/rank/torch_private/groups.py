"""Hooks where torch creates, names and drops groups, and a way to put one in front of another.

A group that is written in Python, and has one of ours in front, may look itself up in torch's
registries: its name, its ranks, its rank. The program may read and set attributes of it. Ranks that
are threads, and groups that torch does not register, are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch

from ...hook.loading import when_imported
from ...record.wording import by_device
from .probe import Private, WatchedPart, Wrapped, before, c10d, instead, private

_BY_GROUP = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag")
"""The tables of torch's world that have a group as a key."""
_HELPER_ARGUMENTS = (
    "group_size",
    "group_rank",
    "global_ranks_in_group",
    "backend",
    "store",
    "group_name",
)
_OUTER = "_distdebug_outer"
_own_world = type(getattr(c10d, "_world", None))


class FrontGroup(c10d.ProcessGroup):  # type: ignore[misc]
    """A group in front of another one, which torch made."""

    __slots__ = ()

    _inner: Any
    _record: Any
    """Its `record.recorder.GroupRecord`."""


STORE = WatchedPart(
    "default_store",
    "a rank cannot be held until another one comes to a call",
    private("_get_default_store", ()),
)


@STORE
def default_store() -> Any:
    """The store in which the ranks of the default group have met; None without one."""
    try:
        return c10d._get_default_store()
    except (ValueError, RuntimeError):
        return None


def has_threads_for_ranks() -> bool:
    """Whether torch's world is one a thread, as torch's own tests have it: no process is a rank."""
    return type(getattr(c10d, "_world", None)) is not _own_world


def on_unregistered_groups(note: Callable[[], None]) -> None:
    """`note()` is called when `torch.distributed._dist2` makes a group: it comes past the function
    that makes all others, and no registry has it."""
    when_imported(
        "torch.distributed._dist2",
        lambda module: before(module, "new_group", lambda *_, **__: note()),
    )


def answer_for(inner: Any, outer: Any) -> None:
    """From now on who asks for `inner` is told of `outer`, for as long as that is registered."""
    if type(inner).__module__.startswith(("distcore.", "torch._C.")):
        return  # these do not ask
    for name in _BY_GROUP:
        registry = getattr(c10d, f"_{name}", None)
        if type(registry) is dict:
            setattr(c10d, f"_{name}", _Registry(registry))
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


CREATION = WatchedPart(
    "groups",
    "process groups are not observed, and none of their calls is recorded",
    private("_new_process_group_helper", _HELPER_ARGUMENTS),
    private("_register_process_group", ("group_name", "group"), called=True),
    private("_unregister_process_group", ("group_name",), called=True),
    *(
        private(f"_world.{name}", kind=dict)
        for name in (*_BY_GROUP, "pg_coalesce_state", "tags_to_pg")
    ),
    private("ProcessGroup._device_types"),
    private("ProcessGroup._get_backend", ("self", "device"), called=True),
    private("ProcessGroup._register_backend", ("self", "device", "backend_type", "backend")),
    private("ProcessGroup._set_default_backend", ("self", "backend_type"), called=True),
    private("ProcessGroup._set_group_name", ("self",)),
    private("ProcessGroup._set_group_desc", ("self",)),
    private("Backend.backend_type_map", kind=dict),
    private("BackendConfig.get_device_backend_map", ("self",), called=True),
    gaps=True,
)
TIMEOUTS = WatchedPart(
    "timeouts",
    "timeouts that the program changes while it runs are not known",
    private("_set_pg_timeout", ("timeout", "group")),
)
DURATIONS = WatchedPart(
    "durations",
    "how long NCCL was busy with a call is not known",
    private("ProcessGroup._enable_collectives_timing", ("self",), called=True),
    Private("torch.distributed", "Work._get_duration", ("self",), called=True),
)


@CREATION
def on_group_creation(create: Callable[..., Any]) -> None:
    """Have `create(original, *args, **kwargs)` called in the place of the function through which
    init_process_group and new_group create every group."""
    instead(c10d, "_new_process_group_helper", create)


def creation_was_not_seen() -> None:
    """A group was made, and what `on_group_creation` has wrapped was not called."""
    CREATION.switch_off(f"torch {torch.__version__} makes groups without {CREATION.needs[0].shown}")


def helper_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a group creation by name."""
    return {**dict(zip(_HELPER_ARGUMENTS, args, strict=False)), **kwargs}


def is_hashed_name(group_name: str) -> bool:
    """Whether a group was named after its ranks, so that only its members create it."""
    return not group_name.isdigit()


def replace_group(inner: Any, outer: Any) -> None:
    """Put `outer` in place of `inner` in torch's registries; or in none of them, and raise."""
    try:
        _exchange(inner, outer)
        world = c10d._world
        if any(inner in registry for registry in _registries()) or not (
            outer in world.pg_map and outer in world.pg_names
        ):
            raise LookupError("torch's registries did not take the group")
    except BaseException:
        with contextlib.suppress(Exception):
            _exchange(outer, inner)
        raise
    if is_python_group(inner):
        answer_for(inner, outer)


def _exchange(inner: Any, outer: Any) -> None:
    world = c10d._world
    for registry in _registries():
        if inner in registry:
            registry[outer] = registry.pop(inner)
    for groups in world.tags_to_pg.values():
        for index, group in enumerate(groups):
            if group is inner:
                groups[index] = outer
    name = world.pg_names.get(outer)
    if name is not None:
        c10d._unregister_process_group(name)
        c10d._register_process_group(name, outer)


def _registries() -> list[dict[Any, Any]]:
    """Returns torch's registries that have a group as a key; of hooks there is one from 2.15 on."""
    names = (*_BY_GROUP, "pg_coalesce_state", "pg_flight_recorder_hooks")
    return [getattr(c10d._world, name, {}) for name in names]


def clone_group(make: Callable[..., Any], inner: Any, backend: str) -> Any:
    """A group of class `make` with the rank, size, backends and names of `inner`.

    Python subclasses can only be made by the constructor that takes no store.
    """
    if is_python_group(inner):
        behind: Any = type(inner)
        outer = _shadow_class(make, behind)(inner.rank(), inner.size())
        outer._inner = inner
        return outer
    outer = make(inner.rank(), inner.size())
    types = c10d.Backend.backend_type_map
    names = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
    custom = c10d.ProcessGroup.BackendType.CUSTOM
    for device in reversed(inner._device_types):  # torch lists the last to come first
        name = names.get(device.type, "")
        outer._register_backend(device, types.get(name, custom), inner._get_backend(device))
    outer._set_default_backend(types.get(_default_backend(inner, names, backend), custom))
    if inner.bound_device_id is not None:
        outer.bound_device_id = inner.bound_device_id
    outer._set_group_name(inner.group_name)
    outer._set_group_desc(inner.group_desc)
    return outer


def _default_backend(inner: Any, names: dict[str, str], asked: str) -> str:
    """The name of the backend that answers for a group that has several: by its own word, for the
    rule is the accelerator's from torch 2.14 on, and was the CPU's before."""
    with contextlib.suppress(Exception):
        own = inner.name()
        for device in inner._device_types:
            if inner._get_backend(device).name() == own:
                return names[device.type]
    if asked == c10d.Backend.UNDEFINED and "nccl" in names.values():
        return "nccl"
    several = len(set(names.values())) > 1
    return names.get("cpu", "") if several else next(iter(names.values()))


def is_python_group(group: Any) -> bool:
    """Whether the group is a backend's own, written in Python, with no C++ backend inside."""
    return type(group) is not c10d.ProcessGroup


def own_size(group: Any) -> int | None:
    """Returns the size that the group itself tells; None where it cannot, as a group in Python that
    gets its ranks later."""
    try:
        return int(group.size())
    except Exception:
        return None


@functools.cache
def _shadow_class(group_class: Any, inner_class: Any) -> Any:
    """A subclass of `group_class` that answers by its `_inner` whatever `inner_class` answers in
    its own way: names, devices, options, and what torch does not know of."""
    shadows: dict[str, Any] = {}
    plain = set(dir(object)) | {"__init_subclass__", "__new__", "__init__", "__dict__"}
    ours = [base for base in group_class.__mro__ if not issubclass(c10d.ProcessGroup, base)]
    own = {name for base in ours for name in vars(base)}
    for base in reversed(inner_class.__mro__):
        if issubclass(c10d.ProcessGroup, base):
            continue  # torch's own: the inner group does nothing else there
        for name, member in vars(base).items():
            if name in plain or name in own or name.startswith("__"):
                continue
            if callable(member):
                shadows[name] = _by_inner(name)
            elif not name.startswith("_abc"):
                shadows[name] = property(operator.attrgetter(f"_inner.{name}"))
    shadows |= attributes(ours)
    return type(f"{group_class.__name__}Of{inner_class.__name__}", (group_class,), shadows)


def _by_inner(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    call.__name__ = name
    return call


def backend_name(inner: Any) -> str:
    """ "gloo", or "cpu:gloo,cuda:nccl" where devices differ."""
    config = str(c10d._world.pg_backend_config.get(inner, ""))
    names = set(by_device(config).values())
    return config if len(names) > 1 else names.pop()


def prolong(inner: Any, timeout: timedelta) -> bool:
    """Give the group's gloo this timeout; whether it could be told."""
    gloo = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None or is_python_group(inner):
        return False
    found = [inner._get_backend(device) for device in inner._device_types]
    if not all(isinstance(one, gloo) and hasattr(one, "set_timeout") for one in found):
        return False
    for one in found:
        one.set_timeout(timeout)
    return bool(found)


def show_to_hooks() -> None:
    """Attach torch's hooks of groups (flight recorder, NaN and health checks; from 2.14 on) to the
    group behind the one in front, through which calls would pass unseen by them."""

    def to_the_one_behind(attach: Wrapped, pg: Any, *args: Any, **kwargs: Any) -> Any:
        return attach(pg._inner if isinstance(pg, FrontGroup) else pg, *args, **kwargs)

    for name in ("FlightRecorderHook", "NanCheckHook", "HealthCheckHook"):
        hook: Any = getattr(c10d, name, None)
        if callable(getattr(hook, "attach", None)):
            instead(hook, "attach", to_the_one_behind)
            hook.attach = staticmethod(hook.attach)


@TIMEOUTS
def on_group_timeout() -> None:
    """Has groups in front told of new timeouts; some keep them from the backend."""

    def set_timeout(original: Wrapped, timeout: timedelta, group: Any = None, **more: Any) -> Any:
        found = c10d.GroupMember.WORLD if group is None else group
        if not more and isinstance(found, FrontGroup) and found._record.keeps(timeout):
            return None
        return original(timeout, group, **more)

    instead(c10d, "_set_pg_timeout", set_timeout)


@DURATIONS
def take_times(group: Any) -> None:
    """Have torch's NCCL record when its calls begin, too; without that it knows no durations."""
    try:
        group._enable_collectives_timing()
    except Exception:  # a backend, or a release, that cannot
        pass
