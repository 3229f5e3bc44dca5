"""torch's hooks around the calls of a group (from 2.14 on), and what its flight recorder has seen.

The hooks are called by the dispatcher for every caller of a group that exists already: Python,
DDP's C++ reducer, functional collectives, compiled code. Their table has no lock: they are to be
set where no other thread makes a call, see `process.main_thread.MainThreadCall`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...record.wording import by_device
from .groups import backend_name
from .groups import is_python_group as is_python_group
from .probe import after, before, c10d

HOOK_ID = 1 << 62
"""Hooks are called in the order of their ids: ours come last."""
Hook = Callable[[Any], None]

_RINGS = {"nccl": ("nccl2", "nccl")}
"""By backend, the rings that its calls may be in."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group of this process: torch's object, names, global ranks in the order of the group."""

    group: Any
    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str


def unhooked() -> str:
    """Why calls of this process's groups cannot be seen through hooks; "" where they can."""
    if not c10d.is_initialized():
        return "it has no process group (yet, or any more)"
    if not hasattr(c10d.ProcessGroup, "register_pre_hook"):
        return "this torch has no hooks around calls: it takes torch 2.14 or newer"
    written = [one.name for one in found_groups() if is_python_group(one.group)]
    if written:
        return (
            f"group {written[0]!r} is one written in Python, whose calls torch's hooks do not see"
        )
    return ""


def found_groups() -> list[FoundGroup]:
    """The groups that this process is in."""
    world = c10d._world
    found = []
    for group, name in list(world.pg_names.items()):
        members = world.pg_group_ranks.get(group, {})
        ranks = tuple(sorted(members, key=members.__getitem__))
        found.append(
            FoundGroup(group, str(name), str(group.group_desc), ranks, backend_name(group))
        )
    return found


def hook(group: Any, pre: Hook, post: Hook) -> None:
    """Has `pre(args)` called before each call of the group, and `post(args)` after it."""
    group.register_pre_hook(HOOK_ID, pre)
    group.register_post_hook(HOOK_ID, post)


def unhook(group: Any) -> None:
    """Takes the hooks away."""
    group.unregister_pre_hook(HOOK_ID)
    group.unregister_post_hook(HOOK_ID)


def on_new_groups(tell: Callable[[], None]) -> None:
    """`tell()` is called whenever a group was made."""

    after(c10d, "_new_process_group_helper", lambda *_, **__: tell())


def on_destroyed(tell: Callable[[Any], None]) -> None:
    """`tell(group)` is called before a group is destroyed; None: all of them."""

    def destroys(group: Any = None) -> None:
        tell(None if group is c10d.GroupMember.WORLD else group)

    before(c10d, "destroy_process_group", destroys)


# -- the flight recorder ---------------------------------------------------------------------


class Ring:
    """The collectives of each group in torch's flight recorder: (number, when), oldest first. The
    number is that of the recorder, which counts alike on all ranks of the group; when is Unix time
    in nanoseconds."""

    def __init__(self, dumps: Sequence[Mapping[str, Any]]) -> None:
        self.entries: dict[str, list[tuple[int, int]]] = {}
        self.wrapped = False
        """Whether older calls were there once."""
        newest: dict[str, int] = {}
        for dump in dumps:
            entries = dump.get("entries") or ()
            self.wrapped |= bool(entries) and min(int(one["record_id"]) for one in entries) > 0
            for one in entries:
                if one.get("is_p2p"):
                    continue
                name, made = str(one["process_group"][0]), int(one["pg_id"])
                if made > newest.get(name, -1):  # one that was made again under this name
                    newest[name] = made
                    self.entries[name] = []
                if made == newest[name]:
                    number, at_ns = int(one["collective_seq_id"]), int(one["time_created_ns"])
                    self.entries[name].append((number, at_ns))

    def last_before(self, name: str, at_ns: int) -> int:
        """The number of the group's last call before that time; 0 where there was none."""
        return max(
            (number for number, made in self.entries.get(name, ()) if made < at_ns), default=0
        )

    def last(self, name: str) -> int:
        """The number of the group's last call."""
        return max((number for number, _ in self.entries.get(name, ())), default=0)

    def end_of(self, name: str, number: int) -> int | None:
        """When the last entry up to this number was made, 0 where the group has none; None where
        that is no longer in the ring."""
        entries = self.entries.get(name, [])
        made = [at_ns for seq, at_ns in entries if seq <= number]
        if made:
            return max(made)
        return None if number and entries else 0


def recorded(backends: Sequence[str]) -> Ring:
    """Returns what the flight recorder has now of groups of these backends."""
    texts = _of_rings(backends, "_dump_fr_trace_json", True, False)
    return Ring([json.loads(text) for text in texts if text])


def dumped(backends: Sequence[str]) -> list[bytes]:
    """The same as the pickles that torch itself writes; without the lines of the calls, for which
    torch imports its compiler, seconds long."""
    return [data for data in _of_rings(backends, "_dump_fr_trace", True, False, False) if data]


def _of_rings(backends: Sequence[str], function: str, *args: bool) -> list[bytes]:
    private: Any = torch._C
    dump = getattr(private._distributed_c10d, function)
    names = sorted({one for backend in backends for one in by_device(backend).values()})
    rings = [ring for name in names for ring in _RINGS.get(name, (name,))]
    try:
        return [dump(*args, backend=ring) for ring in rings]
    except TypeError:  # torch 2.14: one ring for all of them
        return [dump(*args)]
