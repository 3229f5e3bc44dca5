"""Reads a flight record: live, finished, torn or foreign.

A reader never writes, never blocks the rank, and takes nothing that it cannot prove whole: a torn
slot reads as absent. What is not a flight record, or of another version, is a `FlightError` with
one sentence.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, make_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from .. import layout, steady_clock
from ..definitions import Budget, Definitions
from ..layout import Activity, CallState, GroupState, Phase, Role
from ..limits import MOST_RANKS
from ..lines import PackedLines, place_at
from ..notes import ReplicasNote
from ..replicas import ReplicaFiles
from ..safe_files import object_of
from ..signature import MASK
from ..snapshot import (
    Call,
    Channel,
    Group,
    GroupKey,
    LineLog,
    Place,
    Process,
    Rank,
    Replicas,
    Surprise,
    Timing,
    Wait,
)
from ..writing.branch_writer import file_name
from . import copies
from .branch_file import BranchFile
from .ring import MESSAGES, OpenMaps, RingReader
from .ring import FlightError as FlightError

_T = TypeVar("_T")
UNKNOWN_GROUP: GroupKey = ("?", 0)
_PHASES = {int(one): one for one in Phase}
_RUNNING, _EXITING, _PAUSED, _IN_CALL = (
    Phase.RUNNING,
    Phase.EXITING,
    int(Activity.PAUSED),
    Activity.IN_CALL,
)
_GROUP_STATES = {int(one): one for one in GroupState}
_CALL_STATES = {int(one): one for one in CallState}
"""To ask an enumeration for its member takes three times as long."""


def thawed(frozen: type[_T]) -> type[_T]:
    """The twin of a frozen dataclass with slots: `made = twin(...); made.__class__ = frozen`.

    A frozen dataclass sets each of its fields by a call, which takes several times as long as an
    assignment; with one look at 16,384 ranks 65,536 of them are made. So what is read of a rank is
    an object of a twin first, which is not frozen, and becomes one of the frozen class as soon as
    it is complete: before anybody else has it.
    """
    rows: list[tuple[str, Any, Any]] = []
    for one in fields(frozen):  # type: ignore[arg-type]
        defaults = {"default": one.default, "default_factory": one.default_factory}
        given: dict[str, Any] = {
            name: value for name, value in defaults.items() if value is not MISSING
        }
        rows.append((one.name, one.type, field(**given)))
    return make_dataclass(frozen.__name__, rows, slots=True)


_RANK, _GROUP, _WAIT, _CALL = thawed(Rank), thawed(Group), thawed(Wait), thawed(Call)
_OF_CALLS = 1 << 63
"""Beside the serial of a wait that is a thread's word: those of other waits are far from it."""


class RecordedLines:
    """The lines of a group or channel, read when they are asked for. Implements `LineLog`.

    Where surprises are lost, those of the calls that the ring still has stand for them. The last
    call is looked at there, too: its slot is written before its surprise.
    """

    def __init__(self, reader: FlightReader, mark: tuple[int, int], last: int, call: int) -> None:
        """`last`: the last surprise, `call`: the last call, each by its number + 1."""
        self._reader = reader
        self.mark = mark
        self._last, self._call = last, call

    @functools.cached_property
    def surprises(self) -> Sequence[Surprise]:
        known = self._reader.surprises(self._last, self.mark[0])
        found: Sequence[Surprise] = known or ()
        if known is None:
            found = PackedLines([*self._reader.recent_places(self._call - 1)][::-1]).surprises
        for seq, place in islice(self._reader.recent_places(self._call - 1), 1):
            if found and seq > found[-1].seq and place_at(found, seq) != place:
                return [*found, Surprise(seq, place, 1)]
        return found


