"""The ranks of a group find each other through torch's store, also a store with old data in it.

Keys, below `dc/<digest of the group's name>/`:

    rank/<rank>             who is here: a nonce of this attempt, ranks, host, candidate address
    answer/<nonce>          rank 0 to one rank: the id of the proposal that it is in
    proposal/<id>           rank 0 to all: the secret and everybody's rank/ value, as rank 0 read it
    address/<id>/<rank>     where the rank listens, now that it knows who is on its host
    complete/<id>           rank 0 to all: everybody's address

**Values** are JSON, read strictly, since anybody may have written them. A value is refused as a
whole, with one sentence, when it is too long, no JSON, has other fields, or a field of another type
or form. Nothing from the store is resolved, evaluated or used as a path, and what is shown to the
user consists of letters, digits, dots and dashes.

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
import ipaddress
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from ..base.linux import Host
from ..errors import RendezvousError, StoreFailed
from ..limits import FIRST_STORE_PAUSE_S, LOOK_AGAIN_S
from . import handshake
from .dial import Endpoint

PROTOCOL = 2
TRANSPORTS = ("auto", "tcp", "shm")

_ITEM_LIMIT_BYTES = 1024
_HEX_32 = re.compile(r"[0-9a-f]{32}")
_HEX_64 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]{1,64}")
_Forms = dict[str, "re.Pattern[str] | int | None"]
"""By field: the form of a text, what a number is below, or None: a list of texts."""
_MEMBER: _Forms = {
    "version": 2**31,
    "nonce": _HEX_32,
    "ranks": _HEX_32,
    "boot": re.compile(r"[ -~]{1,64}"),
    "network": 2**64,
    "name": re.compile(r"[A-Za-z0-9.-]{1,64}"),
    "pid": 2**31,
    "candidate": _ADDRESS,
    "transport": re.compile("|".join(TRANSPORTS)),
    "algorithms": re.compile(r"[a-z_:,]{0,256}"),
    "key": re.compile(r"([0-9a-f]{32})?"),
}
_PROPOSAL: _Forms = {"secret": _HEX_64, "members": None, "conflict": 2**31}
_ENDPOINT: _Forms = {"address": _ADDRESS, "port": 2**16, "unix": _HEX_32}
_MAY_BE_NULL = ("candidate", "conflict", "address", "unix")


@dataclass(frozen=True)
class StoreMember:
    """A rank of one attempt: `nonce` is its own, `ranks` a digest of the ranks it expects."""

    nonce: str
    ranks: str
    host: Host
    host_name: str
    pid: int
    candidate: str | None
    transport: str
    algorithms: str
    """The user's choice of algorithms; all ranks must choose alike."""
    key: str = ""
    """The fingerprint of the job's key; empty where the rank has none."""

    def pack(self) -> str:
        fields = asdict(self)
        return _dump(version=PROTOCOL, **fields.pop("host"), name=fields.pop("host_name"), **fields)

    @staticmethod
    def unpack(key: str, packed: bytes) -> StoreMember:
        fields = _fields(key, packed, _MEMBER)
        del fields["version"]
        host = Host(fields.pop("boot"), fields.pop("network"))
        return StoreMember(host=host, host_name=fields.pop("name"), **fields)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host_name}"


@dataclass(frozen=True)
class Proposal:
    """The ranks that rank 0 has found; or, with `conflict`, that this rank expects another group
    than rank 0 does: then `members` are just these two, and there will be no group."""

    secret: bytes
    members: tuple[StoreMember, ...]
    conflict: int | None = None

    def pack(self) -> str:
        return _dump(
            secret=self.secret.hex(),
            members=[member.pack() for member in self.members],
            conflict=self.conflict,
        )

    @staticmethod
    def unpack(key: str, packed: bytes, size: int) -> Proposal:
        fields = _fields(key, packed, _PROPOSAL, size + 1)
        conflict = fields["conflict"]
        given = _listed(key, fields, "members", size if conflict is None else 2)
        members = tuple(StoreMember.unpack(key, one) for one in given)
        return Proposal(bytes.fromhex(fields["secret"]), members, conflict)


def pack_endpoint(endpoint: Endpoint | None) -> str:
    """Packs the address on which a rank listens; None: it found none that the others reach."""
    if endpoint is None:
        return _dump(address=None, port=0, unix=None)
    return _dump(address=endpoint.address, port=endpoint.port, unix=endpoint.unix_token)


