"""Turns the flight records of a run directory, and what the system says of the processes, into
snapshots: one for each world, since a command may start several, one after the other.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from .. import steady_clock
from ..definitions import MOST_EACH_TOGETHER_BYTES, Budget
from ..layout import Phase, Role
from ..notes import CrashNote, ForkedNote, LayerOffNote
from ..snapshot import Note, Process, Rank, Snapshot
from .copies import far_heartbeat_s, node_of, own_name
from .last_words import LastWords, WrittenLastWords
from .reader import FlightError, FlightReader
from .ring import NoHeaderError, OpenMaps, Window

HERE_EVERY_S = 0.2
"""A rank that calls, however slowly, has called within that; else it stands still for now."""

CUT_SHORT = "somebody has cut the flight record short: what the rank does from then on is not known"
UNREADABLE = (
    "the flight record is cut short, or is none of this version: what the rank does is not known"
)
_OF_RANK = re.compile(r"(\d{1,7})\.flight")

MOST_CALLING_READ, MOST_CALLING_READ_AT_REST = 1000, 16_384
"""With one look, of copies of ranks of which no more was reported than that they go on calling. At
rest there are few looks, and nothing else to be read."""
MOST_COPIES_MAPPED = 256
"""The most records of other nodes that are mapped. Ranks of this host have one each, always
mapped."""

Observe = Callable[[int, int], Process]
"""(pid, start ticks) -> what the system says of the process."""


class ReportedCopy(Protocol):
    """A copy of another node's record. `process`: what that node says of the rank's process, and
    `last_words` what the process wrote of itself as a signal ended it;
    `changes`: how often something was reported of the record, so that what has not changed is not
    read again; `urgent`: what `changes` was when more was reported than that the rank goes on
    calling."""

    process: Process
    last_words: LastWords | None
    changes: int
    urgent: int


class Records:
    """The flight records below one run directory. `faults` are sentences about unreadable ones.

    A record that is cut short while it is open stays as it was seen last, so that its process is
    still watched, and says so: nothing is concluded from what it does not show. The readers look
    for that with each `look`; what is cut between a look and the reading that follows reads as
    zeros (`lost_pages`; where that cannot be, it ends the reader by SIGBUS).
    """

    def __init__(
        self,
        directory: Path,
        on_fault: Callable[[str, Exception], None] | None = None,
        steady: bool = False,
        trusted: bool = False,
        far: Callable[[Path], ReportedCopy | None] | None = None,
    ) -> None:
        """`steady`: the processes run since this host was booted, so that its monotonic clock says
        when they did what, whatever was done to the wall clock meanwhile. A record that a reader of
        ours fails on is reported to `on_fault` and stays as it was seen last; where that is None,
        it raises. `trusted`: they are our own processes', each of which may fill its record; all
        other records together are bounded. `far` gives what a node reports of the
        record at a path; None where none does."""
        self._directory = directory
        self._budget = None if trusted else Budget()
        self._on_fault = on_fault
        self._steady = steady
        self._far = far
        self._maps = OpenMaps(MOST_COPIES_MAPPED)
        self._window = Window()
        self._copies: dict[FlightReader, _Copy] = {}
        self._copies_moved = self._looks = 0
        self._readers: dict[int, FlightReader] = {}
        self._ours: list[FlightReader] = []
        self._far_nodes = 0
        self._seen: dict[FlightReader, Rank] = {}
        self._written = WrittenLastWords(directory.parent / "stacks")
        self._listed_ns = -1
        self._unread: list[Path] = []
        self.at_rest = False
        """No more was reported of any rank than that it goes on calling."""
        self._here_s = -1e9
        self._here: tuple[object, ...] = ()
        self._marks: dict[FlightReader, tuple[int, ...]] = {}
        self.faults: dict[str, str] = {}
        """By the name of the record; "": about all of them."""

    def look(self, again: bool = False) -> None:
        """Find new records, and what known ones have learnt about themselves. `again`: look through
        the directory also where no name in it has changed."""
        try:
            changed_ns = os.stat(self._directory).st_mtime_ns
            if again or changed_ns != self._listed_ns:
                # A change within the clock's grain of the listing would be missed: look again.
                recent = time.time_ns() - changed_ns < 50_000_000
                self._listed_ns = -1 if recent else changed_ns
                self._unread = self._not_open()
            # What cannot be read may have been made just now, by who has not come to write in it:
            # no name in the directory changes when that is done.
            self._unread = [path for path in self._unread if not self._open(path)]
        except OSError:
            return
        calling = []
        self._ours = [reader for reader in self._readers.values() if not reader.node]
        self._far_nodes = max((reader.node for reader in self._readers.values()), default=0)
        for reader in self._readers.values():
            copy = self._copy(reader)
            if copy is None:
                self._refresh(reader)
            elif copy.urgent:
                self._look_at(reader, copy)
            elif copy.changed:
                calling.append((reader, copy))
        # Of 16,384 ranks that go on calling, to read all each time would take longer than is good.
        most = MOST_CALLING_READ_AT_REST if self.at_rest else MOST_CALLING_READ
        if len(calling) > most:
            calling.sort(key=lambda row: row[1].looked_at)
        self._looks += 1
        for reader, copy in calling[:most]:
            self._look_at(reader, copy)

    def _not_open(self) -> list[Path]:
        """The records that are not known, or by another name, in the order of their names. Of the
        others nothing is asked but the directory."""
        found = []
        gone = {*self.faults} - {""}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                gone.discard(entry.name)
                if entry.name.endswith(".flight"):
                    known = self._readers.get(entry.inode())
                    if known is None or known.cut or known.path.name != entry.name:
                        found.append(entry.name)
        for name in gone:  # a record has its rank's name by now, or was removed
            del self.faults[name]
        return [self._directory / name for name in sorted(found)]

    def _look_at(self, reader: FlightReader, copy: _Copy) -> None:
        """A copy of which something was reported: all that is to be seen of it is read at once."""
        copy.looked_at = self._looks
        reader.look_through(self._window)
        try:
            self._refresh(reader, copy)
            reader.keep_waits = True
            copy.read(self._view(reader, copy.told.process))
        finally:
            reader.look_away()

    def _refresh(self, reader: FlightReader, copy: _Copy | None = None) -> None:
        """Reads the header anew: the record may have been cut short, and may have learnt who it
        is."""
        if not reader.still_whole():
            self.faults[reader.path.name] = f"{reader.path}: is truncated; this was seen last"
            return
        try:
            reader.refresh_header()
            if copy is not None:
                self._copies_moved += copy.moved(reader)
        except Exception as error:
            self._failed(reader, error)

    def _copy(self, reader: FlightReader) -> _Copy | None:
        """Returns what is remembered of a record that another node reports."""
        if not reader.node or self._far is None:
            return None
        found = self._copies.get(reader)
        if found is None:
            told = self._far(reader.path)
            if told is not None:
                found = self._copies[reader] = _Copy(told)
        return found

    def _failed(self, reader: FlightReader, error: Exception) -> None:
        if self._on_fault is None:
            raise error
        self._on_fault(f"the record {reader.path.name}", error)

    def _open(self, path: Path) -> bool:
        """Whether it can be read."""
        try:
            inode = path.stat().st_ino
            known = self._readers.get(inode)
            if known is not None and not known.cut:
                known.path = path  # it has its rank's name by now
            else:
                maps = self._maps if self._far is not None and node_of(path.name) else None
                self._readers[inode] = FlightReader(path, self._steady, self._budget, maps)
                if self._budget is not None:
                    self._budget.left_bytes += MOST_EACH_TOGETHER_BYTES
                self.faults.pop(path.name, None)
        except OSError:
            return False  # it was given another name just now
        except FlightError as error:
            # What has a rank's name had a header before; any other may have been made just now.
            if _OF_RANK.fullmatch(own_name(path.name)) or not isinstance(error, NoHeaderError):
                self.faults[path.name] = str(error)
            return False
        return True

    @property
    def readers(self) -> Collection[FlightReader]:
        """Every record that can be read."""
        return self._readers.values()

    @property
    def change_mark(self) -> tuple[object, ...]:
        """A value that is equal as long as nothing happened in any rank."""
        ours = (one.change_mark for one in self._readers.values() if one not in self._copies)
        return (self._copies_moved, len(self._copies), *ours)

    def here(self, observe: Observe) -> tuple[object, ...]:
        """Returns what may matter of the ranks that no other node reports: equal as long as each
        calls, or stands still, as it did, has noted nothing, and its process goes on as before."""
        now_s = time.monotonic()
        if now_s - self._here_s >= HERE_EVERY_S:
            self._here_s = now_s
            found = []
            for reader in self._ours:
                if reader.still_whole():
                    mark = reader.change_mark
                    still = self._marks.get(reader) == mark
                    self._marks[reader] = mark
                    process = observe(reader.pid, reader.start_ticks)
                    lives = (process.alive, process.state in ("T", "t"))
                    found.append((reader, still, reader.noted_bytes, lives))
            self._here = (len(self._readers), *found)
        return self._here

    def snapshots(
        self,
        observe: Observe | None = None,
        world_size: int | None = None,
        finished: bool = False,
        now_ns: int = 0,
    ) -> list[Snapshot]:
        """Returns one snapshot for each world, oldest first.

        `observe` is None for a run that is over: then no process is alive. `world_size` overrides
        what the ranks say (0: unknown, as on one node of several). `now_ns` is the time of the look
        (0: ask the clock).
        """
        now_ns = now_ns or steady_clock.now_ns()
        here = socket.gethostname()
        views: list[Rank] = []
        forked: list[tuple[int, Note]] = []
        for reader in self._readers.values():
            copy = self._copies.get(reader) if observe is not None else None
            view = copy.view if copy is not None and copy.same else None
            if view is None:
                process = self._process(reader, observe, here, now_ns)
                view = self._view(reader, process)
                if copy is not None:
                    copy.read(view)
            if view is None:
                continue
            if reader.role is Role.FORKED_CHILD:
                fork = ForkedNote.read(view.notes[0].data) if view.notes else None
                forked += [(fork.parent_rank if fork else -1, note) for note in view.notes]
            elif view.rank >= 0:
                views.append(view)
        if self._budget is not None and self._budget.exceeded:
            self.faults[""] = (
                f"{self._directory}: these records together say more than those of a run do; "
                "what they say beyond that is not read"
            )
        found = [
            _snapshot(world, forked, now_ns, world_size, finished) for world in worlds_of(views)
        ]
        if found:  # what cannot be read does not say of which world it is
            found[-1] = replace(found[-1], unreadable=self._unreadable(found[-1]))
        return found

    def _unreadable(self, world: Snapshot) -> dict[int, Note]:
        """Ranks of which only the name of their record is known."""
        named = filter(None, (_OF_RANK.fullmatch(own_name(name)) for name in self.faults))
        found = sorted({int(match[1]) for match in named} - world.ranks.keys())
        size = world.world_size
        return {rank: _off(UNREADABLE) for rank in found if rank < size or not size}

    def _view(self, reader: FlightReader, process: Process) -> Rank | None:
        """Reads the record; of one that was cut short, returns what it said last."""
        if reader.cut:
            seen = self._seen.get(reader)
            if seen is None:
                return None
            if not seen.notes or not LayerOffNote.matches(seen.notes[-1]):
                seen = self._seen[reader] = replace(seen, notes=(*seen.notes, _off(CUT_SHORT)))
            return replace(seen, process=process)
        try:
            view = self._seen[reader] = reader.view(process)
        except Exception as error:
            self._failed(reader, error)
            seen = self._seen.get(reader)
            return None if seen is None else replace(seen, process=process)
        return view if process.alive else self._with_last_words(reader, view, process)

    def _with_last_words(self, reader: FlightReader, view: Rank, process: Process) -> Rank:
        """Adds what the process itself has written of the crash that ended it, as a note."""
        copy = self._copies.get(reader)
        if copy is not None:
            said = copy.told.last_words
        elif reader.node:
            said = None  # its file is on that node
        else:
            ended, said = self._written.of(reader.pid, reader.start_ticks, process)
            if ended.signal != process.signal:
                view = replace(view, process=replace(view.process, signal=ended.signal))
        if said is None:
            return view
        ended_ns = view.process.ended_ns or view.heartbeat_ns
        data = CrashNote(said.stack).data()
        note = Note(CrashNote.KIND, ended_ns, "a fatal signal", said.site, data)
        return replace(view, notes=(*view.notes, note))

    def _process(
        self, reader: FlightReader, observe: Observe | None, here: str, now_ns: int
    ) -> Process:
        if observe is None:
            return Process(alive=False)
        copy = self._copies.get(reader)
        if copy is not None:
            return copy.told.process
        if reader.node or reader.identity.get("host", here) != here:
            last_ns = max(reader.heartbeat_ns, reader.started_ns)  # the first beat may be to come
            age_s = (now_ns - last_ns) / 1e9
            return Process(alive=age_s < far_heartbeat_s(self._far_nodes))
        return observe(reader.pid, reader.start_ticks)

    @property
    def pids(self) -> frozenset[int]:
        """The processes that have a record."""
        return frozenset(reader.pid for reader in self._readers.values())


@dataclass(slots=True)
class _Copy:
    """The last reading of a record which another node reports: `view`, as of the `changes` and the
    `process` that were reported then, with the look `looked_at`. `mark`: its change mark."""

    told: ReportedCopy
    view: Rank | None = None
    seen: int = -1
    looked_at: int = -1
    process: Process | None = None
    mark: tuple[int, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything was reported since it was read."""
        return self.seen != self.told.changes

    @property
    def urgent(self) -> bool:
        """Whether more was reported than that the rank goes on calling."""
        return self.seen < self.told.urgent

    def moved(self, reader: FlightReader) -> bool:
        """Whether something of interest has happened in the rank since the last call."""
        before, self.mark = self.mark, reader.change_mark
        return self.mark != before

    @property
    def same(self) -> bool:
        """Whether `view` is as good as what would be read now."""
        return self.process is self.told.process and not self.urgent

    def read(self, view: Rank | None) -> None:
        """Keeps what was read just now."""
        self.view, self.seen, self.process = view, self.told.changes, self.told.process


