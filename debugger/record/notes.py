"""The notes that ranks put on their flight records: one frozen record for each kind.

Who writes a note makes one, whose `data` goes on record; who reads gets it back from the `data` of
a `snapshot.Note`, which has the note's message, line and time. A field that is damaged reads as its
default, and a note without one that it cannot do without as None. No kind has a name elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from .kinds import KINDS
from .limits import MOST_RANKS
from .safe_files import finite

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # the checker's own; 3.10 has none

    from .snapshot import Note
else:

    def dataclass_transform(**_named):
        return lambda cls: cls


N = TypeVar("N", bound="NoteData")


def _reader(kind: type) -> Callable[[Any], Any]:
    def read(value: object) -> object:
        if type(value) is not kind:
            raise TypeError(f"no {kind.__name__}")
        return value

    return read


def _tuple_of(*readers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(read(one) for read, one in zip(readers, value, strict=True))


_true, _text, _whole = _reader(bool), _reader(str), _reader(int)
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": _true,
    "bool | None": _true,
    "float": finite,
    "int": _whole,
    "int | None": lambda value: None if value is None else _whole(value),
    "str": _text,
    "str | None": _text,
    "tuple[str, int]": _tuple_of(_text, _whole),
    "tuple[int, int] | None": _tuple_of(_whole, _whole),
    "tuple[int, ...]": lambda value: tuple(_whole(one) for one in value),
    "tuple[int, ...] | None": lambda value: tuple(_whole(one) for one in value),
    "tuple[str, ...]": lambda value: tuple(_text(one) for one in value),
}
"""The function that reads a field, by its type as it is written here."""


@dataclass_transform(frozen_default=True)
class NoteData:
    """The content of a note beside its message, with what is known of all notes of its kind.

    A frozen record by its annotations, as `dataclass` makes them, which writes and compiles ten
    functions for each: for all kinds that takes a tenth of what a start of torch takes, and each
    rank of each run would pay it.
    """

    KIND: ClassVar[str]
    LEVEL: ClassVar[str] = "info"
    """The level of its record in the rank's log."""
    LOGGED: ClassVar[bool] = True
    """False: whoever writes it logs it as well, in another form."""
    FOR_DIAGNOSIS: ClassVar[frozenset[str]] = frozenset()
    """The fields that the log leaves out."""
    _READERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """By field, in order, the function that reads it. A field is needed if it has no default."""

    def __init_subclass__(cls, kind: str = "", level: str = "", logged: bool = True) -> None:
        if kind:
            cls.KIND = kind
        cls.LEVEL, cls.LOGGED = level or cls.LEVEL, logged and cls.LOGGED
        own = {name: _READERS[str(type_)] for name, type_ in cls.__annotations__.items()}
        cls._READERS = {**cls._READERS, **own}

    def __init__(self, *values: Any, **named: Any) -> None:
        names = list(self._READERS)
        given = dict(zip(names, values, strict=False)) | named
        missing = [name for name in names if name not in given and not hasattr(self, name)]
        if missing or len(given) < len(values) + len(named) or not given.keys() <= set(names):
            raise TypeError(f"{type(self).__name__}{tuple(names)} was given {values} and {named}")
        # All of them, in order.
        self.__dict__.update({name: given.get(name, getattr(self, name, None)) for name in names})

    def __setattr__(self, name: str, _value: Any) -> None:
        raise AttributeError(f"{name}: a note does not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({', '.join(fields)})"

    def data(self) -> dict[str, Any]:
        """Returns the fields as the record carries them; one that is None, and may be left out,
        is."""
        given = self.__dict__.items()
        return {
            name: value
            for name, value in given
            if value is not None or not hasattr(type(self), name)
        }

    @classmethod
    def matches(cls, note: Note) -> bool:
        """Whether the note is of this kind."""
        return note.kind == cls.KIND

    @classmethod
    def among(cls, notes: Iterable[Note]) -> list[Note]:
        """Returns the notes of this kind."""
        return [note for note in notes if note.kind == cls.KIND]

    @classmethod
    def read(cls: type[N], data: Mapping[str, Any]) -> N | None:
        """None where it is none of this version: records may be damaged, or from elsewhere."""
        found: dict[str, Any] = {}
        for name, read in cls._READERS.items():
            try:
                found[name] = read(data[name])
            except (KeyError, TypeError, ValueError, OverflowError):
                if not hasattr(cls, name):
                    return None
        made = cls(**found)
        return made if made.is_sound() else None

    def is_sound(self) -> bool:
        """Whether a rank of ours may have written this."""
        return True


class Nature(TypedDict, total=False):
    """The rank's judgement of an exception: its own fields of a `RaisedNote`."""

    own_fault: bool
    invalid_argument: bool
    communication: bool
    address_in_use: bool


class RaisedNote(NoteData):
    """An exception; the message is its text.

    `stack`: `file:line in function` from the outermost frame on. `thread_slot`: the thread's place
    in the flight record; `daemon`: the program may end without it. `own_fault`: of distdebug's.
    `invalid_argument`: torch.distributed or a backend refused a call for what it was given.
    `communication`: it came of another rank's end, or of lost communication. `link`: the global
    ranks of sender and receiver of a connection that broke. `rendezvous`: the address at which the
    rank failed to join. `failed`: which ranks it says have failed, in the numbers of the group of
    the rank's last call.
    """

    type: str = ""
    stack: tuple[str, ...] = ()
    thread: str | None = None
    thread_slot: int | None = None
    daemon: bool | None = None
    own_fault: bool | None = None
    invalid_argument: bool | None = None
    communication: bool | None = None
    address_in_use: bool | None = None
    link: tuple[int, int] | None = None
    rendezvous: str | None = None
    failed: tuple[int, ...] | None = None

    FOR_DIAGNOSIS = frozenset(
        {
            *("communication", "daemon", "failed", "invalid_argument", "own_fault"),
            *("rendezvous", "thread_slot"),
        }
    )


def raised(note: Note) -> RaisedNote:
    """Returns what a note says of the exception that it is about, of whichever kind."""
    return RaisedNote.read(note.data) or RaisedNote()


class ExceptionNote(RaisedNote, kind="exception", level="error"):
    """The process ends with it."""


class ThreadExceptionNote(RaisedNote, kind="thread_exception", level="error"):
    """A thread ended with it, and that thread alone."""


class CaughtExceptionNote(RaisedNote, kind="caught_exception", level="warning"):
    """A test runner caught it."""


class InterruptedNote(RaisedNote, kind="interrupted", level="warning"):
    """A KeyboardInterrupt."""


class UnwindingNote(RaisedNote, kind="unwinding", level="debug"):
    """The call with this number was made while the exception was on its way out; `destroys`: what
    was called destroys the group."""

    call: int = -1
    destroys: bool = False

    FOR_DIAGNOSIS = RaisedNote.FOR_DIAGNOSIS | {"call", "destroys"}


class LeftCallNote(NoteData, kind="left_call", level="debug"):
    """An exception of this type has left this function of torch's, when the rank had made so many
    calls; the program may have caught it. The message is its text."""

    type: str
    function: str
    call: int

    FOR_DIAGNOSIS = frozenset({"call"})


class FindingRaisedNote(NoteData, kind="finding_raised", level="error"):
    """The rank has raised the verdict, or a finding of its own, of the kind in the message: what it
    does from then on says nothing."""


class OwnFindingNote(NoteData, kind="finding", level="error"):
    """A finding that a rank has made itself. `finding` is its kind; `group`: name and incarnation;
    no `seq`: it is about a message. `headline`: see `diagnosis.findings.Finding`. `elsewhere`: the
    line that is on record with it is wrong, not the collective's. `origin`: where a NaN was made,
    in a sentence."""

    finding: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    group: tuple[str, int]
    seq: int | None
    headline: str = ""
    elsewhere: bool = False
    origin: str = ""

    FOR_DIAGNOSIS = frozenset({"headline"})

    def is_sound(self) -> bool:
        ranks = (*self.culprits, *self.victims)
        return (
            self.finding in KINDS
            and len(self.culprits) > 0
            and len(ranks) <= MOST_RANKS
            and all(0 <= rank < MOST_RANKS for rank in ranks)
        )


class ExitNote(NoteData, kind="exit", level="debug"):
    """`sys.exit` or `os._exit` was called on this line, or an injected fault kills here."""


class CrashNote(NoteData, kind="crash", level="error"):
    """A fatal signal came on this line, with this stack (see `RaisedNote`). Readers add it, from
    what the process has written as it ended (`last_words`)."""

    stack: tuple[str, ...] = ()


class DestroyedNote(NoteData, kind="destroyed", level="debug"):
    """The rank has destroyed groups on this line."""


class SplitNote(NoteData, kind="split", level="debug"):
    """The rank has split this group, for the `number`-th time, and is in the part with these global
    ranks; in none: it is in no part."""

    group: tuple[str, int]
    number: int
    ranks: tuple[int, ...]


class ForkedNote(NoteData, kind="forked", level="error"):
    """A forked child called this op on a group of its parent."""

    parent_rank: int
    op: str = ""


class NotInGroupNote(NoteData, kind="not_in_group", level="warning"):
    """The rank called this op on a group that it is not in, which does nothing."""

    op: str = ""


class OffNote(NoteData, level="warning"):
    """A part of the watching is off in this rank; the message says why. `said`: the user knows."""

    part: str = "record"
    said: bool = False


class LayerOffNote(OffNote, kind="layer_off"):
    """The record says less than what happens from here on."""


class PartOffNote(OffNote, kind="part_off"):
    """The record of calls is whole."""


class StoreHostNote(NoteData, kind="store_host", level="debug"):
    """The rank hosts a store that others may need."""


class StaleStoreNote(NoteData, kind="stale_store", level="warning"):
    """The rank joins through a file that was written before this run, or in it by ranks that the
    launcher has replaced (`attempt`), or by something else than a FileStore (`foreign`). `users`:
    so many processes have it open by its own count, the dead ones among them; `by_count`: this
    alone tells."""

    path: str = ""
    foreign: bool = False
    attempt: bool = False
    users: int = 0
    by_count: bool = False


class DataExhaustedNote(NoteData, kind="data_exhausted", level="debug"):
    """A DataLoader has ended after so many batches; -1: nobody knows."""

    batches: int = -1


class UnwaitedWorkNote(NoteData, kind="unwaited_work"):
    """A number of handles of this op, of calls on one line, were dropped without wait(), or `kept`
    to the end of the program. A later note of the same line has the higher count."""

    op: str = ""
    count: int = 1
    kept: bool = False


class UnfinishedNote(NoteData, kind="unfinished", level="debug"):
    """The program has ended, and its GPU was not through with these of its calls (by number), for
    which it had waited: only streams do that, and nobody asked for what came of them."""

    numbers: tuple[int, ...] = ()


class ReplicasNote(NoteData, kind="replicas"):
    """The digests of an optimiser's parameters are in this file, beside the flight record."""

    file: str


class WithoutGradientNote(NoteData):
    """DDP waits for gradients of a model, whose group is given by name and incarnation. `count`: of
    how many parameters, only some of which may be named; `call`: how many calls the rank had made
    by then; `replaced`: how many of them are no longer in the model that DDP was made of."""

    group: tuple[str, int]
    model: str
    parameters: tuple[str, ...]
    count: int
    call: int
    replaced: int = 0

    FOR_DIAGNOSIS = frozenset({"call", "replaced"})


class PairedNote(NoteData, kind="paired", level="debug"):
    """A wrapper of this name has taken tensors, which it pairs by position with those of the
    group's other ranks, when the rank had issued so many collectives of the group. `order`: a hash
    of all in their order, each with name, shape, dtype and whether it is frozen; `names`: one of
    their names, sorted. `rows`: the same as text, a line each, as far as there was room."""

    wrapper: str
    group: tuple[str, int]
    seq: int
    order: int
    names: int
    rows: str
    count: int

    FOR_DIAGNOSIS = frozenset({"order", "names", "seq"})


class DdpUnusedNote(WithoutGradientNote, kind="ddp_unused", level="debug"):
    """A backward has ended."""


class DdpFailedNote(WithoutGradientNote, kind="ddp_failed", logged=False):
    """The next forward failed on it, and nobody has caught that; the message is its text."""


class DdpCompleteNote(NoteData, kind="ddp_complete", level="debug"):
    """A later backward has brought what another had left out."""


class DdpTimesNote(NoteData, kind="ddp_times", logged=False):
    """The averages of a model's times over the iterations that torch has sampled so far. `model`:
    the how many-th of its process; `module_name`: its class."""

    module_name: str
    model: int
    iteration: int
    forward_ms: float
    backward_compute_ms: float
    backward_comm_ms: float
    overlap_ms: float


def off_notes(notes: Iterable[Note]) -> list[Note]:
    """Returns the notes that say that some part of the watching is off."""
    return [note for note in notes if LayerOffNote.matches(note) or PartOffNote.matches(note)]
