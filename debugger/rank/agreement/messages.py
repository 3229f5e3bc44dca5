"""At DETAIL: a blocking send or receive enters gloo once the other side has posted its part, alike.

In gloo a receive that is too small kills its process, one that is too large keeps quiet, and a send
waits for its receive in any case. Each side tells the other what it has posted, over the group's
side channel. Where they differ, `send` and `recv` raise before anything is sent. An `isend` or
`irecv` cannot wait for the other side: it is compared when that has come, and the finding is put on
record. (distcore's own backends do as much by themselves.)

A receive from any source meets a message that nobody can foretell: from the first of them on,
nothing that its rank receives is compared any more.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import partial
from typing import Any

from torch import Tensor, strided

from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.tcp.side_channel import NOTE_BYTES, SideChannel, SideNote

from ...record.dispute import message_difference
from ...record.limits import LOOK_EVERY_S, MOST_S
from ...record.signature import ANY_SOURCE, Signature
from ..log.rank_log import is_interruption, report_own_fault
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from ..torch_private.calls import on_blocking_messages

COMPARES = "gloo"
_HASH_BYTES = 8
_LOOSE_LANE = -1
_MOST_TAGS = 1 << 31


class BlockingMessages:
    """Tells which sends and receives of this process block; entered while a thread is in one that
    does."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._observed = False

    def observe(self) -> None:
        """Begins to tell; done once, as soon as anybody asks."""
        if not self._observed:
            self._observed = True
            on_blocking_messages(lambda: self)

    @property
    def here(self) -> bool:
        """Whether this thread is in `send` or `recv`."""
        return getattr(self._thread, "blocks", False)

    def __enter__(self) -> None:
        self._thread.blocks = True

    def __exit__(self, *_error: object) -> None:
        self._thread.blocks = False


class PairGuard:
    """The guard of one group's messages, on one rank. `enter` takes the place of the backend's send
    and recv.

    All ranks of the group must have one, from its first message on: a message is compared with the
    one of the same number between the same ranks with the same tag.
    """

    def __init__(
        self,
        recorder: Recorder,
        record: GroupRecord,
        channel: SideChannel,
        blocking: BlockingMessages,
    ) -> None:
        blocking.observe()
        self._blocking = blocking
        self._recorder = recorder
        self._record = record
        self._channel = channel
        self._loose_here = False
        self._loose: dict[int, threading.Event] = {}
        """By peer: set when what it receives, or what this rank sends it, is not compared."""
        for peer in self._peers():
            self._loose[peer] = threading.Event()
            note = channel.await_note(peer, _LOOSE_LANE, MOST_S)
            note.when_over(self._loose[peer].set)

    def _peers(self) -> list[int]:
        own = self._record.group_rank
        return [peer for peer in range(len(self._record.ranks)) if peer != own]

    def enter(
        self, known: Known, _seq: int, _options: Any, _is_async: bool, forward: partial[Any]
    ) -> Any:
        """`forward()`; of a blocking call once the other side has posted the same message, or one
        that is not compared. Raises the finding where they differ."""
        mine = Signature.from_json(known.text)
        if mine.peer == ANY_SOURCE:
            self._loosen()
            return forward()
        peer = self._compared(mine, forward.args)
        if peer is None:
            return forward()
        if self._blocking.here:
            heard = self._exchange(peer, mine, known, self._record.timeout_s)
            if heard is not None:
                try:
                    self._await(heard, peer, mine)
                except Exception as error:
                    if is_interruption(error):
                        forward().wait()  # as without us: what a signal's handler raises comes then
                    raise
                self._compare(heard, peer, mine, known)
            return forward()
        work = forward()  # first: the backend may refuse it
        heard = self._exchange(peer, mine, known, MOST_S)
        if heard is not None:
            heard.when_over(partial(self._compare_later, heard, peer, mine, known))
        return work

    def _compared(self, mine: Signature, args: tuple[Any, ...]) -> int | None:
        """The group rank of the other side; None where nothing is to be compared, or gloo will
        refuse the message."""
        tensor = args[0][0] if len(args[0]) == 1 else None
        if (
            mine.peer not in self._record.ranks
            or not 0 <= mine.tag < _MOST_TAGS
            or not isinstance(tensor, Tensor)
            or not (tensor.is_cpu and tensor.layout == strided and tensor.is_contiguous())
        ):
            return None
        peer = self._record.ranks.index(mine.peer)
        if peer == self._record.group_rank:
            return None
        loose = self._loose[peer].is_set() if mine.op == "send" else self._loose_here
        return None if loose else peer

    def _exchange(
        self, peer: int, mine: Signature, known: Known, limit_s: float
    ) -> SideNote | None:
        """Tell the other side; what it will say. None where the group has ended: then the backend
        says so in its own way."""
        said = known.exact.to_bytes(_HASH_BYTES, "little") + known.text.encode()
        sends = mine.op == "send"
        try:
            heard = self._channel.await_note(peer, _lane(mine.tag, sends), limit_s)
            self._channel.post_note(peer, _lane(mine.tag, not sends), said[:NOTE_BYTES], MOST_S)
        except GroupFailed:
            return None
        return heard

    def _loosen(self) -> None:
        """Tell all ranks that may send to this one, once."""
        if not self._loose_here:
            self._loose_here = True
            for peer in self._peers():
                with contextlib.suppress(GroupFailed):
                    self._channel.post_note(peer, _LOOSE_LANE, b"", MOST_S)

    def _await(self, heard: SideNote, peer: int, mine: Signature) -> None:
        """Until the note is here, or nobody needs it."""
        here = threading.Event()
        heard.when_over(here.set)
        loose = self._loose[peer]
        while not here.wait(LOOK_EVERY_S):
            self._recorder.waits.check()
            if mine.op == "send" and loose.is_set():
                return

    def _compare(self, heard: SideNote, peer: int, mine: Signature, known: Known) -> None:
        """Raise the finding, if both sides have told and differ; or the group's timeout."""
        if not heard.over:
            return
        try:
            said = heard.read()
        except DeadlineExceeded:
            other = "recv" if mine.op == "send" else "send"
            rank = self._record.ranks[peer]
            limit_s = self._record.timeout_s
            raise DeadlineExceeded(
                f"{mine}: rank {rank} has not called {other} for it in {limit_s:g} s", rank
            ) from None
        except GroupFailed as error:
            better = self._recorder.waits.instead(error)
            if better is not error:
                raise better from None
            return
        if int.from_bytes(said[:_HASH_BYTES], "little") != known.exact:
            theirs = Signature.from_json(said[_HASH_BYTES:].decode())
            sent, received = (mine, theirs) if mine.op == "send" else (theirs, mine)
            source, destination = received.peer, sent.peer
            assert source is not None
            assert destination is not None
            message = message_difference(sent, received, source, destination)
            culprits = (source, destination)
            finding = OwnFinding(self._record, None, "p2p_mismatch", message, culprits, victims=())
            finding.put_on_record(self._recorder, self._recorder.safe_site(sys._getframe(1)))
            raise finding.raised()

    def _compare_later(self, heard: SideNote, peer: int, mine: Signature, known: Known) -> None:
        """Compares a call that has entered the backend: the finding is put on record."""
        try:
            self._compare(heard, peer, mine, known)
        except RuntimeError:
            return  # the finding, or the end of the group
        except Exception as error:
            report_own_fault("the agreement on messages", error)


def _lane(tag: int, of_receives: bool) -> int:
    """The tag, on the side channel, of what is said about sends or receives with this one."""
    return 2 * tag + of_receives