def _off(why: str) -> Note:
    off = LayerOffNote("flight record")
    return Note(off.KIND, time.time_ns(), why, data=off.data())


def worlds_of(views: Iterable[Rank]) -> list[list[Rank]]:
    """Processes that belong together: the same job, and lives that overlap."""
    worlds: list[list[Rank]] = []
    for view in sorted(views, key=lambda one: one.started_ns):
        for world in reversed(worlds):
            if world[0].job == view.job and any(
                other.process.ended_ns is None or other.process.ended_ns > view.started_ns
                for other in world
            ):
                world.append(view)
                break
        else:
            worlds.append([view])
    return _torn_apart(worlds)


def _torn_apart(worlds: list[list[Rank]]) -> list[list[Rank]]:
    """Parts of one world whose ranks wait at different addresses: together they are looked at as
    one. As soon as two processes have one rank, or a group has formed, they are worlds apart."""
    merged: list[list[Rank]] = []
    for world in worlds:
        known = merged[-1] if merged else []
        if known and all(view.process.alive and not view.groups for view in (*known, *world)):
            ranks = [view.rank for view in (*known, *world)]
            sizes = {view.world_size for view in (*known, *world)}
            if len(sizes) == 1 and len(ranks) == len(set(ranks)) <= max(sizes):
                merged[-1] = sorted((*known, *world), key=lambda one: one.started_ns)
                continue
        merged.append(world)
    return merged


