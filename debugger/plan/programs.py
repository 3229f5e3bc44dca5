"""Reads the programs that the planned ranks of a run directory have left behind.

The files are ours, but a plan may have been copied from elsewhere: what is damaged is left out, and
the program says from where on nothing is known of its rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..record.layout import AGREES_FLAG, ASYNC_FLAG, Activity, CallState, GroupState
from ..record.reading.definitions import DAMAGED, creation_of, group_of, note_of, site_of
from ..record.safe_files import open_regular, whole
from ..record.signature import CHAIN_STEP, MASK, Signature
from ..record.snapshot import Call, CallSite, Group, Note
from ..record.writing.program_writer import FILES, FOLDER
from .program import (
    Created,
    CutOff,
    Destroyed,
    Ended,
    Event,
    Made,
    Program,
    Undecided,
    Waited,
)


def read_programs(run_dir: Path) -> dict[int, Program]:
    """The program of each rank that was planned, by rank. Raises OSError where the folder of them
    cannot be read; it is empty where nothing was planned."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return {}
    signatures: dict[str, Signature] = {}
    sites: dict[CallSite, CallSite] = {}
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    found = {}
    for path in folder.glob(f"*.{FILES}"):
        if path.stem.isdigit():
            program = _Reader(int(path.stem), signatures, sites, ranks).read(path)
            found[program.rank] = program
    return dict(sorted(found.items()))


class _Counts:
    """How many calls a group or channel has had, and the chain of them; `before` the last one."""

    __slots__ = ("before", "chain", "issued")

    def __init__(self) -> None:
        self.issued = self.chain = 0
        self.before = (0, 0)


