"""An offer, which one supervisor hands to the others through the job's own store: an address and a
key.

The key is the public half of a pair that the supervisor has made for this run: whoever reads the
store learns where the head listens and can check that it is the head, and can say nothing to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..record.safe_files import object_of

SCHEMA = "distdebug.nodes/2"
MOST_BYTES = 1024
"""The most bytes of an offer in the store."""
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85, in which ZeroMQ writes its keys of 32 bytes."""


class OfferError(ValueError):
    """The entry in the store is no offer that this version can take; the sentence says why."""


def is_key(text: str) -> bool:
    """Whether this can be a public key."""
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Offer:
    """The address at which a supervisor listens, and its public key."""

    address: str
    port: int
    key: str
    host: str = ""

    def text(self) -> str:
        """Returns one line of JSON, as it stands in the store."""
        import json

        value = {
            "schema": SCHEMA,
            "address": self.address,
            "port": self.port,
            "key": self.key,
            "host": self.host,
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Offer:
        """Raises OfferError."""
        value = object_of(text.encode("utf-8", "replace")[: MOST_BYTES + 1])
        schema = value.get("schema")
        if not isinstance(schema, str) or not schema.startswith("distdebug.nodes/"):
            raise OfferError("what stands in the job's store for distdebug is none of its offers")
        try:
            return cls._of(value)
        except OfferError:
            if schema == SCHEMA:
                raise
            raise OfferError(
                f"the head speaks {schema[:40]!r}, and this distdebug {SCHEMA!r}: "
                "install one version on all nodes"
            ) from None

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> Offer:
        """Takes an offer of another version, too, where that has kept the form: the head then
        refuses the node, and both say why. A node that stayed away would be said by itself
        alone."""
        address, port, key = value.get("address"), value.get("port"), value.get("key")
        host = value.get("host")
        try:
            ipaddress.ip_address(str(address))
        except ValueError:
            raise OfferError("the head's offer in the job's store has no address") from None
        if type(port) is not int or not 0 < port < 1 << 16:
            raise OfferError("the head's offer in the job's store has no port")
        if not isinstance(key, str) or not is_key(key):
            raise OfferError("the head's offer in the job's store has no key")
        return cls(str(address), port, key, str(host)[:255] if isinstance(host, str) else "")

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ names it."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"tcp://{address}:{self.port}"
