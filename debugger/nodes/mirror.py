"""The digests of a node's flight records and processes, and the head's copies of them: files like
any other, in its own run directory.

A node samples all its records and processes, and makes digests of them. A digest says when it was
taken, what is new in the node's files, and what its system says of their processes where that has
changed. Serial numbers tell the head whether one was lost.

`ranks/node<number>-<name>` is what node <number> has told of its file <name>. So every reader of a
run directory reads the records of all nodes. What was not told is zero, or older, and reads as
overwritten. Times are made the head's: the copy's header has the offset that was measured between
the two clocks, not what the node's wall clock says.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from ..record import layout, steady_clock
from ..record.reading import copies
from ..record.reading.last_words import LastWords, WrittenLastWords
from ..record.reading.plain_data import WRONG, made_of
from ..record.reading.record_source import BranchSource, RecordSource, ReplicaSource
from ..record.reading.ring import FlightError
from ..record.replicas import MOST_REPLICA_BYTES
from ..record.snapshot import Process
from .many_nodes import Pace
from .messages import Message, Patch, bounded, packed


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
        makers = ((RECORD, RecordSource), (REPLICAS, ReplicaSource), (BRANCHES, BranchSource))
        make = next((maker for form, maker in makers if form.fullmatch(name)), None)
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


RECORD = re.compile(r"(\d{1,7}|pid-\d{1,10}|\d{1,7}\.before-\d{1,10})\.flight")
REPLICAS = re.compile(r"pid-\d{1,10}-\d{1,6}\.replicas")
BRANCHES = re.compile(r"pid-\d{1,10}\.branches")
MOST_FILES = 4096
"""The most files of one node."""
MOST_TEXT = 4096
"""The longest text that is told of a process, such as a path."""


class MirrorError(ValueError):
    """A message of a node makes no sense; the sentence says what."""


LIVES = Process(alive=True)


@dataclass(slots=True)
class Copy:
    """The copy of a file of a node. `process` is what the node's system says of the rank's process,
    and `last_words` what that wrote of itself as a signal ended it; `changes`: how often something
    was told of the file; `urgent`: what that was when more was told than that ranks go on calling.
    It is `made` under a hidden name, and `begun` as soon as a record has its own. `name`: that in
    the head's `ranks/`."""

    name: str
    size: int
    is_record: bool
    process: Process = LIVES
    last_words: LastWords | None = None
    made: bool = False
    begun: bool = False
    changes: int = 0
    urgent: int = 0


