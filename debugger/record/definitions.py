"""The definitions of a record: the texts that its numbers stand for, in the heap of a flight record
and in the program of a planned rank alike. Here they are written and read.

Everything is checked and given its type when it is read. A definition that a newer, faulty or
hostile writer made is left out, and its id reads as unknown.

The ranks of a group are written by `layout.packed_ranks`.
"""

from __future__ import annotations

import functools
import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import layout
from .layout import Definition, GroupState
from .limits import MOST_RANKS
from .ops import OP_NAMES
from .safe_files import cost_bytes, finite, whole
from .signature import Signature
from .snapshot import CallSite, Channel, Creation, Group, GroupKey, Note, Place

UNKNOWN_SIGNATURE = Signature("?")
MOST_COST_BYTES = 20 << 20
"""The most memory for all definitions of one record: several times what a heap of ours takes."""
MOST_TOGETHER_BYTES = 48 << 20
MOST_EACH_TOGETHER_BYTES = 48 << 10
"""The most memory for the definitions of all records of one run: so much, and so much more for
each. A rank's usually take 10 to 20 KiB; what ranks have in common counts once."""
LEAST_COST_BYTES = 400
"""The least memory of any definition, as the object that is kept of it."""
Sites = Callable[[int], CallSite | None]
"""The call site with an id."""
SPREAD_BYTES = 40
"""The memory for each rank of a run that is read."""
MOST_DAMAGED = 100
"""Behind so many definitions that make no sense the rest of a heap is not read."""
DAMAGED = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""The errors of a definition that is none of ours."""


@dataclass(slots=True)
class Budget:
    """The memory that the definitions of several records may take together: a run from elsewhere
    may hold hundreds, each of which is just within the bounds of one."""

    left_bytes: int = MOST_TOGETHER_BYTES

    @property
    def exceeded(self) -> bool:
        """Nothing more is read with it."""
        return self.left_bytes < 0


class Definitions:
    """The definitions read so far. `read` takes in what has been added since."""

    def __init__(self, budget: Budget | None = None) -> None:
        """`budget`: where this is one of several records; None: it has its own bounds alone."""
        self._budget = budget or Budget(MOST_COST_BYTES)
        self._read = 0
        self._cost_bytes = 0
        self._damaged = 0
        self._wall_offset_ns = 0
        self.signatures: dict[int, Signature] = {}
        self.sites: dict[int, CallSite] = {}
        self.places: dict[int, Place] = {}
        """The sites with their callers."""
        self.details: dict[int, Mapping[str, Any]] = {}
        self.groups: dict[int, Group] = {}
        self.channels: dict[int, Channel] = {}
        self.creations: list[Creation] = []
        self.notes: list[Note] = []
        self.environment: Mapping[str, str] = {}

    def unread(self, used: int) -> tuple[int, int]:
        """Returns where in the record the part of so many bytes of its heap begins that was not
        read yet, and how many bytes that is."""
        return layout.HEAP_OFFSET + self._read, min(used, layout.HEAP_BYTES) - self._read

    def read(self, mapped: mmap.mmap, used: int, wall_offset_ns: int) -> None:
        """Take in the heap of the record up to `used` bytes. `wall_offset_ns` makes Unix time of
        the writer's monotonic clock; where it has changed, what is known is corrected."""
        # The clock of another node comes to be known better while its record is read. Its calls get
        # their times whenever they are read, so a note would else seem to come before a call that
        # it came after.
        by_ns = wall_offset_ns - self._wall_offset_ns
        if by_ns:
            self._wall_offset_ns = wall_offset_ns
            self.notes = [replace(one, time_ns=one.time_ns + by_ns) for one in self.notes]
            self.creations = [replace(one, time_ns=one.time_ns + by_ns) for one in self.creations]
        head = layout.DEFINITION
        used = min(used, layout.HEAP_BYTES)
        while self._read + head.size <= used:
            at = layout.HEAP_OFFSET + self._read
            length, kind, number = head.unpack_from(mapped, at)
            torn = not length or self._read + head.size + length > used
            if torn or self._damaged > MOST_DAMAGED or self._budget.exceeded:
                return
            raw = mapped[at + head.size : at + head.size + length]
            self._read += head.size + length
            cost = LEAST_COST_BYTES + cost_bytes(raw) + _spread_bytes(raw)
            self._cost_bytes += cost
            if self._cost_bytes > MOST_COST_BYTES:
                continue
            shared = _SHARED.get(kind)
            known = shared.cache_info().hits if shared else 0
            try:
                self.define(kind, number, raw.decode("utf-8", "replace"), wall_offset_ns)
            except DAMAGED:
                self._damaged += 1
            if shared and shared.cache_info().hits != known:
                cost = LEAST_COST_BYTES  # another rank has described it alike
            self._budget.left_bytes -= cost

    def define(self, kind: int, number: int, text: str, wall_offset_ns: int = 0) -> None:
        """Takes in one definition. Raises one of `DAMAGED` where it makes no sense."""
        if kind == Definition.SIGNATURE:
            self.signatures[number] = _signature(text)
            return
        if kind == Definition.GROUP:
            self.groups[number] = _group(text)
            return
        if kind == Definition.SITE:
            place = self.places[number] = _place(text)
            self.sites[number] = place.sites[0]
            return
        value = json.loads(text)
        if kind == Definition.CHANNEL:
            self.channels[number] = Channel(
                group=key_of(value),
                op=str(value["op"]),
                peer=whole(value["peer"]),
                tag=whole(value["tag"]),
                issued=0,
                chain=0,
                last=None,
            )
        elif kind == Definition.CREATION:
            self.creations.append(creation_of(value, self.sites.get, wall_offset_ns))
        elif kind == Definition.NOTE:
            self.notes.append(note_of(value, self.sites.get, wall_offset_ns))
        elif kind == Definition.ENVIRONMENT:
            self.environment = {str(name): str(value[name]) for name in value}
        elif kind == Definition.DETAIL:
            self.details[number] = dict(value)

    def signature(self, mapped: mmap.mmap, number: int, op_code: int, call: int) -> Signature:
        """The signature of the record's call with this number; of its op alone where no more is
        known."""
        if number != layout.VOLATILE_SIGNATURE:
            found = self.signatures.get(number)
            if found is not None:
                return found
        else:
            at = layout.volatile_at(call)
            raw = mapped[at : at + layout.VOLATILE_BYTES].rstrip(b"\0")
            try:
                return Signature.from_json(raw.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                pass  # cut off: it did not fit
        return Signature(OP_NAMES[op_code]) if op_code < len(OP_NAMES) else UNKNOWN_SIGNATURE


# The texts, as they are written.


def site_row(site: CallSite) -> list[Any]:
    """Returns what a SITE says."""
    return [site.file, site.line, site.function, *([site.through] if site.through else [])]


def group_row(group: Group) -> dict[str, Any]:
    """Returns what a GROUP says."""
    return {
        "name": group.key[0],
        "incarnation": group.key[1],
        "desc": group.desc,
        "ranks": group.ranks,
        "backend": group.backend,
        "timeout_s": group.timeout_s,
    }


def creation_row(creation: Creation, site: int) -> dict[str, Any]:
    """Returns what a CREATION says; `site`: the id of its line."""
    return {
        "index": creation.index,
        "name": creation.group[0],
        "incarnation": creation.group[1],
        "ranks": creation.ranks,
        "backend": creation.backend,
        "site": site,
        "world_seq": creation.world_seq,
        "t_ns": creation.time_ns,
    }


def channel_row(channel: Channel, group: int) -> dict[str, Any]:
    """Returns what a CHANNEL says; `group`: the slot of its group."""
    name, incarnation = channel.group
    ends = {"op": channel.op, "peer": channel.peer, "tag": channel.tag}
    return {"group": group, "name": name, "incarnation": incarnation, **ends}


# What follows raises one of `DAMAGED` where a definition makes no sense.


def site_of(value: Any) -> CallSite:
    """The line of a call, from what a SITE's text says."""
    through = str(value[3]) if len(value) > 3 else ""
    return CallSite(str(value[0]), whole(value[1]), str(value[2]), through)


def place_of(value: Any) -> Place:
    """Returns the same with its callers."""
    callers = value[4] if len(value) > 4 else ()
    return Place((site_of(value), *map(site_of, callers)))


def creation_of(value: Mapping[str, Any], site: Sites, wall_offset_ns: int = 0) -> Creation:
    """The making of a group, from what a CREATION's text says."""
    return Creation(
        index=whole(value["index"]),
        group=key_of(value),
        ranks=unpacked_ranks(value["ranks"]),
        backend=str(value["backend"]),
        site=site(whole(value["site"])),
        world_seq=whole(value["world_seq"]),
        time_ns=whole(value["t_ns"]) + wall_offset_ns,
    )


def note_of(value: dict[str, Any], site: Sites, wall_offset_ns: int = 0) -> Note:
    """A note, from what a NOTE's text says, whose own fields are taken out of `value`."""
    return Note(
        kind=str(value.pop("kind")),
        time_ns=whole(value.pop("t_ns")) + wall_offset_ns,
        message=str(value.pop("message")),
        site=site(whole(value.pop("site", 0))),
        data=value,
    )


# All ranks of a group describe it alike: of 16,384 ranks each would else keep a list of 16,384.
@functools.lru_cache(maxsize=1024)
def _group(text: str) -> Group:
    return group_of(json.loads(text))


def group_of(value: Mapping[str, Any]) -> Group:
    """Reads the text of a GROUP, as one that is ready and has had no call."""
    timeout_s = value.get("timeout_s")
    return Group(
        key=key_of(value),
        desc=str(value["desc"]),
        ranks=unpacked_ranks(value["ranks"]),
        backend=str(value["backend"]),
        state=GroupState.READY,
        timeout_s=None if timeout_s is None else finite(timeout_s),
    )


@functools.lru_cache(maxsize=1024)
def _spread_bytes(raw: bytes) -> int:
    """Returns the memory of the ranks that a text names in runs."""
    if b'"runs"' not in raw:
        return 0
    try:
        return spread_bytes(json.loads(raw)["ranks"])
    except (*DAMAGED, UnicodeDecodeError):
        return 0  # it is left out when it is read


_signature = functools.lru_cache(maxsize=4096)(Signature.from_json)


@functools.lru_cache(maxsize=4096)
def _place(text: str) -> Place:
    return place_of(json.loads(text))


_SHARED = {Definition.SIGNATURE: _signature, Definition.GROUP: _group, Definition.SITE: _place}


def key_of(value: Mapping[str, Any]) -> GroupKey:
    """The name and incarnation that several texts say."""
    return (str(value["name"]), whole(value["incarnation"]))


def unpacked_ranks(value: Any) -> tuple[int, ...]:
    """The opposite; groups of the same ranks share one tuple. Raises ValueError, TypeError."""
    if isinstance(value, dict):
        return _spread(tuple((whole(a), whole(n), whole(step)) for a, n, step in value["runs"]))
    if not isinstance(value, list) or len(value) > MOST_RANKS:
        raise ValueError("not a list of ranks")
    return _shared(tuple(whole(rank) for rank in value))


def spread_bytes(value: Any) -> int:
    """Returns about how much memory `unpacked_ranks` takes beyond what the text says. Raises as it
    does."""
    if not isinstance(value, dict):
        return 0
    count = sum(whole(row[1]) for row in value["runs"])
    if not 0 <= count <= MOST_RANKS:
        raise ValueError("more ranks than any run has")
    return SPREAD_BYTES * count


@functools.lru_cache(maxsize=1024)
def _spread(runs: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    if any(count < 1 for _, count, _ in runs) or sum(count for _, count, _ in runs) > MOST_RANKS:
        raise ValueError("not runs of ranks")
    ranks = tuple(
        rank
        for first, count, step in runs
        for rank in (first + step * index for index in range(count))
    )
    return _shared(tuple(whole(rank) for rank in ranks))


@functools.lru_cache(maxsize=4096)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return ranks