def unpack_endpoint(key: str, packed: bytes) -> Endpoint | None:
    fields = _fields(key, packed, _ENDPOINT)
    address, port, unix_token = fields["address"], fields["port"], fields["unix"]
    return None if address is None else Endpoint(address, port, unix_token)


def unpack_id(key: str, packed: bytes) -> str:
    """A proposal's id: 32 hexadecimal digits."""
    text = packed.decode("latin-1")
    if not _HEX_32.fullmatch(text):
        raise _complaint(key, "it is no id")
    return text


def own_member(
    host: Host, candidate: str | None, transport: str = "auto", algorithms: str = "", key: str = ""
) -> StoreMember:
    """This process, before it joins."""
    # As it may stand in the store and in a message.
    name = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "-"
    return StoreMember("", "", host, name, os.getpid(), candidate, transport, algorithms, key)


def _dump(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _complaint(key: str, reason: str) -> RendezvousError:
    return RendezvousError(
        f"the store's {key} was not written by this version of distcore: {reason}"
    )


def _fields(key: str, packed: bytes, forms: _Forms, items: int = 1) -> dict[str, Any]:
    """The fields of one JSON object with up to so many items; whatever is not as expected is
    refused."""
    limit = _ITEM_LIMIT_BYTES * (items + 1)
    if len(packed) > limit:
        raise _complaint(key, f"{len(packed)} bytes, the limit is {limit}")
    try:
        fields = json.loads(packed)
    except (ValueError, RecursionError):
        raise _complaint(key, "it is no JSON") from None
    if not isinstance(fields, dict):
        raise _complaint(key, "it is no object")
    version = fields.get("version")
    if type(version) is int and version != PROTOCOL:
        raise RendezvousError(
            f"{key} in the store speaks protocol {version}, this rank speaks {PROTOCOL}: "
            f"all ranks need the same version of distcore"
        )
    if fields.keys() != forms.keys():
        raise _complaint(key, "it has other fields")
    for name, form in forms.items():
        if not _is_of(form, fields[name], name in _MAY_BE_NULL):
            raise _malformed(key, name)
    return fields


def _is_of(form: re.Pattern[str] | int | None, value: object, may_be_null: bool) -> bool:
    if value is None:
        return may_be_null
    if form is None:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if isinstance(form, int):
        return type(value) is int and 0 <= value < form
    if not isinstance(value, str) or not form.fullmatch(value):
        return False
    if form is _ADDRESS:
        try:
            ipaddress.ip_address(value.partition("%")[0])
        except ValueError:
            return False
    return True


def _malformed(key: str, field: str) -> RendezvousError:
    return _complaint(key, f"its {field} is missing or malformed")


def _listed(key: str, fields: dict[str, Any], name: str, count: int) -> list[bytes]:
    """A list of `count` values that were packed on their own."""
    if len(fields[name]) != count:
        raise _malformed(key, name)
    return [each.encode() for each in fields[name]]


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


class Joining:
    """An attempt of one rank to make the group; `run` once."""

    def __init__(
        self,
        store: Any,
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
        digest = hashlib.sha256(repr([int(one) for one in ranks]).encode()).hexdigest()[:32]
        self._member = replace(member, nonce=self._nonce, ranks=digest)
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
            self._store.set(self._key("rank", self._rank), self._member.pack())
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
                self._store.set(
                    self._key("complete", identity),
                    _dump(endpoints=[pack_endpoint(one) for one in endpoints]),
                )
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
            self._store.set(own_key, pack_endpoint(endpoint))
            self._garbage.append(own_key)
            complete_key = self._key("complete", identity)

            def is_outdated(known: bytes = packed) -> bool:
                return self._get([answer_key]) != [known]

            if self._wait([complete_key], [None, *keys], is_outdated):
                [value] = self._get([complete_key])
                fields = _fields(complete_key, value, {"endpoints": None}, self._size)
                packed_ones = _listed(complete_key, fields, "endpoints", self._size)
                return agreed, tuple(unpack_endpoint(complete_key, one) for one in packed_ones)

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
        self._store.set(key, proposal.pack())
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
        secret = handshake.mixed(self._job_key, proposal.secret)
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
                # Raises when another process has taken this rank since.
                key = self._key("rank", self._rank)
                mine = self._member.pack()
                [found] = self._peek([key], [None])
                if found is not None and found != mine.encode():
                    other = StoreMember.unpack(key, found)
                    raise RendezvousError(
                        f"{self._who()}: {self._named([self._rank])} is claimed by two processes, "
                        f"{self._member} and {other}: each rank needs a number of its own"
                    )
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
