"""The running values that the writer keeps for each place in a flight record."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from .. import layout

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


class Place:
    """A line that makes calls of one group, by the id of its `site`; and what all slots of the ring
    that they take have in common, as long as they are this `call`, with these `flags` and on this
    `thread` (`common`: those bytes)."""

    __slots__ = ("call", "common", "flags", "site", "thread")

    def __init__(self, site: int) -> None:
        self.site = site
        self.call: CallDescription | None = None
        self.thread: ThreadSlot | None = None
        self.flags = 0
        self.common = b""


@dataclass(slots=True, eq=False)
class GroupSlot:
    """A group's place in the record, and the running values that the writer keeps for it; it writes
    a checkpoint after the call with the number `checkpoint_at`."""

    index: int
    offset: int = 0
    issued: int = 0
    chain: int = 0
    exact: int = 0
    balance: int = 0
    last: int = 0
    checkpoint_at: int = layout.CHECKPOINT_EVERY - 1

    def __post_init__(self) -> None:
        self.offset = layout.GROUPS_OFFSET + self.index * layout.GROUP_BYTES


class ChannelSlot:
    """A point-to-point channel's place in the record; index NO_CHANNEL: it found none."""

    __slots__ = ("chain", "index", "issued", "last", "offset")

    def __init__(self, index: int) -> None:
        self.index = index
        self.offset = layout.CHANNELS_OFFSET + index * layout.CHANNEL.size
        self.issued = self.chain = self.last = 0


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
