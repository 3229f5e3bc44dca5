"""Keeps this process's flight record: knows the texts, the groups and the line that called.

There is one `Recorder` a process. When it fails (a full disk, a bug), it says so once and the
layer goes on without it: training never stops because of its observer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from ...errors.in_ranks import FindingRaised, error_of
from ...record import layout, wording
from ...record.layout import Activity, Definition, GroupState
from ...record.notes import (
    LayerOffNote,
    LeftCallNote,
    NoteData,
    OwnFindingNote,
    PairedNote,
    PartOffNote,
    WithoutGradientNote,
)
from ...record.ops import OP_CODES, OP_NAMES
from ...record.secret_words import allowed_variables, masked
from ...record.signature import (
    ANY_SOURCE,
    Signature,
    agreement_hash,
    exact_hash,
    hash64,
    split_contribution,
)
from ...record.wording import finding_line
from ...record.writing.slots import CallDescription, ChannelSlot, GroupSlot
from ...record.writing.writer import FlightWriter
from ..log import rank_log
from ..log.rank_log import is_interruption, report_own_fault
from . import call_site, frames, lost_connections, waiting
from .exception_text import name_of, titled
from .waiting import BackendWaits, NoVerdict, WaitFunction

_MOST_SITES = 10_000
_MOST_LEFT = 256
ORDINARY = (StopIteration, StopAsyncIteration, FindingRaised)
"""Exceptions that leave calls though nothing has gone wrong there."""
LinesInGraph = Callable[[FrameType], Sequence[tuple[str, int, str]]]
_OWN, _USER = call_site.OWN, call_site.USER


Facts = tuple[Any, ...]
"""What tells distinct calls of a method apart: see `describe`."""


@dataclass(slots=True)
class Known(CallDescription):
    """A distinct call as this layer treats it: with how to wait for it."""

    counted: GroupSlot | None
    """The group whose collective it is; None: a message."""
    wait: WaitFunction
    text: str
    """The signature, as JSON."""
    key: Facts
    """The `Method.key` of such a call."""
    streams: bool
    """Whether its tensors are a GPU's: then it goes on after a wait for it has returned."""
    took: Callable[[Any], None] | None
    """Puts on record whose message a receive from any source has taken, as its work says."""
    plain: bool
    """Whether its end is no more than a time."""


@dataclass(eq=False)
class GroupRecord:
    """A group under observation: its slot, its ranks, and the distinct calls seen on it."""

    name: str
    desc: str
    incarnation: int
    ranks: tuple[int, ...]
    group_rank: int
    slot: GroupSlot
    backend: str
    timeout_s: float
    known: defaultdict[str, dict[Facts, Known]] = field(default_factory=lambda: defaultdict(dict))
    """By op, and by the `Method.key` of a call."""
    distinct_calls: int = 0
    channels: dict[tuple[str, int, int], ChannelSlot] = field(default_factory=dict)
    guard: Any = None
    """The `agreement.collectives.GroupGuard` that is asked before each collective, at DETAIL."""
    pairs: Callable[[Known, int, Any, bool, partial[Any]], Any] | None = None
    """The guard that is asked before each message, at DETAIL."""
    inspect: Callable[..., Callable[[], None] | None] | None = None
    """The check of the data of each call: see `checks.pipeline`."""
    holds: bool = False
    """Whether buffers in flight are looked at below DETAIL, too."""
    kept: bool = False
    """Whether `timeouts` keeps the timeout in place of the backend."""
    keeper: Any = None
    """The same guard, at every level."""

    def __post_init__(self) -> None:
        self.shown_name = wording.group_name(self.name, self.desc)

    def keeps(self, timeout: timedelta) -> bool:
        """The group has this timeout from now on; whether it is kept from the backend."""
        self.timeout_s = timeout.total_seconds()
        return self.kept

    def place(self, seq: int) -> str:
        """`#17 of group "tp"`."""
        return wording.place(self.name, self.desc, seq)

    def place_of(self, signature: Signature, seq: int) -> tuple[str, int | None]:
        """The same behind a space, and `seq`; "" and None for a message, which has no number."""
        return ("", None) if signature.peer is not None else (f" {self.place(seq)}", seq)


