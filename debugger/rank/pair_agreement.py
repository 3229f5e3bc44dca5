"""At DETAIL: a message enters the backend once both of its ranks have posted it, alike.

For gloo, where a receive that is too small kills its process, one that is too large keeps quiet,
and a send waits for its receive in any case. Each side tells the other what it has posted, over the
group's side channel; where they differ, nothing is sent, and both raise one and the same error.
(distcore's own backends do as much by themselves.)

A receive from any source meets a message that nobody can foretell: from the first of them, messages
to that rank with that tag are no longer compared.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

from distcore.errors import DeadlineExceeded, GroupFailed
from distcore.side_channel import NOTE_BYTES, Note, SideChannel

from ..record.dispute import message_difference
from ..record.signature import ANY_SOURCE, Signature
from . import waiting
from .deferred import Deferral
from .own_findings import OwnFinding
from .recorder import GroupRecord, Known, Recorder

COMPARES = "gloo"
_HASH_BYTES = 8
_ANY = b""


class PairGuard:
    """Of one group, on one rank. `enter` takes the place of the backend's send and recv.

    All ranks of the group must have one, from its first message on: a message is compared with the
    one of the same number between the same ranks with the same tag.
    """

    def __init__(self, recorder: Recorder, record: GroupRecord, channel: SideChannel) -> None:
        self._recorder = recorder
        self._record = record
        self._channel = channel
        self._loose_here: set[int] = set()
        self._loose_there: set[tuple[int, int]] = set()
        self._gone: set[int] = set()

    def __repr__(self) -> str:
        return f"<PairGuard of group {self._record.name!r}>"

    def enter(
        self, known: Known, _seq: int, _options: Any, _is_async: bool, forward: partial[Any]
    ) -> Any:
        """`forward()`, once the other side has posted the same message, or one that need not be
        compared. Its handle raises the finding where they differ."""
        signature = Signature.from_json(known.text)
        tag = signature.tag
        if signature.peer == ANY_SOURCE:
            self._loosen(tag)
            return forward()
        sends = signature.op == "send"
        peer = self._record.ranks.index(signature.peer) if signature.peer is not None else 0
        loose = (peer, tag) in self._loose_there if sends else tag in self._loose_here
        if loose or peer in self._gone or peer == self._record.group_rank:
            return forward()
        number = known.channel.issued - 1 if known.channel is not None else 0
        limit_s = self._record.timeout_s
        said = known.exact.to_bytes(_HASH_BYTES, "little") + known.text.encode()
        try:
            self._channel.post_note(peer, _lane(tag, not sends), said[:NOTE_BYTES], limit_s)
            heard = self._channel.await_note(peer, _lane(tag, sends), limit_s)
        except GroupFailed:
            return forward()  # the group has ended, and the backend says so in its own way
        compare = partial(self._compare, heard, known, signature, peer, number)
        return Deferral(compare, forward).start(heard.when_over)

    def _loosen(self, tag: int) -> None:
        """Tell all ranks that may send to this one, once."""
        if tag in self._loose_here:
            return
        self._loose_here.add(tag)
        for peer in range(len(self._record.ranks)):
            if peer != self._record.group_rank and peer not in self._gone:
                with contextlib.suppress(GroupFailed):
                    lane = _lane(tag, True)
                    self._channel.post_note(peer, lane, _ANY, self._record.timeout_s)

    def _compare(self, heard: Note, known: Known, mine: Signature, peer: int, number: int) -> None:
        """Return when both sides agree, or when nobody can tell any more."""
        try:
            said = heard.read()
        except DeadlineExceeded:
            call = Signature.from_json(known.text)
            other = "recv" if mine.op == "send" else "send"
            rank = self._record.ranks[peer]
            raise DeadlineExceeded(
                f"{call}: rank {rank} has not called {other} for it in "
                f"{self._record.timeout_s:g} s",
                rank,
            ) from None
        except GroupFailed as error:
            better = waiting.instead(error)
            if better is not error:
                raise better from None
            self._gone.add(peer)
            return
        if said == _ANY:
            self._loose_there.add((peer, mine.tag))
            return
        if int.from_bytes(said[:_HASH_BYTES], "little") != known.exact:
            self._raise(mine, said[_HASH_BYTES:], number)

    def _raise(self, mine: Signature, said: bytes, number: int) -> None:
        theirs = Signature.from_json(said.decode())
        sent, received = (mine, theirs) if mine.op == "send" else (theirs, mine)
        source, destination = received.peer, sent.peer
        assert source is not None
        assert destination is not None
        message = message_difference(sent, received, source, destination, number)
        culprits = (source, destination)
        finding = OwnFinding(self._record, number, "p2p_mismatch", message, culprits, victims=())
        with contextlib.suppress(Exception):
            finding.put_on_record(self._recorder, self._recorder.site(sys._getframe(1)))
        raise finding.raised()


def _lane(tag: int, of_receives: bool) -> int:
    """The tag, on the side channel, of what is said about sends or receives with this one."""
    return 2 * tag + of_receives