class FlightReader(RingReader):
    """A flight record, mapped. Implements `snapshot.History` for its rank."""

    def __init__(
        self,
        path: Path,
        steady: bool = False,
        budget: Budget | None = None,
        maps: OpenMaps | None = None,
    ) -> None:
        """`steady`: as for `Records`. `budget`: what it shares with other records; `maps`, too."""
        super().__init__(path, maps)
        self.node = copies.node_of(path.name)
        self._steady = steady and not self.node
        self._definitions = Definitions(budget)
        self._replica_files: ReplicaFiles | None = None
        self._header: int | None = None
        self._waited: dict[int, Call | None] = {}
        self.keep_waits = False
        """Whether the calls that threads were in at the last `view` are kept from there: of records
        that are mapped for a moment only, and do not change before the next one."""
        self.refresh_header()
        name = copies.prefix(self.node) + file_name(self.pid)
        self._branches = BranchFile(path.parent / name)

    def close(self) -> None:
        """Unmap the file."""
        if self._mapped is not None:
            self._mapped.close()

    # -- header --------------------------------------------------------------------------------

    def refresh_header(self) -> None:
        """Read again who this is: a process learns its rank late, and may join another world."""
        end = layout.IDENTITY_OFFSET + layout.IDENTITY_BYTES
        written = (self._map[: layout.HEADER.size], self._map[layout.IDENTITY_OFFSET : end])
        digest = hash(written)  # the bytes themselves are 4 KB a rank
        if digest == self._header:
            return
        self._header = digest
        (
            _,
            _,
            self.pid,
            self.rank,
            self.world_size,
            self.local_rank,
            self.restart_count,
            role,
            self.max_restarts,
            self._started_ns,
            self.wall_offset_ns,
            _,
            self.start_ticks,
        ) = layout.HEADER.unpack_from(self._map, 0)
        self.role = Role(role) if role in tuple(Role) else Role.UNKNOWN
        if self.rank >= MOST_RANKS:
            self.rank = -1  # damaged: it reads as a process that does not know its rank
        if not 0 < self.world_size <= MOST_RANKS:
            self.world_size = -1
        self.identity: Mapping[str, Any] = _identity(written[1].rstrip(b"\0"))
        here = socket.gethostname()
        if self._steady and self.identity.get("host", here) == here:
            # Its own offset is of the wall clock when it began, which may have been set since.
            self.wall_offset_ns = steady_clock.offset_ns()
        self.started_ns = self._started_ns + self.wall_offset_ns

    @property
    def heartbeat_ns(self) -> int:
        """The time when the rank's heartbeat last ran (Unix time); 0: never."""
        beat = int(layout.U64.unpack_from(self._map, layout.DYNAMIC_OFFSET)[0])
        return beat + self.wall_offset_ns if beat else 0

    @property
    def environment(self) -> Mapping[str, str]:
        """The part of its environment that the rank has put on record, as of the last `view`."""
        return self._definitions.environment

    # -- the view of a rank --------------------------------------------------------------------

    def view(self, process: Process) -> Rank:
        """Returns what is known of this rank now."""
        self._waited = {}
        mapped, inside = self._map, self._thread_calls()
        (
            heartbeat_ns,
            counted,
            heap_used,
            phase,
            _,
            exit_code,
            exiting_ns,
            serial,
            free,
            _,
            free_serial,
            location,
        ) = layout.DYNAMIC.unpack_from(mapped, layout.DYNAMIC_OFFSET)
        calls = max(counted, max(inside) >> layout.PHASE_BITS)
        if self._window is not None:
            self._window.load(*self._definitions.unread(heap_used))
        self._definitions.read(mapped, heap_used, self.wall_offset_ns)
        if process.ended_ns is None and exiting_ns and not process.alive:
            process = replace(process, ended_ns=exiting_ns + self.wall_offset_ns)
        phase = _PHASES.get(phase, _RUNNING)
        serial = (serial + sum(inside)) & MASK
        waits = self._read_waits(inside)
        newest = self._newest(calls)
        if self.keep_waits:
            numbers = [one.call for one in waits if one.call is not None]
            self._waited = {number: self.call(number) for number in numbers}
        made = _RANK(
            rank=self.rank,
            world_size=self.world_size,
            pid=self.pid,
            process=process,
            host=str(self.identity.get("host", "")),
            job=str(self.identity.get("job", "")),
            joins=self.identity.get("joins") is not False,
            local_rank=self.local_rank,
            restart_count=self.restart_count,
            max_restarts=self.max_restarts,
            started_ns=self.started_ns,
            phase=phase,
            heartbeat_ns=heartbeat_ns + self.wall_offset_ns if heartbeat_ns else 0,
            calls=calls,
            exit_code=exit_code if phase >= _EXITING else None,
            exiting_ns=exiting_ns + self.wall_offset_ns if exiting_ns else 0,
            layer_serial=serial,
            free_threads=free if free_serial == serial else -1,
            location=self._definitions.sites.get(location),
            groups=self._read_groups(newest),
            channels=self._read_channels(newest),
            creations=tuple(self._definitions.creations),
            waits=waits,
            notes=tuple(self._definitions.notes),
            replicas=self._replicas(),
            history=self,
            branches=self._branches,
            node=self.node,
        )
        made.__class__ = Rank
        return made

    def _replicas(self) -> tuple[Replicas, ...]:
        notes = ReplicasNote.among(self._definitions.notes)
        if not notes:
            return ()
        if self._replica_files is None:
            self._replica_files = ReplicaFiles(self.path.parent, copies.prefix(self.node))
        files = (
            self._replica_files.announced(
                known.file, self._definitions.sites.get, self.wall_offset_ns
            )
            for note in notes
            if (known := ReplicasNote.read(note.data)) is not None
        )
        return tuple(found for found in files if found is not None)

    def _read_groups(self, newest: tuple[Any, ...] | None) -> dict[GroupKey, Group]:
        """`newest`: the slot of the rank's latest call, which may have the counts of its group."""
        groups: dict[GroupKey, Group] = {}
        mapped = self._map
        if newest is not None and newest[3] in MESSAGES:
            newest = None
        for index in range(layout.GROUPS):
            at = layout.GROUPS_OFFSET + index * layout.GROUP_BYTES
            definition, state, issued, _, chain, exact, balance, last = layout.GROUP.unpack_from(
                mapped, at
            )
            if not definition:
                break
            text = self._definitions.groups.get(definition)
            if text is None or state not in _GROUP_STATES:
                continue
            if newest is not None and newest[1] == index and newest[0] > last:
                last, issued = newest[0], (newest[10] + 1) & MASK
                chain, exact, balance = newest[11:14]
            groups[text.key] = made = _GROUP(
                key=text.key,
                desc=text.desc,
                ranks=text.ranks,
                backend=text.backend,
                state=_GROUP_STATES[state],
                issued=issued,
                chain=chain,
                exact=exact,
                balance=balance,
                last=last - 1 if last and issued else None,
                timeout_s=text.timeout_s,
                lines=self._read_lines(at + layout.GROUP_LINES_AT, last) if issued else None,
            )
            made.__class__ = Group
        return groups

    def _group_key(self, index: int) -> GroupKey:
        if index >= layout.GROUPS:
            return UNKNOWN_GROUP
        at = layout.GROUPS_OFFSET + index * layout.GROUP_BYTES
        text = self._definitions.groups.get(layout.GROUP.unpack_from(self._map, at)[0])
        return UNKNOWN_GROUP if text is None else text.key

    def _read_channels(self, newest: tuple[Any, ...] | None) -> tuple[Channel, ...]:
        channels = []
        mapped = self._map
        if newest is not None and newest[3] not in MESSAGES:
            newest = None
        for index in range(layout.CHANNELS):
            at = layout.CHANNELS_OFFSET + index * layout.CHANNEL.size
            definition, taken, issued, chain, last = layout.CHANNEL.unpack_from(mapped, at)
            if not definition:
                break
            if newest is not None and newest[9] == index and newest[0] > last:
                issued, chain, last = (newest[10] + 1) & MASK, newest[11], newest[0]
            text = self._definitions.channels.get(definition)
            if text is not None:
                lines = self._read_lines(at + layout.CHANNEL_LINES_AT, last) if issued else None
                last = last - 1 if last else None
                counts = {"issued": issued, "chain": chain, "last": last, "taken": taken}
                channels.append(replace(text, lines=lines, **counts))
        return tuple(channels)

    def _read_lines(self, at: int, call: int) -> LineLog | None:
        for _ in range(3):
            count, last, mark, again = layout.LINES.unpack_from(self._map, at)
            if count == again:
                known = 0 < count < layout.NO_LINES
                return RecordedLines(self, (count, mark), last, call) if known else None
        return None

    def surprises(self, last: int, count: int) -> list[Surprise] | None:
        """Returns so many surprises up to the one with this number + 1, oldest first; None where
        not all of them are on record."""
        found: list[Surprise] = []
        self._definitions.read(self._map, self.noted_bytes, self.wall_offset_ns)
        if count > layout.SURPRISES:
            return None
        for _ in range(count):
            at = layout.SURPRISES_OFFSET + (last - 1) % layout.SURPRISES * layout.SURPRISE.size
            mark, seq, site, period, previous, again = layout.SURPRISE.unpack_from(self._map, at)
            if not mark & 0xFFFFFFFF == again == last:
                return None
            if not found or seq < found[-1].seq:  # else the call was refused
                found.append(Surprise(seq, self._definitions.places.get(site), period))
            last = previous
        found.reverse()
        sound = all(0 < one.period <= one.seq - found[0].seq + 1 for one in found)
        return found if sound else None

    def recent_places(self, last: int) -> Iterator[tuple[int, Place | None]]:
        """Yields sequence number and place of the calls in the ring, from the group's or channel's
        last one backwards."""
        for _, row in self._walk(last):
            yield row[10], self._place(row)

    def _place(self, row: tuple[Any, ...]) -> Place | None:
        unplaced = row[5] & layout.UNPLACED_FLAG
        return None if unplaced else self._definitions.places.get(row[7])

    def _read_waits(self, calls: Sequence[int]) -> tuple[Wait, ...]:
        """`calls`: the threads' words."""
        waits = []
        mapped = self._map
        for index in range(layout.THREADS):
            at = layout.THREADS_OFFSET + index * layout.THREAD_BYTES
            for _ in range(3):
                row = layout.THREAD.unpack_from(mapped, at)
                if row[0] == row[10]:
                    break
            version, activity, inferred, _, native, call, detail, site, since, serial, again = row
            if version == 0:
                break
            if version != again or activity > _PAUSED:
                continue
            if not activity:
                inside = self._read_call_wait(native, calls[index], index)
                if inside is not None:
                    waits.append(inside)
                continue
            waits.append(
                Wait(
                    thread=native,
                    activity=Activity(activity),
                    serial=serial,
                    since_ns=since + self.wall_offset_ns,
                    call=call - 1 if call else None,
                    detail=self._definitions.details.get(detail, {}),
                    site=self._definitions.sites.get(site),
                    inferred=bool(inferred),
                    guessed=inferred > layout.SEEN_IDLE,
                    asks=inferred == layout.SEEN_ASKING,
                )
            )
        return tuple(waits)

    def _read_call_wait(self, native: int, word: int, index: int) -> Wait | None:
        """Returns the wait of a thread whose word says what it waits for; None where it waits for
        nothing."""
        wait = self._word_wait(index, word)
        if wait is None:
            return None
        call, site, since_ns = wait
        made = _WAIT(
            thread=native,
            activity=_IN_CALL,
            serial=_OF_CALLS | word,
            since_ns=since_ns + self.wall_offset_ns,
            call=call - 1 if call else None,
            detail={},
            site=self._definitions.sites.get(site),
        )
        made.__class__ = Wait
        return made

    # -- history -------------------------------------------------------------------------------

    def call(self, number: int) -> Call | None:
        """The call with this number, or None when it was overwritten or is torn."""
        if number in self._waited:
            return self._waited[number]
        row = self._row(number)
        if row is None:
            return None
        offset = self.wall_offset_ns
        state = _CALL_STATES.get(row[4], CallState.ISSUED)
        if state is not CallState.FAILED:
            if row[16]:
                state = CallState.COMPLETED
            elif row[15]:
                state = CallState.STARTED
        if self._window is not None and row[6] == layout.VOLATILE_SIGNATURE:
            self._window.load(layout.volatile_at(number), layout.VOLATILE_BYTES)
        started_ns = row[15]
        if state is CallState.COMPLETED:
            started_ns = started_ns or row[14]
        made = _CALL(
            number=number,
            group=self._group_key(row[1]),
            seq=row[10],
            signature=self._definitions.signature(self._map, row[6], row[3], number),
            site=self._definitions.sites.get(row[7]),
            place=self._place(row),
            thread=row[2],
            state=state,
            is_async=bool(row[5] & layout.ASYNC_FLAG),
            agrees=bool(row[5] & layout.AGREES_FLAG),
            bounded=bool(row[5] & layout.BOUNDED_FLAG),
            chain=row[11],
            exact=row[12],
            balance=row[13],
            issued_ns=row[14] + offset if row[14] else 0,
            started_ns=started_ns + offset if started_ns else 0,
            completed_ns=row[16] + offset if row[16] else 0,
        )
        made.__class__ = Call
        return made

    def _last(self, group: GroupKey) -> int | None:
        found = self._read_groups(self._newest(self._calls())).get(group)
        return found.last if found else None

    def at(self, group: GroupKey, seq: int) -> Call | None:
        """The collective of the group with this sequence number."""
        for kept in self._waited.values():
            if kept and kept.seq == seq and kept.group == group and kept.signature.peer is None:
                return kept
        for number, row in self._walk(self._last(group)):
            if row[10] == seq:
                return self.call(number)
            if row[10] < seq:
                return None
        return None

    def message(self, channel: Channel, seq: int) -> Call | None:
        """The send or receive with this number in its channel."""
        for number, row in self._walk(channel.last):
            if row[10] == seq:
                return self.call(number)
        return None

    def recent(self, count: int, group: GroupKey | None = None) -> Sequence[Call]:
        """The last calls, oldest first."""
        calls: list[Call] = []
        if group is None:
            total = self._calls()
            for number in range(total - 1, max(-1, total - 1 - count), -1):
                call = self.call(number)
                if call is None:
                    break
                calls.append(call)
        else:
            for number, _ in self._walk(self._last(group)):
                call = self.call(number)
                if call is None or len(calls) == count:
                    break
                calls.append(call)
        return calls[::-1]

    def timings(self, numbers: Iterable[int]) -> Sequence[Timing]:
        """Returns when those of these calls were made that are still on record, and that the
        backend did not refuse: about a microsecond and a half each, since nothing else is read of
        them."""
        found = []
        groups: dict[int, GroupKey] = {}
        messages: dict[int, tuple[str, int, int]] = {}
        offset = self.wall_offset_ns
        for number in numbers:
            row = self._row(number)
            if row is None or row[5] & layout.REFUSED_FLAG or not row[14]:
                continue
            group = groups.get(row[1])
            if group is None:
                group = groups[row[1]] = self._group_key(row[1])
            message = None
            if row[9] != layout.NO_CHANNEL:
                message = messages.get(row[9])
                if message is None:
                    text = None
                    if row[9] < layout.CHANNELS:
                        at = layout.CHANNELS_OFFSET + row[9] * layout.CHANNEL.size
                        definition = layout.CHANNEL.unpack_from(self._map, at)[0]
                        text = self._definitions.channels.get(definition)
                    message = ("?", -1, 0) if text is None else (text.op, text.peer, text.tag)
                    messages[row[9]] = message
            done = row[16]
            # A synchronous call that has started later goes on in a GPU's stream.
            handed_over = row[15] > row[14]
            blocks = not row[5] & layout.ASYNC_FLAG and not handed_over
            found.append(
                Timing(
                    number,
                    group,
                    message,
                    row[10],
                    blocks,
                    row[14] + offset,
                    done + offset if done else 0,
                )
            )
        return found

    def chains_after(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        """chain, exact and balance after that many collectives of the group."""
        if issued == 0:
            return (0, 0, 0)
        if issued % layout.CHECKPOINT_EVERY == 0:
            checkpoint = self._checkpoint(group, issued)
            if checkpoint is not None:
                return checkpoint
        for _, row in self._walk(self._last(group)):
            if row[10] == issued - 1:
                return (row[11], row[12], row[13])
            if row[10] < issued - 1:
                return None
        return None

    def _checkpoint(self, group: GroupKey, issued: int) -> tuple[int, int, int] | None:
        for index in range(layout.GROUPS):
            at = layout.GROUPS_OFFSET + index * layout.GROUP_BYTES
            if not layout.GROUP.unpack_from(self._map, at)[0]:
                return None
            if self._group_key(index) == group:
                slot = issued // layout.CHECKPOINT_EVERY % layout.CHECKPOINTS
                at = layout.CHECKPOINTS_OFFSET + (
                    (index * layout.CHECKPOINTS + slot) * layout.CHECKPOINT.size
                )
                count, chain, exact, balance = layout.CHECKPOINT.unpack_from(self._map, at)
                return (chain, exact, balance) if count == issued else None
        return None


_identity = functools.lru_cache(maxsize=64)(object_of)
"""Reads an identity; the ranks of a node, which are read one after the other, may say the same."""
