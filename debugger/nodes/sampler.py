"""A node's side of the picture: samples all its records and processes, and makes digests of them.

A digest says when it was taken, what is new in the node's files, and what its system says of their
processes where that has changed. Serial numbers tell the head whether one was lost.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.reading.last_words import WrittenLastWords
from ..record.reading.record_source import RecordSource, ReplicaSource
from ..record.reading.ring import FlightError
from ..record.snapshot import Process
from .many_nodes import Pace
from .messages import Message, Patch, bounded, packed
from .mirror import RECORD, REPLICAS, process_values


class Sampler:
    """The sampler of the records below `folder`. `observe` is asked for (pid, start ticks) of each
    rank. What changes in a process is told at once, and so is, as the pace allows, that a rank has
    come to stand still."""

    def __init__(self, folder: Path, observe: Callable[[int, int], Process]) -> None:
        self._folder = folder
        self._observe = observe
        self._sources: dict[int, RecordSource | ReplicaSource] = {}
        self._by_inode: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._processes: dict[int, list[Any]] = {}
        self._written = WrittenLastWords(folder.parent / "stacks")
        self._marks: dict[int, tuple[int, ...]] = {}
        self._still: dict[int, bool] = {}
        self._listed_ns = -1
        self._serial = self._filled = self._answered = 0
        self._told_s = -1e9
        self._anew = True
        self._stopped = False
        self.pace = Pace()

    def fill(self, number: int = 0, files: Collection[int] | None = None) -> None:
        """The next digest has all calls that are on record in these files (None: in all), and says
        that it is the answer to the head's question of this number."""
        self._filled = max(self._filled, number)
        for place, source in self._sources.items():
            if isinstance(source, RecordSource) and (files is None or place in files):
                source.fill()
        self.hasten()

    def anew(self) -> None:
        """Tells everything once more: the receiver of the digests knows nothing."""
        self._anew = True
        self._names.clear()
        self._processes.clear()
        for source in self._sources.values():
            source.anew()
        if self._filled:
            self.fill()  # the answer may be among what was lost
        self.hasten()

    def hasten(self) -> None:
        """Tell at the next call."""
        self._told_s = -1e9

    def digests(self) -> list[Message]:
        """Returns what is new; nothing where it is not time yet. It is told in one message, or
        where it is much, as of 200 ranks of which all calls were asked for, in several: the last of
        them says that it was all."""
        names = self._look()
        processes = self._look_at_processes()
        now_s = time.monotonic()
        moved, stopped = self._movement()
        self._stopped |= stopped
        pace, since_s = self.pace, now_s - self._told_s
        every_s = pace.busy_s if moved else pace.idle_s
        if self._stopped:
            every_s = pace.least_s
        if not (names or processes) and since_s < every_s:
            return []
        busy = moved and not (names or processes or self._stopped or self._filled > self._answered)
        self._told_s, self._stopped, self._answered = now_s, False, self._filled
        taken_ns = time.monotonic_ns()
        patches = [
            Patch(number, offset, data)
            for number, source in self._sources.items()
            for offset, data in source.sample(pace.still_calls)
        ]
        parts = bounded(patches)
        first: dict[str, Any] = {}
        last: dict[str, Any] = {"t": taken_ns}
        if busy and not self._anew and len(parts) == 1:
            first["busy"] = True  # it says no more than that ranks go on calling
        if self._anew:
            first["anew"], self._anew = True, False
        if names:
            first["files"] = names
        if self._filled:
            last["filled"] = self._filled
        if processes:
            last["processes"] = processes
        found = []
        for place, part in enumerate(parts):
            self._serial += 1
            data = {"serial": self._serial, **(first if place == 0 else {})}
            data |= last if place == len(parts) - 1 else {"more": True}
            found.append(Message("digest", data, packed(part)))
        return found

    def _movement(self) -> tuple[bool, bool]:
        """Whether a rank calls, and whether one has come to stand still since the last call."""
        moved = stopped = False
        for number, source in self._sources.items():
            if not isinstance(source, RecordSource) or not source.still_whole():
                continue
            mark = source.change_mark
            still = self._marks.get(number) == mark
            stopped |= still and not self._still.get(number, False)
            moved |= not still
            self._marks[number], self._still[number] = mark, still
        return moved, stopped

    def _look_at_processes(self) -> list[list[Any]]:
        found = []
        for number, source in self._sources.items():
            if not isinstance(source, RecordSource):
                continue
            process, said = self._written.of(*source.identity, self._observe(*source.identity))
            values = process_values(process, said, steady_clock.offset_ns())
            if self._processes.get(number) != values:
                self._processes[number] = values
                found.append([number, *values])
        return found

    def _look(self) -> list[list[Any]]:
        """Files that are new, or have another name: [number, name, size]."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns != self._listed_ns:
                recent = time.time_ns() - changed_ns < 50_000_000  # may change once more unseen
                self._listed_ns = -1 if recent else changed_ns
                for name in sorted(os.listdir(self._folder)):
                    self._open(name)
        except OSError:
            pass  # the run directory is gone: what is open can still be told
        found = []
        for number, source in self._sources.items():
            if self._names.get(number) != source.path.name:
                self._names[number] = source.path.name
                found.append([number, source.path.name, source.size])
        return found

    def _open(self, name: str) -> None:
        make = (
            RecordSource
            if RECORD.fullmatch(name)
            else ReplicaSource
            if REPLICAS.fullmatch(name)
            else None
        )
        if make is None:
            return
        path = self._folder / name
        with contextlib.suppress(FlightError, ValueError, OSError):
            inode = os.stat(path).st_ino
            number = self._by_inode.get(inode)
            if number is not None:
                self._sources[number].path = path
                return
            source = make(path)
            self._by_inode[inode] = len(self._sources)
            self._sources[len(self._sources)] = source
