"""Notices between the ranks of a group on MPI, beside MPI, through the store: the call in which a
rank waits long, a rank that has left, a rank that has given up.

MPI itself waits for ever, and a call that does not end says nothing. A rank that has waited for a
moment writes down in which call; so a deadline can tell who has not come, and two ranks that are in
different calls find out. Keys, below a prefix that only this group has:

    at/<rank>      "<number> <text>": the collective that this rank waits in
    left/<rank>    how many collectives this rank has made, when it ended its process or the group
    end            why the group failed, as the first rank to notice wrote it
    news           there is an `end` or a `left/`
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from ..base.linux import this_host
from ..bootstrap.dial import Endpoint
from ..bootstrap.join import Joining, own_member
from ..errors import KINDS, Aborted, GroupFailed, PeerLost
from ..torch_private import dist


class Notices:
    """The notices as one rank sees them. The constructor returns when all ranks have come.

    RendezvousError names those who did not within `timeout_s`. All else answers at once, and never
    raises: without a store that answers nothing is known.
    """

    def __init__(
        self, store: Any, name: str, ranks: Sequence[int], rank: int, timeout_s: float
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank
        self.digest = b""
        self.store: Any = None
        self._silent = 0
        if len(ranks) > 1:
            # Nobody dials: what connects the ranks is MPI.
            nowhere = Endpoint("127.0.0.1", 1, None)
            me = own_member(this_host(), None)
            joining = Joining(store, name, rank, ranks, timeout_s, me, lambda _round: nowhere)
            self.digest = joining.run()[0].group
            self.store = dist.PrefixStore(f"distcore/{self.digest.hex()[:16]}/mpi", store)

    @property
    def lost(self) -> bool:
        """Whether the store does not answer any more."""
        return self._silent > 2

    def waiting(self, number: int, text: str) -> None:
        """This rank waits in its collective of that number."""
        self._ask(lambda store: store.set(f"at/{self.rank}", f"{number} {text}"))

    def positions(self) -> dict[int, tuple[int, str]]:
        """Returns for every other group rank that waits, or has waited long, the call in which it
        does."""
        found: dict[int, tuple[int, str]] = {}
        for peer, said in self._said("at").items():
            number, _, text = said.partition(" ")
            found[peer] = (int(number), text)
        return found

    def leave(self, calls: int) -> None:
        """This rank will make no more calls."""
        self._ask(lambda store: store.set(f"left/{self.rank}", str(calls)))
        self._ask(lambda store: store.set("news", ""))

    def left(self) -> dict[int, int]:
        """The group ranks that have left, and after how many collectives."""
        said = self._said("left") if self._has_news() else {}
        return {peer: int(calls) for peer, calls in said.items()}

    def all_left(self) -> bool:
        """Whether no other rank makes calls any more, as far as can be known."""
        return self.lost or self.store is None or len(self.left()) == len(self.ranks) - 1

    def tell(self, error: BaseException) -> None:
        """The group has failed here."""
        said = json.dumps(
            {
                "by": self.ranks[self.rank],
                "kind": type(error).__name__,
                "text": str(error) or type(error).__name__,
                "culprit": getattr(error, "culprit", None),
            }
        )
        self._ask(lambda store: store.compare_set("end", "", said))
        self._ask(lambda store: store.set("news", ""))

    def told(self) -> GroupFailed | None:
        """Why the group failed, by another rank's word."""
        said = self._read("end") if self._has_news() else None
        if said is None:
            return None
        words = json.loads(said)
        kind = KINDS.get(words["kind"], GroupFailed)
        culprit = words["culprit"]
        if kind is Aborted:
            return Aborted(words["text"])
        if culprit is None and kind is GroupFailed:  # an error of its own, not of the group
            culprit, kind = words["by"], PeerLost
            words["text"] = f"{words['kind']}: {words['text']}"
        return kind(f"rank {words['by']} reports: {words['text']}", culprit)

    # As a session's rendezvous.

    def abort(self, reason: str) -> None:
        self.tell(Aborted(reason))

    def close(self) -> None:
        """Closes nothing: nothing is open."""

    def _has_news(self) -> bool:
        return bool(self._ask(lambda store: store.check(["news"])))

    def _said(self, key: str) -> dict[int, str]:
        """By group rank: what the others have written there."""
        peers = (peer for peer in range(len(self.ranks)) if peer != self.rank)
        found = {peer: self._read(f"{key}/{peer}") for peer in peers}
        return {peer: said for peer, said in found.items() if said is not None}

    def _read(self, key: str) -> str | None:
        def read(store: Any) -> str | None:
            return bytes(store.get(key)).decode() if store.check([key]) else None

        found: str | None = self._ask(read)
        return found

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        if self.store is None or self.lost:
            return None
        try:
            answer = question(self.store)
        except RuntimeError:  # torch's DistStoreError, DistNetworkError
            self._silent += 1
            return None
        self._silent = 0
        return answer


@functools.lru_cache(maxsize=4096)
def fingerprint(text: str) -> int:
    """63 bits of a call's text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
