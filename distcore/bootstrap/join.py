"""The ranks of a group find each other through torch's store, also a store with old data in it.

Keys, below `dc/<digest of the group's name>/` (values: see `store_values`):

    rank/<rank>             who is here: a nonce of this attempt, ranks, host, candidate address
    answer/<nonce>          rank 0 to one rank: the id of the proposal that it is in
    proposal/<id>           rank 0 to all: the secret and everybody's rank/ value, as rank 0 read it
    address/<id>/<rank>     where the rank listens, now that it knows who is on its host
    complete/<id>           rank 0 to all: everybody's address

**Old data.** A store may hold an earlier group of the same name: init, destroy, init in one process
on one store, or ranks that were started again. A rank believes only what answers the nonce that it
made for this attempt. Rank 0 may read an old rank/ value, but then nobody answers that proposal; it
looks again, and makes another proposal when a value has changed. So the group is complete only when
all ranks of one attempt have seen each other alive. A rank deletes its rank/ value before it
answers, so a complete group leaves none; in the end the other keys follow (the secret with them),
all but complete/. A rank that finds its rank/ value replaced has a double, and says so.

**Cost.** About 8 round trips a rank, whatever the size. The wait is by `check`, with pauses of a
tenth of the time waited so far, up to 0.2 s: torch's own `wait` cannot be interrupted by a signal,
blocks other users of the store's client, and prints two warnings each time that it runs out.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from ..base.store import KeyValueStore
from ..errors import RendezvousError, StoreFailed
from ..limits import FIRST_STORE_PAUSE_S, LOOK_AGAIN_S
from . import handshake, job_key
from .dial import Endpoint
from .store_values import (
    Proposal,
    StoreMember,
    pack_endpoint,
    pack_endpoints,
    unpack_endpoint,
    unpack_endpoints,
    unpack_id,
)

_NOTHING = "-"


@dataclass(frozen=True)
class Round:
    """The result of one attempt, on which all ranks agree: who they are, the group's digest and
    secret."""

    group: bytes
    secret: bytes
    members: tuple[StoreMember, ...]


Listen = Callable[[Round], Endpoint | None]
"""Takes calls for this round (and no longer for an earlier one), and tells where; None: cannot."""


def ranks_digest(ranks: Sequence[int]) -> str:
    """Returns the digest that `StoreMember.ranks` holds."""
    return hashlib.sha256(repr([int(rank) for rank in ranks]).encode()).hexdigest()[:32]


class Joining:
    """An attempt of one rank to make the group; `run` once."""

    def __init__(
        self,
        store: KeyValueStore,
        name: str,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        member: StoreMember,
        listen: Listen,
        key: bytes = b"",
    ) -> None:
        self._store = store
        self._name = name
        self._rank = rank
        self._ranks = ranks
        self._size = len(ranks)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._nonce = secrets.token_hex(16)
        self._member = replace(member, nonce=self._nonce, ranks=ranks_digest(ranks))
        self._listen = listen
        self._job_key = key
        self._prefix = f"dc/{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        self._garbage: list[str] = []

    def run(self) -> tuple[Round, tuple[Endpoint, ...]]:
        """The round and everybody's endpoint.

        Raises RendezvousError: at the timeout, naming the ranks that did not come; when ranks
        expect different groups; when a rank has a double; when a rank cannot be reached.
        Raises StoreFailed: when the store does (chained from torch's error).
        """
        try:
            self._put(self._key("rank", self._rank), self._member.pack())
            agreed, endpoints = self._lead() if self._rank == 0 else self._follow()
            self._delete(self._garbage)
        except RendezvousError:
            raise
        except RuntimeError as error:
            # torch's DistStoreError, DistNetworkError, or a plain RuntimeError of some stores.
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise StoreFailed(f"{self._who()}: the store failed: {reason}") from error
        lost = [rank for rank, endpoint in enumerate(endpoints) if endpoint is None]
        if lost:
            raise RendezvousError(
                f"{self._who()}: {self._named(lost)} found no address that the other hosts reach; "
                f"set DISTCORE_SOCKET_IFNAME there to the interface between the hosts"
            )
        return agreed, tuple(endpoint for endpoint in endpoints if endpoint is not None)

    def _lead(self) -> tuple[Round, tuple[Endpoint | None, ...]]:
        """Rank 0: proposes until everybody in a proposal answers it."""
        rank_keys = [self._key("rank", rank) for rank in range(self._size)]

        def look_at_the_early() -> bool:
            self._members(rank_keys, self._peek(rank_keys, [None] * self._size))
            return False

        self._wait(rank_keys, rank_keys, look_at_the_early)
        packed: list[bytes | None] = list(self._get(rank_keys))
        while True:
            members = self._members(rank_keys, packed)
            proposal = Proposal(secrets.token_bytes(handshake.SECRET_BYTES), members)
            identity, proposal_key = self._propose(proposal, members)
            # Whoever is in this proposal may still read it; all have when all addresses are there.
            self._garbage.append(proposal_key)
            agreed = self._round(identity, proposal)
            endpoint = self._listen(agreed)
            keys = [self._key("address", identity, rank) for rank in range(1, self._size)]

            def is_outdated(known: list[bytes | None] = packed) -> bool:
                return self._peek(rank_keys, known) != known

            if self._wait(keys, [None, *keys], is_outdated):
                self._delete(rank_keys[:1])
                others = [
                    unpack_endpoint(key, value)
                    for key, value in zip(keys, self._get(keys), strict=True)
                ]
                endpoints = (endpoint, *others)
                self._put(self._key("complete", identity), pack_endpoints(endpoints))
                return agreed, endpoints
            packed = self._peek(rank_keys, packed)

    def _follow(self) -> tuple[Round, tuple[Endpoint | None, ...]]:
        """Another rank: answers rank 0's proposals until one is complete."""
        rank_keys = [self._key("rank", rank) for rank in range(self._size)]
        answer_key = self._key("answer", self._nonce)
        self._garbage.append(answer_key)
        self._wait([answer_key], rank_keys)
        while True:
            [packed] = self._get([answer_key])
            identity = unpack_id(answer_key, packed)
            proposal_key = self._key("proposal", identity)
            [value] = self._get([proposal_key])
            proposal = Proposal.unpack(proposal_key, value, self._size)
            if proposal.conflict is not None:
                self._refuse(proposal, proposal.conflict)
            agreed = self._round(identity, proposal)
            endpoint = self._listen(agreed)
            keys = [self._key("address", identity, rank) for rank in range(1, self._size)]
            own_key = keys[self._rank - 1]
            self._delete([rank_keys[self._rank]])
            self._put(own_key, pack_endpoint(endpoint))
            self._garbage.append(own_key)
            complete_key = self._key("complete", identity)

            def is_outdated(known: bytes = packed) -> bool:
                return self._get([answer_key]) != [known]

            if self._wait([complete_key], [None, *keys], is_outdated):
                [value] = self._get([complete_key])
                return agreed, unpack_endpoints(complete_key, value, self._size)

    def _members(
        self, keys: Sequence[str], packed: Sequence[bytes | None]
    ) -> tuple[StoreMember, ...]:
        """On rank 0: who is here (None: not yet). Tells all when they do not agree."""
        found = {
            rank: StoreMember.unpack(key, value)
            for rank, (key, value) in enumerate(zip(keys, packed, strict=True))
            if value is not None
        }
        for rank, member in found.items():
            if member.ranks != self._member.ranks:
                conflict = Proposal(bytes(handshake.SECRET_BYTES), (self._member, member), rank)
                self._propose(conflict, list(found.values()))
                self._refuse(conflict, rank)
        return tuple(found.values())

    def _propose(self, proposal: Proposal, members: Sequence[StoreMember]) -> tuple[str, str]:
        """Writes the proposal and points these ranks to it. Returns its id and its key."""
        identity = secrets.token_hex(16)
        key = self._key("proposal", identity)
        self._put(key, proposal.pack())
        answers = {
            self._key("answer", member.nonce): identity
            for member in members
            if member.nonce != self._nonce
        }
        if self._store.has_extended_api():
            self._store.multi_set(list(answers), list(answers.values()))
        else:
            for answer, value in answers.items():
                self._store.set(answer, value)
        return identity, key

    def _refuse(self, proposal: Proposal, conflict: int) -> NoReturn:
        leader, other = proposal.members
        # So that a second attempt with the right ranks does not find it.
        self._delete([self._key("rank", self._rank)])
        raise RendezvousError(
            f"{self._who()}: group rank {conflict} ({other}) makes the group with other ranks than "
            f"group rank 0 ({leader}); this rank has {list(self._ranks)}: all must make it with "
            f"the same ranks in the same order (or the store holds what a killed run has left)"
        )

    def _round(self, identity: str, proposal: Proposal) -> Round:
        digest = hashlib.sha256(f"distcore group {self._prefix} {identity}".encode()).digest()
        secret = job_key.mixed(self._job_key, proposal.secret)
        return Round(digest, secret, proposal.members)

    def _wait(
        self,
        keys: Sequence[str],
        sources: Sequence[str | None],
        is_outdated: Callable[[], bool] | None = None,
    ) -> bool:
        """Until all keys are there (True), or `is_outdated`, asked now and then, says so (False).

        `sources[rank]` is the key that shows that a group rank has done its part (None: no key
        does): at the timeout the ranks whose keys are not there are named, or else rank 0, which
        was to go on.
        """
        wanted = list(keys)
        began = time.monotonic()
        looked = began
        while not self._store.check(wanted):
            now = time.monotonic()
            if now >= self._deadline:
                raise RendezvousError(self._lateness(sources))
            if now - looked >= LOOK_AGAIN_S:
                self._check_double()
                if is_outdated is not None and is_outdated():
                    return False
                looked = time.monotonic()
            pause = min(max((now - began) / 10, FIRST_STORE_PAUSE_S), LOOK_AGAIN_S)
            time.sleep(min(pause, self._deadline - now))
        return True

    def _lateness(self, sources: Sequence[str | None]) -> str:
        missing = [
            rank
            for rank, key in enumerate(sources)
            if key is not None and not self._store.check([key])
        ]
        return (
            f"{self._who()} is not complete after {self._timeout_s:g} s: "
            f"{self._named(missing or [0])} of {self._size} did not come; see whether they run, "
            f"make the same groups in the same order, and reach the store "
            f"(Socket Timeout: timed out after {1000 * self._timeout_s:.0f}ms)"
        )

    def _check_double(self) -> None:
        """Raises when another process has taken this rank since."""
        key = self._key("rank", self._rank)
        mine = self._member.pack()
        [found] = self._peek([key], [None])
        if found is not None and found != mine.encode():
            other = StoreMember.unpack(key, found)
            raise RendezvousError(
                f"{self._who()}: {self._named([self._rank])} is claimed by two processes, "
                f"{self._member} and {other}: each rank needs a number of its own"
            )

    def _who(self) -> str:
        return f"group {self._name!a}, rank {self._ranks[self._rank]}"

    def _named(self, group_ranks: Sequence[int]) -> str:
        """Group ranks in words, with the global ranks where they differ."""
        plural = "s" if len(group_ranks) > 1 else ""
        text = f"group rank{plural} {', '.join(map(str, group_ranks))}"
        global_ranks = [self._ranks[rank] for rank in group_ranks]
        if global_ranks != list(group_ranks):
            text += f" (global {', '.join(map(str, global_ranks))})"
        return text

    def _key(self, *parts: str | int) -> str:
        return "/".join(map(str, (self._prefix, *parts)))

    def _put(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def _get(self, keys: Sequence[str]) -> list[bytes]:
        """Values of keys that are known to be there (a missing one would be waited for)."""
        if self._store.has_extended_api():
            return [bytes(value) for value in self._store.multi_get(list(keys))]
        return [bytes(self._store.get(key)) for key in keys]

    def _peek(self, keys: Sequence[str], absent: Sequence[bytes | None]) -> list[bytes | None]:
        """Values of keys that may be missing; for those, the values in `absent`."""
        # Swapping a value that no key has for itself changes nothing, and does not wait as `get`
        # does; for a missing key the store returns that value.
        found = [bytes(self._store.compare_set(key, _NOTHING, _NOTHING)) for key in keys]
        return [
            other if value == _NOTHING.encode() else value
            for value, other in zip(found, absent, strict=True)
        ]

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self._store.delete_key(key)
            except (RuntimeError, NotImplementedError):
                # Not every store can; what stays is old data to the next group, which it survives.
                return