class _Reader:
    """One file. What all ranks say alike is kept once: `signatures`, `sites` and `ranks`."""

    def __init__(
        self,
        rank: int,
        signatures: dict[str, Signature],
        sites: dict[CallSite, CallSite],
        ranks: dict[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        self.rank = rank
        self._all_signatures, self._all_sites, self._all_ranks = signatures, sites, ranks
        self._world_size, self._local_rank, self._host, self._pid = 0, -1, "", 0
        self._sites: dict[int, CallSite] = {}
        self._signatures: dict[int, Signature] = {}
        self._details: dict[int, Mapping[str, Any]] = {}
        self._definitions: dict[int, Group] = {}
        self._slots: dict[int, Group] = {}
        self._counts: dict[tuple[str, int], _Counts] = {}
        self._states: dict[int, GroupState] = {}
        self._kinds: dict[int, tuple[int, int]] = {}
        self._events: list[Event] = []
        self._notes: list[tuple[int, Note]] = []
        self._undecided: list[Undecided] = []
        self._came_from: dict[int, int] = {}
        self._calls: dict[int, tuple[int, _Counts]] = {}
        self._waits: list[tuple[int, int, int]] = []
        self._ended = False
        self._enough = False

    def read(self, path: Path) -> Program:
        with open(open_regular(path), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it was ended in the middle
                try:
                    row = json.loads(line)
                    getattr(self, f"_on_{row[0]}", _nothing)(*row[1:])
                except DAMAGED:
                    self._events.append(CutOff("its record is damaged from here on"))
                    self._ended = True
                    break
        if not self._ended:
            self._events.append(CutOff("its record ends here"))
        return Program(
            rank=self.rank,
            world_size=self._world_size,
            host=self._host,
            local_rank=self._local_rank,
            pid=self._pid,
            groups={
                group.key: replace(group, state=self._states[index])
                for index, group in self._slots.items()
            },
            events=tuple(self._events),
            notes=tuple(self._notes),
            undecided=tuple(self._undecided),
            came_from=self._came_from,
            enough=self._enough,
        )

    # -- definitions ---------------------------------------------------------------------------

    def _on_rank(self, rank: int, world_size: int, local_rank: int, host: str, pid: int) -> None:
        del rank  # the file's name says it; a program may claim another one
        self._world_size, self._local_rank = whole(world_size), whole(local_rank)
        self._host, self._pid = str(host), whole(pid)

    def _on_site(self, number: int, row: list[Any]) -> None:
        site = site_of(row)
        self._sites[number] = self._all_sites.setdefault(site, site)

    def _on_signature(self, number: int, value: Any) -> None:
        text = json.dumps(value)
        known = self._all_signatures.get(text)
        if known is None:
            known = self._all_signatures[text] = Signature.from_json(text)
        self._signatures[number] = known

    def _on_detail(self, number: int, value: Mapping[str, Any]) -> None:
        self._details[number] = dict(value)

    def _on_group(self, number: int, value: Mapping[str, Any]) -> None:
        group = group_of(value)
        self._definitions[number] = Group(
            key=group.key,
            desc=group.desc,
            ranks=self._all_ranks.setdefault(group.ranks, group.ranks),
            backend=group.backend,
            state=GroupState.READY,
            timeout_s=group.timeout_s,
        )

    def _on_slot(self, index: int, definition: int) -> None:
        self._slots[index] = self._definitions[definition]
        self._states[index] = GroupState.READY

    def _on_creation(self, number: int, value: Mapping[str, Any]) -> None:
        del number
        creation = creation_of(value, self._sites.get)
        ranks = self._all_ranks.setdefault(creation.ranks, creation.ranks)
        self._events.append(Created(replace(creation, ranks=ranks)))

    def _on_note(self, number: int, value: dict[str, Any]) -> None:
        del number
        self._notes.append((len(self._events), note_of(value, self._sites.get)))

    def _on_kind(self, number: int, *row: int) -> None:
        _, signature, agree, *_ = row
        self._kinds[number] = (signature, agree)

    # -- events --------------------------------------------------------------------------------

    def _on_call(
        self,
        number: int,
        slot: int,
        kind: int,
        site: int,
        flags: int,
        thread: int,
        channel: int,
        stream: int = 0,
    ) -> None:
        signature, agree = self._kinds[kind]
        place = ("channel", channel) if channel >= 0 else ("group", slot)
        counts = self._counts.get(place)
        if counts is None:
            counts = self._counts[place] = _Counts()
        seq = counts.issued
        counts.before = (seq, counts.chain)
        counts.issued = seq + 1
        counts.chain = (counts.chain * CHAIN_STEP + agree) & MASK
        self._calls[number] = (len(self._events), counts)
        call = Call(
            number=number,
            group=self._slots[slot].key,
            seq=seq,
            signature=self._signatures[signature],
            site=self._sites.get(site),
            thread=thread,
            state=CallState.ISSUED,
            is_async=bool(flags & ASYNC_FLAG),
            agrees=bool(flags & AGREES_FLAG),
            chain=counts.chain,
        )
        self._events.append(Made(call, _stream(stream)))

    def _on_refused(self, number: int) -> None:
        at, counts = self._calls[number]
        match self._events[at:]:
            case [Made(call)] if call.number == number:
                counts.issued, counts.chain = counts.before
                self._events.pop()

    def _on_failed(self, number: int) -> None:
        at, _ = self._calls[number]
        match self._events[at : at + 1]:
            case [Made(call) as made] if call.number == number:  # else it was refused before
                self._events[at] = replace(made, call=replace(call, state=CallState.FAILED))

    def _on_came(self, number: int, source: int) -> None:
        made = self._events[self._calls[number][0]]
        if isinstance(made, Made):
            key = made.call.group
            ranks = next(group.ranks for group in self._slots.values() if group.key == key)
            self._came_from[number] = ranks[source]

    def _on_wait(self, number: int, site: int, stream: int = 0) -> None:
        self._events.append(Waited(number, self._sites.get(site), _stream(stream)))

    def _on_destroyed(self, index: int, site: int) -> None:
        self._states[index] = GroupState.DESTROYED
        self._events.append(Destroyed(self._slots[index].key, self._sites.get(site)))

    def _on_waits(self, activity: int, detail: int, site: int) -> None:
        self._waits.append((activity, detail, site))

    def _on_left(self) -> None:
        if self._waits:
            self._waits.pop()

    def _on_undecided(self, site: int, what: str) -> None:
        said = Undecided(self._sites.get(site) or CallSite("", 0, ""), str(what))
        if said not in self._undecided:
            self._undecided.append(said)

    def _on_enough(self) -> None:
        self._enough = True

    def _on_ended(self, exit_code: int | None, signal: int | None) -> None:
        if not self._ended:
            self._ended = True
            self._events.append(Ended(exit_code, signal))

    def _on_cut(self, why: str, site: int, waits: bool = False, joins: bool = False) -> None:
        """By whoever ran the ranks. `waits`: the rank was in something that never ends; that it was
        in a wait for a call is on record only where the program itself waits for it. `joins`: its
        main thread waited for its others, one of which was in that."""
        if self._ended:
            return
        self._ended = True
        found = self._sites.get(site)
        if waits and self._waits:
            activity, detail, site = self._waits[-1]
            found = self._sites.get(site, found)
            about = self._details.get(detail, {})
            self._events.append(CutOff(str(why), found, Activity(activity), about))
            return
        match self._events[-1:]:
            case [Made(call)] if waits and call.is_async and (call.thread or not joins):
                self._events.append(Waited(call.number, call.site))
        self._events.append(CutOff(str(why), found, stuck=bool(waits), joins=bool(joins)))


def _stream(number: int) -> int:
    return whole(number) if number >= 0 else -1


def _nothing(*row: Any) -> None:
    """A line of a newer version."""
    del row
