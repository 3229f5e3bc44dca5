"""The handshake by which two ranks prove that they know the group's secret: bytes in, bytes out.

    dialler  -> acceptor   hello     magic, version, lane, from, to, group, nonce      82 bytes
    acceptor -> dialler    reply     nonce, HMAC(secret, "acceptor", hello, nonce)     64 bytes
    dialler  -> acceptor   proof     HMAC(secret, "dialler ", hello, nonce)            32 bytes

HMAC is HMAC-SHA256, the nonces are 32 random bytes. Everything that was agreed on is in the MAC,
so no part can be exchanged, and the acceptor's nonce is new each time, so a recording is worth
nothing. Every message has one length: nothing is parsed that was not proven, but the hello.

The secret comes through the group's store, so without a key of the job (see `job_key`) whoever
reaches the store can join. What follows the handshake is neither encrypted nor signed: an attacker
who can alter packets between the hosts can alter data.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass

NONCE_BYTES = 32
GROUP_BYTES = 32
SECRET_BYTES = 32
PROOF_BYTES = 32
REPLY_BYTES = NONCE_BYTES + PROOF_BYTES

PROBE_LANE = 255
"""A hello for this lane asks whether the group is still there; the reply is all that follows."""

_MAGIC = b"distcore"
_VERSION = 1
_HELLO = struct.Struct(f">8sBBII{GROUP_BYTES}s{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size

# Of one length, so that no role and transcript can be mistaken for another role's.
_ACCEPTOR = b"acceptor"
_DIALLER = b"dialler "


class HandshakeRefused(Exception):
    """The other side is not who it should be; the connection is to be dropped."""


@dataclass(frozen=True)
class Hello:
    """The caller and the called: group ranks, the lane, and the group's digest (`GROUP_BYTES`)."""

    group: bytes
    lane: int
    sender: int
    receiver: int

    def pack(self) -> bytes:
        """`HELLO_BYTES` with a fresh nonce: no two are equal."""
        return _HELLO.pack(
            _MAGIC,
            _VERSION,
            self.lane,
            self.sender,
            self.receiver,
            self.group,
            secrets.token_bytes(NONCE_BYTES),
        )

    @staticmethod
    def unpack(packed: bytes) -> Hello:
        """Reads `HELLO_BYTES` from an unauthenticated peer; raises HandshakeRefused."""
        magic, version, lane, sender, receiver, group, _ = _HELLO.unpack(packed)
        if magic != _MAGIC or version != _VERSION:
            raise HandshakeRefused("not a distcore hello of this version")
        return Hello(group, lane, sender, receiver)


def reply(secret: bytes, hello: bytes) -> bytes:
    """The acceptor's answer to a packed hello, `REPLY_BYTES`."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + _mac(secret, _ACCEPTOR, hello, nonce)


def proof(secret: bytes, hello: bytes, answer: bytes) -> bytes:
    """The dialler's last word, `PROOF_BYTES`, once the acceptor's reply holds.

    Raises HandshakeRefused when the acceptor does not know the secret.
    """
    nonce = answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _mac(secret, _ACCEPTOR, hello, nonce)):
        raise HandshakeRefused("the acceptor does not know the group's secret")
    return _mac(secret, _DIALLER, hello, nonce)


def verify(secret: bytes, hello: bytes, answer: bytes, claimed: bytes) -> None:
    """The acceptor's check of the dialler's proof; raises HandshakeRefused."""
    expected = _mac(secret, _DIALLER, hello, answer[:NONCE_BYTES])
    if not hmac.compare_digest(claimed, expected):
        raise HandshakeRefused("the dialler does not know the group's secret")


def _mac(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + hello + nonce, "sha256")
