"""Digests of replicas, which a rank puts next to its flight record after optimiser steps.

One file for each optimiser and group, `pid-<pid>-<n>.replicas`, which a note of kind `replicas`
announces. It is allocated in full when it is made, and holds the last steps only:

    HEADER, then the definition: JSON {"group": [name, incarnation], "key", "axis", "names",
        "quantities", "samples", "elements", "unreduced", "like", "late", "use", "traits"}
    ring of `entries`: ENTRY, 64 bits for each column, the samples, the entry's number + 1 again
    (the first entry is kept: by it the ranks were equal at the start)

A column is of one quantity of one name: the digest of a parameter, of its gradient, of what the
optimiser keeps of it, or the bits of a hyper-parameter as a float64. `quantities` says how many of
the columns, in their order, are of which: [["parameter", 12], ...]; without it all are parameters.
`samples` says for the first columns of how many elements the values themselves stand there, as
float64 (NaN: of none): all of a small tensor, or some, evenly spaced. They show how far replicas
are apart. `elements` says for parameters what they are of: [dtype, count]. `unreduced` names the
parameters that the model's DDP did not have when it was made: it never brings their gradients
together. `like`: what is in this file only seems to be a replica, by what happens to these
parameters. `late`: steps are counted from the begin of a precheck, and not of the program. `use`:
what this group does, where the columns are all parameters, of which what is equal in the first
entry may be replicas; `traits` says of each what it is. All numbers are little-endian. A reader
takes an entry only if both numbers agree.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from struct import Struct
from typing import Any

from .lost_pages import keep, kept_file
from .safe_files import open_regular, parsed, whole
from .snapshot import CallSite, Column, Digest, GroupKey

MAGIC = b"DDREPLIC"
VERSION = 4
VERSIONS = (1, 3, 4)
"""The versions that are read: the first, in which recorded fixtures are, had no samples; up to the
third one, the first entry was overwritten."""
KEEPS_FIRST = 4
HEADER = Struct("<8sIIII")
"""magic, version, entries, columns, length of the definition"""
ENTRY = Struct("<QQQQQQQ")
"""number + 1, collectives of the group before it, how many-th of that moment, step and its flags,
site, time (ns, CLOCK_MONOTONIC), digest of the digests"""
ALONE, APART, BUSY, NO_SYNC, LOADED = (1 << bit for bit in range(63, 58, -1))
"""Flags of a step: it was made by this rank alone; so was this one or one before it; since the
first entry, or the first step alone, ranks may have made the columns equal themselves; and: it was
alone since all forwards were below DDP's no_sync(); and: a state was loaded before it."""
_STEP = LOADED - 1
PASSING, EXCHANGING, SUMMING, UNUSED = "passing", "exchanging", "summing", "unused"
"""What a group does in a training step: it passes activations, by all-to-alls too, as to experts;
or sums up gradients alone; or carries no more than small numbers."""
EVALUATED = "evaluated"
"""The use where the columns are running statistics, and the entries are evaluations."""
RANDOM_STATE = "random_state"
"""The use, and the quantity, where the columns are the states by which a rank draws random numbers,
in the forward of a step; they may well differ."""
FROZEN, MATRIX, CONSTANT, ELSEWHERE = "frozen", "matrix", "constant", "elsewhere"
PLACED = "placed"
"""Traits of a column: it has no gradient; it has two dimensions or more; all its elements were the
same at the start; another group has summed up its gradient, or holds the other shards of it; and:
it is a DTensor, which says itself what it is. Its dtype is one, too."""
MARK = Struct("<Q")

MOST_BYTES = 4 << 20
MOST_REPLICA_BYTES = 72 << 20
"""The most bytes of a file that another node is believed."""
MOST_ENTRIES = 256
LEAST_ENTRIES = 4
MOST_DEFINITION_BYTES = 64 << 20
"""The most memory for the names of the columns."""
PARAMETER, GRADIENT, OPTIMIZER_STATE = "parameter", "gradient", "optimizer_state"
HYPERPARAMETER, BUFFER, ACTIVATION = "hyperparameter", "buffer", "activation"
QUANTITIES = (
    *(PARAMETER, GRADIENT, OPTIMIZER_STATE, HYPERPARAMETER, BUFFER, ACTIVATION),
    RANDOM_STATE,
)
OPTIMIZER_CLASS = "class of the optimizer"
"""The one hyper-parameter that is no number: a hash of its name stands for it."""
_NAME = re.compile(r"pid-\d+-\d+\.replicas")


def is_context(axis: str) -> bool:
    """Returns whether an axis is of context parallelism, by its name: ranks along it have parts of
    each sequence, and all parameters."""
    return axis == "cp" or "context" in axis


def file_name(pid: int, number: int) -> str:
    """Returns the name of the file of the `number`-th optimiser of a process."""
    return f"pid-{pid}-{number}.replicas"


def bits_of(number: float) -> int:
    """Returns the bits by which a number stands in a column."""
    return int(MARK.unpack(struct.pack("<d", number))[0])


def number_of(bits: int) -> float:
    """The number that stands in a column so."""
    return float(struct.unpack("<d", MARK.pack(bits))[0])


