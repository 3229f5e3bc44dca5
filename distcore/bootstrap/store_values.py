"""The values that a rendezvous writes into the store: JSON, read strictly, since anybody may have
written it.

A value is refused as a whole, with one sentence, when it is too long, no JSON, has other fields, or
a field of another type or form. Nothing from the store is resolved, evaluated or used as a path,
and what is shown to the user consists of letters, digits, dots and dashes.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import RendezvousError
from .addresses import Host
from .dial import Endpoint

PROTOCOL = 2
TRANSPORTS = ("auto", "tcp", "shm")

_ITEM_LIMIT_BYTES = 1024
_HEX_32 = re.compile(r"[0-9a-f]{32}")
_HEX_64 = re.compile(r"[0-9a-f]{64}")
_BOOT = re.compile(r"[ -~]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9.-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Za-z.:%_-]{1,64}")
_MEMBER_FIELDS = frozenset(
    (
        "version",
        "nonce",
        "ranks",
        "boot",
        "network",
        "name",
        "pid",
        "candidate",
        "transport",
        "algorithms",
        "key",
    )
)
_TRANSPORT = re.compile("|".join(TRANSPORTS))
_KEY = re.compile(r"([0-9a-f]{32})?")
_ALGORITHMS = re.compile(r"[a-z_:,]{0,256}")


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
        return _dump(
            version=PROTOCOL,
            nonce=self.nonce,
            ranks=self.ranks,
            boot=self.host.boot,
            network=self.host.network,
            name=self.host_name,
            pid=self.pid,
            candidate=self.candidate,
            transport=self.transport,
            algorithms=self.algorithms,
            key=self.key,
        )

    @staticmethod
    def unpack(key: str, packed: bytes) -> StoreMember:
        fields = _Fields(key, packed, 1)
        version = fields.number("version", 2**31)
        if version != PROTOCOL:
            raise RendezvousError(
                f"{key} in the store speaks protocol {version}, this rank speaks {PROTOCOL}: "
                f"all ranks need the same version of distcore"
            )
        fields.are(_MEMBER_FIELDS)
        return StoreMember(
            nonce=fields.text("nonce", _HEX_32),
            ranks=fields.text("ranks", _HEX_32),
            host=Host(fields.text("boot", _BOOT), fields.number("network", 2**64)),
            host_name=fields.text("name", _NAME),
            pid=fields.number("pid", 2**31),
            candidate=fields.address("candidate"),
            transport=fields.text("transport", _TRANSPORT),
            algorithms=fields.text("algorithms", _ALGORITHMS),
            key=fields.text("key", _KEY),
        )

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
        fields = _Fields(key, packed, size + 1)
        fields.are(["secret", "members", "conflict"])
        conflict = fields.number("conflict", 2**31) if fields.has("conflict") else None
        count = size if conflict is None else 2
        members = tuple(
            StoreMember.unpack(key, packed_member)
            for packed_member in fields.items("members", count)
        )
        return Proposal(bytes.fromhex(fields.text("secret", _HEX_64)), members, conflict)


def pack_endpoint(endpoint: Endpoint | None) -> str:
    """Packs the address on which a rank listens; None: it found none that the others reach."""
    if endpoint is None:
        return _dump(address=None, port=0, unix=None)
    return _dump(address=endpoint.address, port=endpoint.port, unix=endpoint.unix_token)


def unpack_endpoint(key: str, packed: bytes) -> Endpoint | None:
    fields = _Fields(key, packed, 1)
    fields.are(["address", "port", "unix"])
    address = fields.address("address")
    if address is None:
        return None
    unix_token = fields.text("unix", _HEX_32) if fields.has("unix") else None
    return Endpoint(address, fields.number("port", 2**16), unix_token)


def pack_endpoints(endpoints: Collection[Endpoint | None]) -> str:
    return _dump(endpoints=[pack_endpoint(endpoint) for endpoint in endpoints])


def unpack_endpoints(key: str, packed: bytes, size: int) -> tuple[Endpoint | None, ...]:
    fields = _Fields(key, packed, size)
    fields.are(["endpoints"])
    return tuple(unpack_endpoint(key, packed_one) for packed_one in fields.items("endpoints", size))


def unpack_id(key: str, packed: bytes) -> str:
    """A proposal's id: 32 hexadecimal digits."""
    text = packed.decode("latin-1")
    if not _HEX_32.fullmatch(text):
        raise RendezvousError(_complaint(key, "it is no id"))
    return text


def shown_host_name(name: str) -> str:
    """A host's name as it may stand in the store and in a message."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)[:64] or "-"


def _dump(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _complaint(key: str, reason: str) -> str:
    return f"the store's {key} was not written by this version of distcore: {reason}"


class _Fields:
    """The fields of one JSON object; whatever is not as expected is refused."""

    def __init__(self, key: str, packed: bytes, items: int) -> None:
        self._key = key
        limit = _ITEM_LIMIT_BYTES * (items + 1)
        if len(packed) > limit:
            raise RendezvousError(_complaint(key, f"{len(packed)} bytes, the limit is {limit}"))
        try:
            value = json.loads(packed)
        except (ValueError, RecursionError):
            raise RendezvousError(_complaint(key, "it is no JSON")) from None
        if not isinstance(value, dict):
            raise RendezvousError(_complaint(key, "it is no object"))
        self._values: dict[str, object] = value

    def are(self, names: Collection[str]) -> None:
        if self._values.keys() != set(names):
            raise RendezvousError(_complaint(self._key, "it has other fields"))

    def has(self, field: str) -> bool:
        return self._values.get(field) is not None

    def text(self, field: str, form: re.Pattern[str]) -> str:
        value = self._values.get(field)
        if not isinstance(value, str) or not form.fullmatch(value):
            raise self._refusal(field)
        return value

    def number(self, field: str, below: int) -> int:
        value = self._values.get(field)
        if type(value) is not int or not 0 <= value < below:
            raise self._refusal(field)
        return value

    def address(self, field: str) -> str | None:
        if not self.has(field):
            return None
        text = self.text(field, _ADDRESS)
        try:
            ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise self._refusal(field) from None
        return text

    def items(self, field: str, count: int) -> list[bytes]:
        """A list of `count` values that were packed on their own."""
        value = self._values.get(field)
        if not isinstance(value, list) or len(value) != count:
            raise self._refusal(field)
        if not all(isinstance(each, str) for each in value):
            raise self._refusal(field)
        return [each.encode() for each in value]

    def _refusal(self, field: str) -> RendezvousError:
        return RendezvousError(_complaint(self._key, f"its {field} is missing or malformed"))
