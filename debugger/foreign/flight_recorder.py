"""torch's flight recorder: what one rank's dump says, read field by field.

A dump is a pickle or JSON of plain data, versions 2.3 to 2.10, written by NCCL's, gloo's or another
library's side of torch. Of each field only the type that torch writes is taken; what is missing or
of another type is left out, so that a damaged entry costs that entry alone.

Of a coalesced call (a batch of messages, several collectives in one launch) torch writes an entry
for each part, and one named `coalesced` at its end: only the last is ever marked complete. Here
the parts have the state of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice, takewhile
from operator import attrgetter, itemgetter, lt
from typing import Any, NamedTuple, TypeAlias

from ..record.limits import MOST_RANKS
from ..record.ops import OPS
from ..record.signature import Signature, Tensor, name_of
from ..record.snapshot import CallSite, Place
from .limits import LAGS_NS, MOST_LEVELS
from .plain_pickle import NotPlain, loads, may_be_deep, survives

MOST_ENTRIES = 1 << 20
MOST_FRAMES = 200
_DIGITS = re.compile(r"\d+")
_RANK_LIST = re.compile(r"\[[\d,\s]*\]")
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+|\?)")
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/torch/|^<|/lib/python3[^/]*/")
_JOIN = "/torch/distributed/algorithms/join.py"

_OPS = {
    name.lower(): op
    for op, row in reversed(OPS.items())
    for name in (*row.methods, *row.libraries, row.dumped or op)
}
"""How libraries and releases call an op, and how torch.distributed does; of two ops with one name
(a monitored barrier's entry says "barrier") the first."""
_UNEVEN = frozenset({"all_gather_v", "reduce_scatter_v"})
"""Ops in which each rank has its own size: what they agree on is the sum, which no rank knows."""
COALESCED = "coalesced"
_TELL_COMPLETION = ("nccl", "rccl", "xccl", "hccl", "mccl")
"""Begins of the libraries whose entries say when a call was complete. gloo's never do, and neither
do those of a backend that is recorded from outside; both mark a call as retired when it is over."""
GroupName = tuple[str, str]
"""torch's name of the group and its description."""


class NoDump(ValueError):
    """These bytes are no dump of a flight recorder; a sentence without a subject."""


class NoRecord(NoDump):
    """Plain data that is whole, and has nothing in it that a flight recorder writes."""


class Entry(NamedTuple):
    """A call on record.

    `seq` counts the collectives of its group from 0, None of a message. `launch` is the recorder's
    number for the launch that it was part of, messages and collectives each for themselves. `own`
    and `peer` are the two ends of a message as ranks of the group, -1 for any. `done`: the record
    says that it is complete, or cannot say but has put it away. `started`: that it has begun
    (recorded only where timing is on). `timed_out`: it was put away without being complete, or
    reads complete no sooner than its timeout, at which torch has aborted it. `completed_ns`: when
    torch found it complete (0: never). `place`: see `Call.place`.
    """

    record_id: int
    pg_id: int
    group: GroupName
    seq: int | None
    launch: int
    library: str
    signature: Signature
    own: int | None
    peer: int | None
    done: bool
    started: bool
    timed_out: bool
    created_ns: int
    site: CallSite | None
    stack: tuple[str, ...] = ()
    completed_ns: int = 0
    timeout_ms: int = 0
    place: Place | None = None

    @property
    def tells_completion(self) -> bool:
        """Whether its library says of a call when it was complete."""
        return self.library.startswith(_TELL_COMPLETION)


_FRAME = itemgetter("filename", "line", "name")


@dataclass(frozen=True)
class Dump:
    """The dump of one rank's recorder. `groups` are the members of the groups, where the dump says
    them; `enqueued` and `completed` the last collective of each group by `pg_id`, counted from 0
    (-1: none), which torch also counts messages in. `unfinished` are the parts of a coalesced call
    whose end the host has not issued: no entries, for nothing of it has been launched.
    `written_ns`: when its file was written (0: not known). `plain`: each entry is a collective that
    was launched by itself."""

    version: str
    entries: Sequence[Entry]
    groups: Mapping[GroupName, tuple[int, ...]] = field(default_factory=dict)
    enqueued: Mapping[int, int] = field(default_factory=dict)
    completed: Mapping[int, int] = field(default_factory=dict)
    damaged: int = 0
    unfinished: Sequence[Entry] = ()
    written_ns: int = 0
    plain: bool = False
    uncalled: bool = False
    listed: bool = False

    @cached_property
    def whole(self) -> bool:
        """Whether nothing has been overwritten or left out: every call of the rank is here. Of one
        without any, the dump itself says that there were none."""
        rows = self.entries
        if not rows:
            return self.uncalled or (bool(self.enqueued) and max(self.enqueued.values()) < 0)
        numbered = rows[0].record_id == 0 and rows[-1].record_id == len(rows) - 1
        return numbered and rows[0].launch <= 1  # else it has been reset, and numbers begin again

    @cached_property
    def active_only(self) -> bool:
        """Whether it is one of those from which complete calls have been left out."""
        return not self.whole and not any(entry.done for entry in self.entries)

    @cached_property
    def tells_of_all(self) -> bool:
        """Whether complete calls are in it as well, as far back as it goes."""
        return any(entry.done for entry in self.entries) or (self.whole and not self.uncalled)

    @cached_property
    def newest_ns(self) -> int:
        """When its last call was made (0: it has none)."""
        return max((entry.created_ns for entry in self.entries), default=0)


def read(data: bytes, written_ns: int = 0) -> Dump:
    """The dump in these bytes, a pickle or JSON. Raises NoDump."""
    if may_be_deep(data) and not survives(lambda: _read(data, written_ns)):
        raise NoDump("is nested too deeply")
    return _read(data, written_ns)


def _read(data: bytes, written_ns: int) -> Dump:
    try:
        found = json.loads(data) if data[:1] == b"{" else loads(data)
    except NotPlain as error:
        raise NoDump(str(error)) from None
    except RecursionError:
        raise NoDump("is nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise NoDump(f"is damaged or no JSON ({type(error).__name__})") from None
    if not isinstance(found, dict) or not {"entries", "pg_config", "pg_status"} & found.keys():
        raise NoRecord("holds no flight record (neither entries nor groups)")
    rows = found.get("entries")
    rows = rows if isinstance(rows, list) else []
    if len(rows) > MOST_ENTRIES:
        raise NoDump(f"has {len(rows)} entries, more than {MOST_ENTRIES}")
    version = found.get("version")
    entries = _in_order([entry for row in rows if (entry := _entry(row)) is not None])
    if rows and not entries:
        raise NoDump(f"has {len(rows)} entries in a form that is not known, and none that is")
    status, config = found.get("pg_status"), found.get("pg_config")
    groups: dict[GroupName, tuple[int, ...]] = {}
    for one in config.values() if isinstance(config, dict) else ():
        if isinstance(one, dict):
            ranks = _ranks(one.get("ranks"))
            if ranks:
                groups[_text(one.get("name")), _text(one.get("desc"))] = ranks
    return Dump(
        version=version[:40] if isinstance(version, str) else "",
        entries=_parts_with_state(_without_the_aborted(entries)),
        groups=groups,
        enqueued=_counts(status, "last_enqueued_collective"),
        completed=_counts(status, "last_completed_collective"),
        damaged=len(rows) - len(entries),
        written_ns=written_ns,
        plain=len({(entry.pg_id, entry.seq) for entry in entries}) == len(entries)
        and not any(entry.seq is None or entry.signature.op == COALESCED for entry in entries),
        uncalled=not rows and status == {} and isinstance(config, dict) and bool(config),
        listed=bool(groups) and len(groups) == len(config or ()) and all(n for n, _ in groups),
    )


def _in_order(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Returns them as they were recorded, which is how torch writes them, and not everybody who
    passes a dump on. Where numbers are missing or there twice, nothing better is known than the
    list itself."""
    numbers = [entry.record_id for entry in entries]
    if all(map(lt, numbers, islice(numbers, 1, None))) or len(set(numbers)) < len(numbers):
        return entries
    return sorted(entries, key=attrgetter("record_id"))


class _Name(NamedTuple):
    library: str
    op: str
    is_message: bool
    own: int | None
    peer: int | None
    tells_completion: bool


def _entry(row: Any) -> Entry | None:
    """Reads one, with as few calls as can be: 16,384 ranks have hundreds of thousands."""
    if not isinstance(row, dict):
        return None
    get = row.get
    name = _named(_text(get("profiling_name")))
    group = get("process_group")
    if name is None or not isinstance(group, list | tuple) or len(group) != 2:
        return None
    library, op, is_message, own, peer, tells_completion = name
    is_message = is_message or get("is_p2p") is True
    seq = _number(get("collective_seq_id"))
    state, retired = get("state"), get("retired") is True
    if seq is not None and seq < 0:
        seq = None  # damaged
    created_ns = max(_number(get("time_created_ns")) or 0, 0)
    completed_ns = max(_number(get("time_discovered_completed_ns")) or 0, 0)
    timeout_ms = _number(get("timeout_ms")) or 0
    aborted = tells_completion and not retired and _is_aborted(created_ns, completed_ns, timeout_ms)
    done = (state == "completed" or completed_ns > 0) and not aborted
    launch = _number(get("p2p_seq_id")) if is_message else seq
    site, stack, place = _stack(get("frames"))
    return Entry._make(
        (
            _number(get("record_id")) or 0,
            _number(get("pg_id")) or 0,
            (_text(group[0]), _text(group[1])),
            None if is_message or seq is None else seq - 1,
            launch or 0,
            library,
            _signature(op, get),
            own,
            peer,
            done or (retired and not tells_completion),
            state == "started" or bool(_number(get("time_discovered_started_ns"))),
            aborted or (retired and not done and tells_completion),
            created_ns,
            site,
            stack,
            completed_ns,
            timeout_ms,
            place,
        )
    )


def _is_aborted(created_ns: int, completed_ns: int, timeout_ms: int) -> bool:
    """Whether a call that nobody has put away reads complete because torch has given it up: no
    sooner than its timeout, after which nothing else is left to end it."""
    if not created_ns or not completed_ns:
        return False
    return 0 < timeout_ms <= (completed_ns - created_ns) / 1e6


# A job makes the same few calls again and again, on all ranks: what is made of a name, of sizes
# and of a stack is kept, and is then the same object, by which most calls are compared.


@lru_cache(maxsize=1 << 14)
def _named(name: str) -> _Name | None:
    """`nccl:recv 1<-0`, with ranks of the group."""
    library, _, words = name.rpartition(":")
    if not words:
        return None
    tells = library.startswith(_TELL_COMPLETION)
    message = _MESSAGE.fullmatch(words)
    if message is None:
        op = words.split()[0].lower() if words.split() else words
        return _Name(library, _OPS.get(op, op), False, None, None, tells)
    own, peer = int(message[2]), -1 if message[3] == "?" else int(message[3])
    if max(own, peer) >= MOST_RANKS:
        return _Name(library, message[1], True, None, None, tells)
    return _Name(library, message[1], True, own, peer, tells)


def _without_the_aborted(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries, with what torch has aborted read as never complete: with the call that has
    exceeded its timeout all later ones are, and all are found complete at that moment."""
    given_up_ns = min(
        (one.completed_ns for one in entries if one.timed_out and one.completed_ns), default=None
    )
    if given_up_ns is None:
        return entries
    return [
        entry._replace(done=False)
        if entry.tells_completion and entry.completed_ns >= given_up_ns - LAGS_NS > 0
        else entry
        for entry in entries
    ]


def _parts_with_state(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries with each part of a coalesced call in the state of the whole."""
    ends = {launch_of(entry): entry for entry in entries if entry.signature.op == COALESCED}
    if not ends:
        return entries
    return [
        entry
        if (end := ends.get(launch_of(entry))) is None
        else entry._replace(done=end.done, started=end.started, timed_out=end.timed_out)
        for entry in entries
    ]


def launch_of(entry: Entry) -> tuple[int, bool, int]:
    """Returns what the parts of one coalesced call, and its end, have in common on their rank."""
    return entry.pg_id, entry.seq is None, entry.launch


def _signature(op: str, get: Callable[[str], Any]) -> Signature:
    inputs = _side(get("input_sizes"), get("input_dtypes"))
    outputs = _side(get("output_sizes"), get("output_dtypes"))
    try:
        return _signature_of(op, *inputs, *outputs)
    except TypeError:  # what cannot be hashed is no size
        return Signature(op)


_Sizes: TypeAlias = tuple[tuple[Any, ...], ...]


def _side(sizes: Any, dtypes: Any) -> tuple[_Sizes, tuple[Any, ...]]:
    """Reads inputs or outputs; empty for what is no list of sizes."""
    try:
        return tuple(map(tuple, sizes)), tuple(dtypes)
    except TypeError:
        return (), ()


@lru_cache(maxsize=1 << 16)
def _signature_of(
    op: str,
    input_sizes: _Sizes,
    input_dtypes: tuple[Any, ...],
    output_sizes: _Sizes,
    output_dtypes: tuple[Any, ...],
) -> Signature:
    """Makes it of what the op's ranks agree on: a scatter's output, and everything else's input."""
    if op in _UNEVEN:
        return Signature(op)
    inputs, outputs = _tensors(input_sizes, input_dtypes), _tensors(output_sizes, output_dtypes)
    principal, others = (outputs, inputs) if op == "scatter" else (inputs, outputs)
    return Signature(op, principal or (others if op != "gather" else ()))


def _tensors(sizes: _Sizes, dtypes: tuple[Any, ...]) -> tuple[Tensor, ...]:
    names = [name_of(scalar) for scalar in map(_text, dtypes)] or [""]
    return tuple(
        (names[min(at, len(names) - 1)], tuple(_number(size) or 0 for size in shape))
        for at, shape in enumerate(sizes)
    )


_Stack: TypeAlias = tuple[CallSite | None, tuple[str, ...], Place | None]


def _stack(frames: Any) -> _Stack:
    """The user's own line; all lines, innermost first; and the place."""
    if not isinstance(frames, list | tuple):
        return None, (), None
    try:
        return _stack_of(tuple(map(_FRAME, frames[:MOST_FRAMES])))
    except (KeyError, TypeError):
        return None, (), None


@lru_cache(maxsize=1 << 16)
def _stack_of(frames: tuple[tuple[Any, Any, Any], ...]) -> _Stack:
    sites = [CallSite(_text(file), _number(line) or 0, _text(name)) for file, line, name in frames]
    begin = next((at for at, site in enumerate(sites) if _is_the_users(site)), len(sites))
    levels = list(takewhile(_is_the_users, sites[begin : begin + MOST_LEVELS]))
    if len({(site.file, site.function) for site in levels}) < len(levels):
        del levels[1:]  # at each depth of a recursion the call comes from the same place
    stands_for_others = any(site.file.endswith(_JOIN) for site in sites)
    place = Place(tuple(levels)) if levels and not stands_for_others else None
    return next(iter([*levels, *sites]), None), tuple(map(str, sites)), place


def _is_the_users(site: CallSite) -> bool:
    return not _NOT_THE_USERS.search(site.file)


def _ranks(given: Any) -> tuple[int, ...]:
    """`"[0, 1, 2]"`, which is parsed and never evaluated; JSON may have a list."""
    if isinstance(given, str):
        # Parsed once for all ranks that say the same, which at 16,384 ranks is 100 kB
        # each: to compare that takes a tenth of the time that hashing it does.
        place = (len(given), given[:_ENDS], given[-_ENDS:])
        known = _parsed.get(place)
        if known is not None and known[0] == given:
            return known[1]
        if len(_parsed) >= _MOST_PARSED:
            _parsed.clear()
        found = _parse_ranks(given)
        _parsed[place] = (given, found)
        return found
    if not isinstance(given, list | tuple):
        return ()
    return _plausible([_number(one) for one in given])


_parsed: dict[tuple[int, str, str], tuple[str, tuple[int, ...]]] = {}
_MOST_PARSED = 1 << 12
_ENDS = 48


def _parse_ranks(text: str) -> tuple[int, ...]:
    if len(text) > 12 * MOST_RANKS or not _RANK_LIST.fullmatch(text.strip()):
        return ()
    return _plausible([int(word) if len(word) < 10 else None for word in _DIGITS.findall(text)])


def _plausible(ranks: Sequence[int | None]) -> tuple[int, ...]:
    """() where one of them is no rank, or is there twice: such a group is not known."""
    known = tuple(rank for rank in ranks if rank is not None and 0 <= rank < MOST_RANKS)
    return known if len(known) == len(ranks) == len(set(known)) else ()


def _counts(given: Any, which: str) -> dict[int, int]:
    """By pg_id, counted from 0."""
    found: dict[int, int] = {}
    for key, one in given.items() if isinstance(given, dict) else ():
        last = one.get(which) if isinstance(one, dict) else None
        number, value = _number(key), _number(last)
        if number is not None and value is not None:
            found[number] = value - 1 if value > 0 else -1
    return found


def _number(given: Any) -> int | None:
    """An int of 64 bits; JSON has some as text."""
    if type(given) is not int:  # not a subclass of it: True is one
        if not isinstance(given, str) or not re.fullmatch(r"-?\d{1,19}", given):
            return None
        given = int(given)
    return given if -(1 << 63) <= given < 1 << 63 else None


def _text(given: Any) -> str:
    return given[:4096] if isinstance(given, str) else ""


def libraries(dumps: Iterable[Dump]) -> list[str]:
    """The communication libraries of these dumps, as their entries call them."""
    return sorted({entry.library for dump in dumps for entry in dump.entries} - {""})