class ReplicaWriter:
    """Writes one file. Raises OSError where it cannot be made."""

    def __init__(
        self,
        path: Path,
        group: GroupKey,
        key: str,
        columns: Sequence[Column],
        samples: Sequence[int] = (),
        axis: str = "",
        unreduced: Sequence[str] = (),
        like: Sequence[str] = (),
        late: bool = False,
        use: str = "",
        traits: Sequence[Collection[str]] = (),
        elements: Sequence[tuple[str, int]] = (),
    ) -> None:
        runs = groupby(columns, key=lambda column: column.quantity)
        of_columns = {
            "axis": axis,
            "names": [column.name for column in columns],
            "quantities": [[quantity, len(list(run))] for quantity, run in runs],
            "samples": list(samples),
            "elements": [list(of_column) for of_column in elements],
            "unreduced": list(unreduced),
            "like": list(like),
            "late": late,
            "use": use,
            "traits": [sorted(of_column) for of_column in traits],
        }
        definition = json.dumps({"group": list(group), "key": key, **of_columns}).encode()
        self._columns = len(columns)
        self._samples = sum(samples)
        self._size = ENTRY.size + 8 * (len(columns) + self._samples) + MARK.size
        self._entries = max(LEAST_ENTRIES, min(MOST_ENTRIES, MOST_BYTES // self._size))
        self._start = HEADER.size + len(definition)
        self._number = 0
        self._map = kept_file(path, self._start + self._entries * self._size)
        self._map[HEADER.size : self._start] = definition
        HEADER.pack_into(
            self._map, 0, MAGIC, VERSION, self._entries, self._columns, len(definition)
        )

    def append(
        self,
        moment: tuple[int, int],
        step: int,
        site: int,
        time_ns: int,
        digests: Sequence[int],
        samples: Sequence[float] = (),
    ) -> None:
        """Add an entry; `digests` are of 64 bits, in the order of the columns, as the samples.
        `step` may carry flags."""
        vector = struct.pack(f"<{self._columns}Q", *digests)
        total = int.from_bytes(hashlib.blake2b(vector, digest_size=8).digest(), "little")
        self._number += 1
        mark = self._number
        at = self._start + _slot(mark, self._entries) * self._size
        self._map[at + self._size - MARK.size : at + self._size] = MARK.pack(0)
        ENTRY.pack_into(self._map, at, mark, *moment, step, site, time_ns, total)
        vector += struct.pack(f"<{self._samples}d", *samples)
        self._map[at + ENTRY.size : at + ENTRY.size + len(vector)] = vector
        MARK.pack_into(self._map, at + self._size - MARK.size, mark)


class ReplicaReader:
    """Reads one file while it is written. Implements `snapshot.Replicas`.

    Raises ValueError and OSError where it is none.
    """

    def __init__(
        self, path: Path, site: Callable[[int], CallSite | None], wall_offset_ns: int
    ) -> None:
        self._path = path
        descriptor = open_regular(path)
        try:
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            keep(self._map)
        finally:
            os.close(descriptor)
        if len(self._map) < HEADER.size:
            raise ValueError(f"{path} is truncated")
        magic, version, self._entries, self._columns, length = HEADER.unpack_from(self._map, 0)
        self._keeps_first = version >= KEEPS_FIRST
        self._start: int = HEADER.size + length
        ours = magic == MAGIC and version in VERSIONS and 0 < self._entries <= MOST_ENTRIES
        if not (ours and len(self._map) >= self._start):
            raise ValueError(f"{path} holds no digests, or those of another version")
        definition = parsed(self._map[HEADER.size : self._start], MOST_DEFINITION_BYTES)
        name, incarnation = definition["group"]
        self.group: GroupKey = (str(name), whole(incarnation))
        self.key = str(definition["key"])
        self.axis = str(definition.get("axis") or "")
        self.unreduced = frozenset(map(str, definition.get("unreduced") or ()))
        self.like: Sequence[str] = tuple(map(str, definition.get("like") or ()))
        self.late = bool(definition.get("late"))
        self.use = str(definition.get("use") or "")
        traits = definition.get("traits") or ()
        self.traits: Sequence[frozenset[str]] = [frozenset(map(str, one)) for one in traits]
        self.columns: Sequence[Column] = _columns(definition)
        if len(self.columns) != self._columns or (self.use and len(self.traits) != self._columns):
            raise ValueError(f"{path} names {len(self.columns)} of {self._columns} columns")
        elements = definition.get("elements") or ()
        self.elements: Sequence[tuple[str, int]] = [(str(one), whole(of)) for one, of in elements]
        self._samples = [whole(one) for one in definition.get("samples", ())]
        self._size: int = ENTRY.size + 8 * (self._columns + sum(self._samples)) + MARK.size
        fits = len(self._samples) <= self._columns and min(self._samples, default=0) >= 0
        if not fits or len(self._map) < self._start + self._entries * self._size:
            raise ValueError(f"{path} holds no digests, or is cut short")
        self._site = site
        self._wall_offset_ns = wall_offset_ns
        self._known: dict[int, Digest] = {}
        self._last = 0

    def correct(self, wall_offset_ns: int) -> None:
        """This makes Unix time of the writer's monotonic clock, as far as it is known by now."""
        by_ns = wall_offset_ns - self._wall_offset_ns
        if by_ns:
            self._wall_offset_ns = wall_offset_ns
            for mark, one in self._known.items():
                self._known[mark] = replace(one, time_ns=one.time_ns + by_ns)

    def digests(self) -> Sequence[Digest]:
        """The last entries, oldest first."""
        if not self._still_whole():
            return list(self._known.values())
        newest = self._last
        while self._read(newest + 1) is not None:
            newest += 1
        if MARK.unpack_from(self._map, self._at(newest + 1))[0] > newest + 1:
            # It has been round since the last look: find the newest by their marks.
            places = (self._start + slot * self._size for slot in range(self._entries))
            newest = max(int(MARK.unpack_from(self._map, at)[0]) for at in places)
        oldest = newest - self._entries + 1 + self._keeps_first
        first = [1] if self._keeps_first and not self._last and oldest > 1 else []
        for mark in (*first, *range(max(self._last + 1, oldest), newest + 1)):
            found = self._read(mark)
            if found is not None:
                self._known[mark] = found
        self._last = newest
        for mark in [one for one in self._known if self._keeps_first < one < oldest]:
            del self._known[mark]
        return list(self._known.values())

    def values(self, moment: tuple[int, int]) -> Sequence[int] | None:
        """64 bits for each column at that moment; None when they were overwritten."""
        return self._unpacked(moment, 0, f"<{self._columns}Q")

    def samples(self, moment: tuple[int, int], column: Column) -> Sequence[float]:
        """Elements of a column at that moment; none where they were overwritten."""
        number = self.columns.index(column) if column in self.columns else self._columns
        if number >= len(self._samples):
            return ()
        at = 8 * (self._columns + sum(self._samples[:number]))
        return self._unpacked(moment, at, f"<{self._samples[number]}d") or ()

    def _unpacked(self, moment: tuple[int, int], at: int, form: str) -> tuple[Any, ...] | None:
        for mark, digest in self._known.items() if self._still_whole() else ():
            if digest.moment == moment:
                found = struct.unpack_from(form, self._map, self._at(mark) + ENTRY.size + at)
                return found if self._read(mark) is not None else None
        return None

    def _still_whole(self) -> bool:
        """Whether what is mapped can be read: see `FlightReader.still_whole`."""
        try:
            return os.stat(self._path).st_size >= len(self._map)
        except OSError:
            return True  # it has no name any more: what is mapped stays

    def _at(self, mark: int) -> int:
        slot = _slot(mark, self._entries) if self._keeps_first else (mark - 1) % self._entries
        return int(self._start + slot * self._size)

    def _read(self, mark: int) -> Digest | None:
        if mark < 1:
            return None
        at = self._at(mark)
        first, collectives, turn, step, site, time_ns, total = ENTRY.unpack_from(self._map, at)
        (last,) = MARK.unpack_from(self._map, at + self._size - MARK.size)
        if not first == last == mark:
            return None
        return Digest(
            moment=(collectives, turn),
            step=step & _STEP,
            total=total,
            time_ns=time_ns + self._wall_offset_ns,
            site=self._site(site),
            alone=bool(step & ALONE),
            apart=bool(step & APART),
            busy=bool(step & BUSY),
            no_sync=bool(step & NO_SYNC),
            loaded=bool(step & LOADED),
        )


def _slot(mark: int, entries: int) -> int:
    """The place of an entry: the first stays, and the others go round behind it."""
    return 0 if mark == 1 else 1 + (mark - 2) % (entries - 1)


def _columns(definition: Mapping[str, Any]) -> list[Column]:
    names = [str(one) for one in definition["names"]]
    runs = definition.get("quantities", [[PARAMETER, len(names)]])
    quantities: list[str] = []
    for quantity, count in runs:
        if quantity not in QUANTITIES or not 0 <= whole(count) <= len(names) - len(quantities):
            raise ValueError(f"{quantity!r} is no quantity of replicas, or of {count!r} columns")
        quantities += [quantity] * count
    return [Column(*both) for both in zip(quantities, names, strict=True)]


class ReplicaFiles:
    """The files of one rank, opened as its notes announce them. `prefix`: what stands before their
    names here, if they are copies."""

    def __init__(self, directory: Path, prefix: str = "") -> None:
        self._directory = directory
        self._prefix = prefix
        self._readers: dict[str, ReplicaReader | None] = {}

    def announced(
        self, name: str, site: Callable[[int], CallSite | None], wall_offset_ns: int
    ) -> ReplicaReader | None:
        """The file of this name; None where there is none, or it cannot be read."""
        if name not in self._readers:
            reader = None
            if _NAME.fullmatch(name):
                try:
                    reader = ReplicaReader(
                        self._directory / (self._prefix + name), site, wall_offset_ns
                    )
                except (OSError, ValueError, LookupError, TypeError, ArithmeticError):
                    reader = None
            self._readers[name] = reader
        found = self._readers[name]
        if found is not None:
            found.correct(wall_offset_ns)
        return found