def _snapshot(
    world: list[Rank],
    forked: list[tuple[int, Note]],
    now_ns: int,
    world_size: int | None,
    finished: bool,
) -> Snapshot:
    ranks: dict[int, Rank] = {}
    rivals: list[Rank] = []
    for view in world:
        notes = [note for parent, note in forked if parent == view.rank]
        if notes:
            view = replace(view, notes=(*view.notes, *notes))
        taken = ranks.get(view.rank)
        # Both were there at a time, and it has not exec'ed itself.
        if (
            taken is not None
            and (taken.pid, taken.host) != (view.pid, view.host)
            and (taken.process.ended_ns is None or taken.process.ended_ns > view.started_ns)
        ):
            if taken.joins != view.joins:
                ranks[view.rank] = taken if taken.joins else view
                continue  # the other is a helper, which has inherited the name of the rank
            leaves = not view.process.alive or taken.phase < Phase.EXITING <= view.phase
            if taken.process.alive and leaves:
                taken, view = view, taken  # the one that is left is what the run is about
            rivals.append(taken)
        ranks[view.rank] = view
    size = max((view.world_size for view in world), default=0)
    return Snapshot(
        taken_ns=now_ns,
        world_size=size if world_size is None else world_size,
        ranks=dict(sorted(ranks.items())),
        rivals=tuple(rivals),
        finished=finished,
    )


def unreadable_ranks(snapshots: Iterable[Snapshot]) -> dict[int, Note]:
    """Returns the notes of ranks of which no world has anything but a record that cannot be
    read."""
    found: dict[int, Note] = {}
    for snapshot in snapshots:
        found.update(snapshot.unreadable)
    return found


def newest_ranks(snapshots: Iterable[Snapshot]) -> dict[int, Rank]:
    """The ranks of the newest world, the last; of older ones what it does not have."""
    found: dict[int, Rank] = {}
    for snapshot in snapshots:
        found.update(snapshot.ranks)
    return dict(sorted(found.items()))