class Mirror:
    """All that one node has told of its files."""

    def __init__(self, folder: Path, number: int) -> None:
        """Makes a mirror in the folder `ranks/` of a run directory."""
        self._folder = str(folder)
        self._number = number
        self._copies: dict[int, Copy] = {}
        self._left_out: set[int] = set()
        self.offset_ns = 0
        self.news = 0
        """The number of times that more was told than that ranks go on calling."""

    @property
    def left_out(self) -> int:
        """The files of the node that are not copied: they are more than those of ranks can be."""
        return len(self._left_out)

    @property
    def files(self) -> Mapping[int, Copy]:
        """The files by the node's numbers for them."""
        return self._copies

    def copy_of(self, path: Path) -> Copy | None:
        """Returns what was told of the file that is copied here."""
        name = path.name
        return next((one for one in self._copies.values() if one.name == name), None)

    def announced(self, number: int, name: str, size: int) -> None:
        """The node has a file of that name, or a record of it has got its rank's name. Raises
        MirrorError, or OSError."""
        if number in self._copies:
            self._named(self._copies[number], name)
            return
        if number in self._left_out:
            return
        is_record = RECORD.fullmatch(name) is not None
        if not (is_record or REPLICAS.fullmatch(name) or BRANCHES.fullmatch(name)):
            raise MirrorError("a node reports a file that is no record")
        if is_record:
            size = layout.FILE_BYTES
        if not 0 < size <= MOST_REPLICA_BYTES:
            raise MirrorError("a node reports more than a node has")
        if len(self._copies) >= MOST_FILES:
            if len(self._left_out) < MOST_FILES:
                self._left_out.add(number)
            return
        ours = self._place(name)
        if any(one.name == ours for one in self._copies.values()):
            raise MirrorError("a node reports two files of one name")
        self._copies[number] = Copy(ours, size, is_record)

    def _named(self, copy: Copy, name: str) -> None:
        if not copy.is_record or not RECORD.fullmatch(name):
            return
        target = self._place(name)
        if any(one.name == target for one in self._copies.values()):
            return
        if copy.begun:
            os.rename(self._path(copy.name), self._path(target))
        copy.name = target

    def apply(self, patches: Iterable[Patch], urgent: bool = True) -> None:
        """All of a digest. `urgent`: it says more than that ranks go on calling; what is new in a
        heap does, where notes are. Raises MirrorError, or OSError; what came before that stands."""
        by_file: dict[int, list[Patch]] = {}
        for patch in patches:
            by_file.setdefault(patch.file, []).append(patch)
        for number, rows in by_file.items():
            copy = self._copies.get(number)
            if number in self._left_out:
                continue
            if copy is None:
                raise MirrorError("a node changes what it has not")
            noted = any(one.offset >= layout.HEAP_OFFSET for one in rows)
            self._apply(copy, rows, urgent or noted)
        if urgent:
            for copy in self._copies.values():
                self.news += copy.urgent != copy.changes
                copy.urgent = copy.changes  # of those, too, that had gone on calling before

    def _apply(self, copy: Copy, patches: Sequence[Patch], urgent: bool) -> None:
        descriptor = self._begin(copy)
        try:
            # Of a record the header comes last, which says how many calls there are: the app may
            # read it meanwhile, and after a lost node's last digest nothing is put right.
            for _, offset, data in reversed(patches) if copy.is_record else patches:
                self._write(descriptor, copy, offset, data)
            if copy.is_record and not copy.begun and any(one.offset == 0 for one in patches):
                # The name comes last: until now nobody could have read it.
                copy.begun = True
                os.rename(self._path(_hidden(copy)), self._path(copy.name))
        finally:
            os.close(descriptor)
            self._changed(copy, urgent)

    def _changed(self, copy: Copy, urgent: bool) -> None:
        self.news += urgent or not copy.is_record
        # A replica's file is read with a record, which says that it is there.
        for one in (copy,) if copy.is_record else (copy, *self._copies.values()):
            one.changes += 1
            one.urgent = one.changes if urgent or not copy.is_record else one.urgent

    def _write(self, descriptor: int, copy: Copy, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > copy.size:
            raise MirrorError("a node changes what it has not")
        if copy.is_record and offset < layout.WALL_OFFSET_AT + 8 and end > layout.WALL_OFFSET_AT:
            data = self._with_our_offset(offset, data)
        if os.pwrite(descriptor, data, offset) != len(data):
            raise OSError(28, "no space left on device")

    def correct(self, offset_ns: int) -> None:
        """This much added to the node's monotonic clock gives our Unix time. Clocks drift apart, so
        that this is no news where all ranks have gone on calling since more was told of them."""
        by_ns = offset_ns - self.offset_ns
        if not by_ns:
            return
        self.offset_ns = offset_ns
        records = [one for one in self._copies.values() if one.is_record and one.begun]
        urgent = any(one.urgent == one.changes for one in records)
        for copy in self._copies.values():
            if copy.process.ended_ns is not None:
                ended_ns = copy.process.ended_ns + by_ns
                copy.process = replace(copy.process, ended_ns=ended_ns)
        for copy in records:
            self._apply(copy, [Patch(0, layout.WALL_OFFSET_AT, bytes(8))], urgent)

    def seen(self, number: int, values: Any) -> None:
        """Takes what the node's system says of the process: `process_values`. Raises
        MirrorError."""
        copy = self._copies.get(number)
        if number in self._left_out:
            return
        if copy is None:
            raise MirrorError("a node reports a process without a record")
        copy.process, copy.last_words = process_of(values, self.offset_ns)
        self.news += 1

    def ended(self, now_ns: int) -> None:
        """The node is lost: none of its processes is known to live."""
        self.news += 1
        for copy in self._copies.values():
            if copy.process.alive:
                copy.process = Process(alive=False, ended_ns=now_ns)

    def _place(self, name: str) -> str:
        """Returns the name of the node's file here."""
        return f"{copies.prefix(self._number)}{name}"

    def _path(self, name: str) -> str:
        # No object is kept of it: there are 16,384 ranks on 2,048 nodes.
        return f"{self._folder}/{name}"

    def _begin(self, copy: Copy) -> int:
        """A descriptor for this digest: kept open, those of 16,384 ranks would be too many."""
        hidden = copy.is_record and not copy.begun
        path = self._path(_hidden(copy) if hidden else copy.name)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        if copy.made:
            return os.open(path, flags)
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        copy.made, copy.begun = True, not copy.is_record
        # Not allocated: most of it stays empty. A full disk is an error of the write.
        os.ftruncate(descriptor, copy.size)
        return descriptor

    def _with_our_offset(self, at: int, data: bytes) -> bytes:
        ours, here = self.offset_ns.to_bytes(8, "little", signed=True), layout.WALL_OFFSET_AT
        start, end = max(at, here), min(at + len(data), here + len(ours))
        return data[: start - at] + ours[start - here : end - here] + data[end - at :]


def _hidden(copy: Copy) -> str:
    return f".{copy.name}.begun"


def _by(process: Process, add_ns: int) -> Process:
    """The process by a clock that is so much ahead."""
    ended_ns, still = process.ended_ns, process.standstill
    return replace(
        process,
        ended_ns=None if ended_ns is None else ended_ns + add_ns,
        standstill=None if still is None else replace(still, since_ns=still.since_ns + add_ns),
    )


def process_values(process: Process, said: LastWords | None, offset_ns: int) -> list[Any]:
    """Returns the process as it goes over the wire, with what it said of its end; times by the
    node's monotonic clock, from which `offset_ns` leads to the Unix time in `process`."""
    return [*astuple(_by(process, -offset_ns)), None if said is None else astuple(said)]


def process_of(values: Any, offset_ns: int) -> tuple[Process, LastWords | None]:
    """The opposite of `process_values`, by our clock. Raises MirrorError."""
    try:
        *told, said = values
        process = _by(made_of(Process, told, MOST_TEXT), offset_ns)
        return process, None if said is None else made_of(LastWords, said, MOST_TEXT)
    except WRONG:
        raise MirrorError("what a node reports of a process cannot be read") from None
