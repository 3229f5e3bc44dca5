"""The messages between supervisors: a kind, one JSON object, and bytes. Nothing is unpickled.

    node -> head     hello, pong, digest, injected, ended, stacks, stops, prompt, answer,
                     interrupted, files, watch, request, bye
    head -> node     welcome, refused, ping, pace, tell, anew, plan, verdict, stacks, fill, action,
                     stops, prompt, view, reply, report, stop, end; hello: say once more who you are

Sizes are checked before anything is parsed: ZeroMQ drops a connection that sends more than
`MOST_BYTES` in one part, and a JSON object that would take much memory is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record.safe_files import object_of

MOST_BYTES = 16 << 20
"""The most bytes of one part of a message."""
MOST_JSON_COST_BYTES = 160 << 20
KINDS = frozenset(
    {
        *("hello", "pong", "digest", "injected", "ended", "stacks", "interrupted", "files"),
        *("stops", "prompt", "answer", "bye"),
        *("welcome", "refused", "ping", "verdict", "fill", "action", "report"),
        *("plan", "stop", "end", "pace", "tell", "anew"),
        *("watch", "request", "view", "reply"),
    }
)
_MOST_KIND_BYTES = 32
_JSON = json.JSONEncoder(separators=(",", ":"), default=str)


class MessageError(ValueError):
    """These bytes are no message of ours."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message between supervisors. `blob` is what JSON is too dear for."""

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    blob: bytes = b""

    def parts(self) -> list[bytes]:
        """Returns the frames of the message, as they are sent."""
        text = _JSON.encode(self.data).encode()
        return [self.kind.encode(), text, self.blob] if self.blob else [self.kind.encode(), text]


def message_of(parts: Sequence[bytes]) -> Message:
    """Raises MessageError."""
    if len(parts) not in (2, 3) or len(parts[0]) > _MOST_KIND_BYTES:
        raise MessageError("it is no message of distdebug")
    kind = parts[0].decode("ascii", "replace")
    if kind not in KINDS:
        raise MessageError(f"it is a message of an unknown kind, {kind!r}")
    if not parts[1].lstrip().startswith(b"{"):
        raise MessageError(f"a message {kind!r} has no JSON object")
    data = object_of(parts[1], MOST_JSON_COST_BYTES)
    if not data and parts[1] != b"{}":
        raise MessageError(f"the JSON object of a message {kind!r} cannot be read")
    return Message(kind, data, parts[2] if len(parts) == 3 else b"")
