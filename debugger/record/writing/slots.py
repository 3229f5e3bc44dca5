"""The running values that the writer keeps for each place in a flight record."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from .. import layout
from ..lines import Predictor

WRITTEN = -1
"""The value of `ThreadSlot.current` where the thread is in no call, but its next one must be put
down in full."""


@dataclass(slots=True)
class CallDescription:
    """A distinct call, described once: what the record says of it each time.

    `agree`, `exact` and `contribution` feed the chains and the balance (see `signature`); `exact`
    equals `agree` where the shapes say no more.
    `channel` is None for collectives. `volatile` is the signature's text where the heap has no
    room for it, else None.
    """

    op_code: int
    signature_id: int
    agree: int
    exact: int
    contribution: int
    channel: ChannelSlot | None
    volatile: bytes | None
    has_shapes: bool = field(init=False)
    """Whether the shapes say more."""
    adds: bool = field(init=False)
    """Whether the call adds anything to its group's `exact` or `balance`."""

    def __post_init__(self) -> None:
        self.has_shapes = self.exact != self.agree
        self.adds = self.has_shapes or self.contribution != 0


class CallOrigin:
    """A line that makes calls of one group, by the id of its `site`, which is its `place`, too, but
    where other ranks' calls may lawfully come from elsewhere (0); and what all slots of the ring
    that they take have in common, as long as they are this `call`, with these `flags` and on this
    `thread` (`common`: those bytes)."""

    __slots__ = ("call", "common", "flags", "place", "site", "thread")

    def __init__(self, site: int, placed: bool = True) -> None:
        self.site = site
        self.place = site if placed else 0
        self.call: CallDescription | None = None
        self.thread: ThreadSlot | None = None
        self.flags = 0
        self.common = b""


class ExpectedCall:
    """The place of an expected call, and the call that is expected after it."""

    __slots__ = ("place", "then")

    def __init__(self, place: int) -> None:
        self.place = place
        self.then = self


UNSETTLED = ExpectedCall(-1)
"""The value of `LineSlot.step` from a call that came from elsewhere until that is on record:
further calls wait for their turn."""


@dataclass(slots=True, eq=False)
class Surprises:
    """The surprises of a group or channel: so many, the last one (its number + 1) and their hash;
    how the next ones are predicted, since the call `base`, by `period` many `steps`; and the places
    of calls that wait for their turn, by sequence number, of which `due` is the next. `dropped`:
    the last surprise was taken back."""

    predictor: Predictor[int] = field(default_factory=Predictor)
    count: int = 0
    last: int = 0
    mark: int = 0
    base: int = 0
    period: int = 1
    steps: list[ExpectedCall] = field(default_factory=list)
    due: int = 0
    dropped: bool = False
    waiting: dict[int, int] = field(default_factory=dict)

    def expect(self, base: int) -> None:
        """From the call with this sequence number on it is as the predictor says."""
        places = self.predictor.expected
        if self.steps:
            self.steps[-1].then = UNSETTLED  # no circle, which only a garbage collection would free
        self.base, self.period = base, len(places)
        self.steps = [ExpectedCall(place) for place in places]
        for index, step in enumerate(self.steps):
            self.steps[index - 1].then = step


@dataclass(slots=True, eq=False)
class LineSlot:
    """The place from which the next call of a group or channel is expected (`step`). Without
    `surprises` nothing is kept of it."""

    step: ExpectedCall = field(default=UNSETTLED, kw_only=True)
    issued: int = field(default=0, kw_only=True)
    surprises: Surprises | None = field(default=None, kw_only=True)
    lines_at: int = field(init=False)


@dataclass(slots=True, eq=False)
class GroupSlot(LineSlot):
    """A group's place in the record, and the running values that the writer keeps for it; it writes
    a checkpoint after the call with the number `checkpoint_at`."""

    index: int
    offset: int = 0
    chain: int = 0
    exact: int = 0
    balance: int = 0
    last: int = 0
    checkpoint_at: int = layout.CHECKPOINT_EVERY - 1

    def __post_init__(self) -> None:
        self.offset = layout.GROUPS_OFFSET + self.index * layout.GROUP_BYTES
        self.lines_at = self.offset + layout.GROUP_LINES_AT


@dataclass(slots=True, eq=False)
class ChannelSlot(LineSlot):
    """A point-to-point channel's place in the record; index NO_CHANNEL: it found none."""

    index: int
    offset: int = 0
    chain: int = 0
    last: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        self.offset = layout.CHANNELS_OFFSET + self.index * layout.CHANNEL.size
        self.lines_at = self.offset + layout.CHANNEL_LINES_AT


@dataclass(slots=True, eq=False)
class ThreadSlot:
    """The waits of one thread: its place in the record, and a stack of its nested waits.

    A thread that is in a call, or waits for one, and is in nothing else, is on record by one word,
    its `call_word`, whose value is `word`: then `current` is the call's number + 1, and `nested` is
    empty. `current` is 0, or `WRITTEN`, in all other cases; `at_rest` says which, when the thread
    is in nothing. Threads that `share` one place have nothing in that word, which one would
    overwrite with the other's.

    `ring_word` is the place in the ring, in words, of the call that `begin` has put the thread
    into. It holds while `current` is still that call: before the ring comes round to a call, its
    threads are put down in full (see `writer`).
    """

    index: int
    native_id: int
    shares: InitVar[bool] = False
    offset: int = field(init=False)
    call_word: int = field(init=False)
    wait_word: int = field(init=False)
    current: int = field(init=False)
    at_rest: int = field(init=False)
    word: int = 0
    ring_word: int = 0
    version: int = 0
    nested: list[tuple[int, int, int, int]] = field(default_factory=list)

    def __post_init__(self, shares: bool) -> None:
        self.offset = layout.THREADS_OFFSET + self.index * layout.THREAD_BYTES
        self.call_word = (self.offset + layout.THREAD_CALL_AT) // 8
        self.wait_word = (self.offset + layout.WAIT_AT) // 8
        self.current = self.at_rest = WRITTEN if shares else 0