class Recorder:
    """The flight record of this process, in the words of the layer above it."""

    writer: FlightWriter
    world: GroupRecord | None
    sites: dict[tuple[int, ...], tuple[tuple[CodeType, CodeType], int]]
    """Ids of the user's lines by instruction: address of the code, and offset; where an installed
    package made the call, by its instruction, too. Keeps the codes. Negative: there the frame's
    line says nothing, and the graph below tells (see `_in_graph`)."""

    def __init__(
        self, writer: FlightWriter, identity: Mapping[str, Any], verdict: NoVerdict | None = None
    ) -> None:
        """`verdict`: what may end the waits of this process, if anything does."""
        self.waits = BackendWaits(verdict or NoVerdict())
        self.lines_in_graph: LinesInGraph = lambda _frame: ()
        """The lines of a call that the code of a graph makes, innermost first."""
        self.off: set[str] = set()
        """Parts of the layer that have failed, and are switched off."""
        self.start(writer, identity)

    def start(self, writer: FlightWriter, identity: Mapping[str, Any]) -> None:
        """Begin, or begin anew in a forked child, with an empty record."""
        self.writer = writer
        self.world = None
        self._identity = dict(identity)
        self.sites = {}
        self._lines: dict[int, tuple[str, int, str, str]] = {}
        self._shown_names: dict[Any, str] = {}
        self._incarnations: dict[str, int] = {}
        self.lost_call: lost_connections.LostCall | None = None
        self.reported: set[tuple[str, int]] = set()
        """Kinds and lines of what this process has found itself, where the run goes on."""
        self._namesakes: dict[tuple[int, str], int] = {}
        self._creations = 0
        self._left: Counter[tuple[str, str, int]] = Counter()
        """The calls that exceptions have left, by function, error and line."""
        self._blind = False
        writer.identify(self._identity)
        self._record_environment()

    def claim(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        restart_count: int,
        job: str,
        joins: bool,
        max_restarts: int = 0,
    ) -> None:
        """Say which rank of which job this process is; `joins`: it makes a group as that rank."""
        self._identity.update(job=job, joins=joins)
        self.writer.identify(self._identity)
        self.writer.claim(rank, world_size, local_rank, restart_count, max_restarts)
        self._record_environment()  # which the program may have completed
        rank_log.claimed()

    def _record_environment(self) -> None:
        self.writer.define(Definition.ENVIRONMENT, json.dumps(allowed_variables(os.environ)))

    @property
    def job(self) -> str:
        """The text that tells this process's world from others that its run may have."""
        return str(self._identity.get("job", ""))

    # -- lines ---------------------------------------------------------------------------------

    def site(self, frame: FrameType | None, of_another: bool = False) -> int:
        """The id of the user's line at or above this frame; 0 when there is none. `of_another`:
        the frame is of a thread that may run meanwhile."""
        # `call_site.find`, without the cost of calling it for the usual case.
        kinds = call_site.kinds
        found = frame
        while found is not None and kinds.get(found.f_code.co_filename) == _OWN:
            found = frames.caller(found) if of_another else found.f_back
        library = None
        if found is None or kinds.get(found.f_code.co_filename) != _USER:
            # A file of torch's or ours may be met here for the first time: it is no package's.
            while found is not None and call_site.frame_kind(found.f_code.co_filename) == _OWN:
                found = frames.caller(found) if of_another else found.f_back
            library = found
            found = call_site.find(found, of_another)
            if found is None:
                found = call_site.of_thread(_main_ident())
            elif call_site.frame_kind(found.f_code.co_filename) != _USER:
                found = call_site.waits_for(found, _main_ident()) or found
            if found is None:
                return 0
        # By instruction, not by line: looking up a line number takes longer in longer functions.
        code = found.f_code
        key: tuple[int, ...] = (id(code), found.f_lasti)
        if library is not None:
            if library is found or call_site.frame_kind(found.f_code.co_filename) != _USER:
                library = None
            else:
                key = (*key, id(library.f_code), library.f_lasti)
        known = self.sites.get(key)
        if known is not None:
            number = known[1]
            if number >= 0 or of_another:
                return abs(number)
            return self._in_graph(frame, found) or -number
        by, codes = "", (code, code)
        if library is not None:
            by = call_site.through(library.f_code.co_filename, library.f_lineno)
            codes = (code, library.f_code)
        number = self.site_at(code.co_filename, found.f_lineno, code.co_name, by)
        if len(self.sites) > _MOST_SITES:
            self.sites.clear()  # a program that makes its code as it goes
        # The references keep the codes' ids their own.
        # Negative: the line is in the graph, which only the thread itself can look at.
        is_compiled = call_site.is_compiled(code)
        self.sites[key] = (codes, -number if is_compiled else number)
        in_graph = self._in_graph(frame, found) if is_compiled and not of_another else 0
        return in_graph or number

    def _in_graph(self, frame: FrameType | None, compiled: FrameType) -> int:
        """The line that a call has in a function which torch.compile has compiled; 0: not known."""
        graph = call_site.graph_below(frame, compiled)
        if graph is None:
            return 0
        key = (id(graph.f_code), graph.f_lasti)
        known = self.sites.get(key)
        if known is None:
            lines = self.lines_in_graph(graph)
            kinds = ((call_site.frame_kind(line[0]), line) for line in lines)
            line = next((line for kind, line in kinds if kind == _USER), None)
            number = self.site_at(*line) if line is not None else 0
            known = self.sites[key] = ((graph.f_code, graph.f_code), number)
        return known[1]

    def safe_site(self, frame: FrameType | None) -> int:
        """`site`, for places where nobody else catches what goes wrong in it."""
        try:
            return self.site(frame)
        except Exception as error:
            report_own_fault("recording of lines", error)
            return 0

    def site_at(
        self,
        file: str,
        line: int,
        function: str,
        through: str = "",
        callers: Sequence[tuple[str, int, str]] = (),
    ) -> int:
        """The id of this line, of the package's line `through` which it made a call, and of the
        lines that led to it."""
        row: list[Any] = [file, line, function]
        if through or callers:
            row.append(through)
        if callers:
            row.append(callers)
        number = self.writer.define(Definition.SITE, json.dumps(row))
        if number:  # 0: there was no room for it
            self._lines[number] = (file, line, function, through)
        return number

    def called(self, site: int, callers: Sequence[FrameType]) -> int:
        """The id of this line as these frames have led to it."""
        if not site or not callers:
            return site
        rows = [(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in callers]
        return self.site_at(*self._lines[site], rows)

    def function_of(self, site: int) -> tuple[str, str]:
        """File and function of a line by its id."""
        file, _, function, _ = self._lines.get(site, ("", 0, "", ""))
        return file, function

    # -- groups --------------------------------------------------------------------------------

    def new_group(
        self,
        name: str,
        desc: str,
        ranks: Sequence[int],
        group_rank: int,
        backend: str,
        timeout_s: float | None,
    ) -> GroupRecord | None:
        """A group that is being created; None when the record has no room for it."""
        incarnation = self._incarnations.get(name, 0)
        self._incarnations[name] = incarnation + 1
        slot = self.writer.add_group(
            {
                "name": name,
                "incarnation": incarnation,
                "desc": desc,
                "ranks": list(ranks),
                "backend": backend,
                "timeout_s": timeout_s,
            }
        )
        if slot is None:
            return None
        record = GroupRecord(
            *(name, desc, incarnation, tuple(ranks), group_rank, slot, backend),
            timeout_s=timeout_s or 1800.0,  # as torch's, of a group that was given none
        )
        self._shown_names[name, incarnation] = record.shown_name
        if desc == "default_pg":
            self.world = record
            self._creations = 0
        return record

    def namesakes(self, record: GroupRecord) -> str:
        """Returns the world of this process that the group is in, and the number of its name there:
        the same on all of its ranks, although a process counts only groups that it is in."""
        world = self.world.incarnation if self.world else 0
        key = (world, record.name)
        number = self._namesakes.get(key, 0)
        self._namesakes[key] = number + 1
        return f"{world}.{number}"

    def creation(self, name: str, ranks: Sequence[int], backend: str, site: int) -> None:
        """A group creation that all ranks of the world must take part in, in the same order."""
        world = self.world
        kept = self.writer.add_creation(
            {
                "index": self._creations,
                "name": name,
                "incarnation": self._incarnations.get(name, 0),
                "world": world.incarnation if world else 0,
                "ranks": list(ranks),
                "backend": backend,
                "site": site,
                "world_seq": world.slot.issued if world else 0,
                "t_ns": time.monotonic_ns(),
            }
        )
        if not kept:
            self.recording_is_off("recording of group creations, for want of room,")
        self._creations += 1

    def group_ready(self, record: GroupRecord) -> None:
        """The group can be used."""
        self.writer.group_state(record.slot, GroupState.READY)
        about = {"ranks": record.ranks, "backend": record.backend}
        rank_log.write("group_created", "debug", group=record.shown_name, **about)

    def group_destroyed(self, record: GroupRecord) -> None:
        """The group is gone; this rank will not take part in its calls any more."""
        self.writer.group_state(record.slot, GroupState.DESTROYED)
        rank_log.write("group_destroyed", "debug", group=record.shown_name)

    # -- calls ---------------------------------------------------------------------------------

    def know(
        self, group: GroupRecord, signature: Signature, on_cpu: bool | None, key: Facts
    ) -> Known:
        """Returns the ids and hashes of a call whose key was not seen before on this group."""
        op = signature.op
        channel = None
        if signature.peer is not None:
            channel = self._channel(group, op, signature.peer, signature.tag)
        text = signature.to_json()
        volatile = None
        if self.writer.heap_half_full:
            number = layout.VOLATILE_SIGNATURE
            volatile = text.encode()
            if group.distinct_calls > 4 * layout.RING:
                for calls in group.known.values():
                    calls.clear()  # signatures that never repeat must not fill the memory
                group.distinct_calls = 0
        else:
            number = self.writer.define(Definition.SIGNATURE, text)
        if channel is not None:
            agree = exact = hash64((signature.dtypes, signature.counts))
        else:
            agree = agreement_hash(signature)
            exact = exact_hash(signature)
        wait = self.waits.choose(group.backend, on_cpu, channel is not None)
        if group.kept and wait is waiting.whole:
            wait = waiting.long
        from_any = signature.peer == ANY_SOURCE
        took = partial(self._took, group, signature.tag) if from_any else None
        known = Known(
            op_code=OP_CODES[op],
            signature_id=number,
            agree=agree,
            exact=exact,
            contribution=split_contribution(signature, group.group_rank),
            channel=channel,
            volatile=volatile,
            counted=group.slot if channel is None else None,
            wait=wait,
            streams=on_cpu is False,
            text=text,
            key=key,
            took=took,
            plain=on_cpu is not False and took is None,
        )
        group.known[op][key] = known
        group.distinct_calls += 1
        return known

    def _channel(self, group: GroupRecord, op: str, peer: int, tag: int) -> ChannelSlot:
        key = (op, peer, tag)
        if key not in group.channels:
            about = {"name": group.name, "incarnation": group.incarnation}
            about.update(op=op, peer=peer, tag=tag)
            group.channels[key] = self.writer.add_channel(about)
        return group.channels[key]

    def _took(self, group: GroupRecord, tag: int, work: Any) -> None:
        with contextlib.suppress(Exception):  # a backend that does not say
            source = work._source_rank()
            if source >= 0:
                self.writer.took(self._channel(group, "recv", group.ranks[source], tag))

    def failed(self, number: int, error: BaseException) -> None:
        """The call with this number ended with this error, which the program is given."""
        lost = lost_connections.LostCall.of(error, number, self.writer.calls)
        self.lost_call = lost or self.lost_call
        made = self.writer.call_at(number)
        if made is not None:
            self.left_call(OP_NAMES[made[0]], error)

    def left_call(self, function: str, error: BaseException | None) -> None:
        """The exception leaves this function of torch's, which this thread has called: most are
        caught, and what a rank does after that may be what goes wrong. One that leaves a line again
        and again, as in a loop that tries anew, is noted ever more seldom."""
        with contextlib.suppress(Exception):
            if not isinstance(error, Exception) or isinstance(error, ORDINARY):
                return
            key = (function, name_of(error), self.site(sys._getframe(1)))
            self._left[key] += 1
            seldom = self._left[key] & (self._left[key] - 1) or len(self._left) > _MOST_LEFT
            if not (seldom or self.writer.heap_half_full or self.writer.detached):
                note = LeftCallNote(key[1], function, self.writer.calls)
                self.note(note, titled(error), key[2])

    # -- waits that are no call ----------------------------------------------------------------

    @contextlib.contextmanager
    def waiting_in(
        self, activity: Activity, detail: Mapping[str, Any], site: int
    ) -> Iterator[None]:
        """This thread is inside something that may wait for other ranks."""
        slot = None
        try:
            slot = self.writer.enter(int(activity), 0, self.detail(detail), site)
        except Exception as error:
            report_own_fault("recording of waits", error)
        try:
            yield
        finally:
            if slot is not None:
                self.writer.leave(slot)

    def detail(self, detail: Mapping[str, Any]) -> int:
        """The id of what a thread waits for."""
        return self.writer.define(Definition.DETAIL, json.dumps(detail, default=str))

    def check_failed(self, what: str, error: Exception) -> None:
        """A check has failed by its own fault: it is off from now on. What a signal's handler has
        raised in it, which may run anywhere, goes on to the program."""
        if is_interruption(error):
            raise error
        self.off.add(what)
        report_own_fault(what, error)

    def recording_is_off(self, what: str) -> None:
        """From here on the record says less than what happens: nothing may be concluded from what
        it does not show."""
        if not self._blind:
            self._blind = True
            with contextlib.suppress(Exception):
                self.note(LayerOffNote(), f"{what} is switched off")

    def part_off(self, part: str, why: str, gaps: bool = False, said: bool = False) -> None:
        """Tells the report that a part is off; `gaps`: the record of calls has gaps. `said`: the
        user knows."""
        with contextlib.suppress(Exception):
            off = LayerOffNote if gaps else PartOffNote
            self.note(off(part=part, said=said), why)

    def note(self, note: NoteData, message: str, site: int = 0) -> None:
        """Put an event on record."""
        self.writer.note(note, message, site)
        if isinstance(note, OwnFindingNote | PairedNote | WithoutGradientNote):
            shown = {"group": self._shown_names.get(note.group, note.group)}
        else:
            shown = {}
        line = self._lines.get(site)
        rank_log.note(note, message, None if line is None else line[:2], shown)


def _main_ident() -> int:
    return threading.main_thread().ident or 0


def identity() -> dict[str, Any]:
    """Its host, command, parent, and the versions of what it runs on."""
    return {
        "host": socket.gethostname(),
        "argv": [argument[:200] for argument in masked(sys.argv[:20])],
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parent": os.getppid(),
    }


ON_FINDING = "DISTDEBUG_ON_FINDING"
"""The variable for what becomes of the run at an error: "report" lets it go on, all else stops
it."""


class OwnFinding:
    """`kind` and `culprits` as in a report; `group` and `seq` tell the collective it is about (no
    `seq`: it is about a message). `victims` are by default all other ranks of the group, `headline`
    is the message without the calls of each rank, where it has one. `elsewhere`: the line that is
    put on record with it is wrong, not the collective's. `origin`: where a NaN was made."""

    def __init__(
        self,
        group: GroupRecord,
        seq: int | None,
        kind: str,
        message: str,
        culprits: Sequence[int],
        victims: Sequence[int] | None = None,
        headline: str = "",
        elsewhere: bool = False,
        origin: str = "",
    ) -> None:
        others = [rank for rank in group.ranks if rank not in culprits]
        self.kind = kind
        self.message = message
        self._note = OwnFindingNote(
            finding=kind,
            culprits=tuple(culprits),
            victims=tuple(others if victims is None else victims),
            group=(group.name, group.incarnation),
            seq=seq,
            headline=headline,
            elsewhere=elsewhere,
            origin=origin,
        )

    def __repr__(self) -> str:
        return f"<OwnFinding {self.kind}: {self.message}>"

    def put_on_record(self, recorder: Recorder, site: int) -> None:
        """The same finding may be on the record of several ranks."""
        recorder.note(self._note, self.message, site)

    def report(self, recorder: Recorder, site: int) -> None:
        """Put it on record, and raise it. Where the run goes on (`--on-finding report`) nothing is
        raised, and of each kind the first one on a line is recorded: a NaN comes again in every
        step."""
        if os.environ.get(ON_FINDING) != "report":
            self.put_on_record(recorder, site)
            raise self.raised()
        if (self.kind, site) not in recorder.reported:
            recorder.reported.add((self.kind, site))
            self.put_on_record(recorder, site)

    def raised(self, besides: str = "") -> FindingRaised:
        """The error, once it is on record; `besides`: what is to stand in its text as well."""
        line = finding_line(self.kind, self.message)
        return error_of(self.kind, f"{line}\n{besides}" if besides else line, own=True)
