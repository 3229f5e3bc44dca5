"""The handshake by which two ranks prove that they know the group's secret: bytes in, bytes out.

    dialler  -> acceptor   hello     magic, version, lane, from, to, group, nonce      82 bytes
    acceptor -> dialler    reply     nonce, HMAC(secret, "acceptor", hello, nonce)     64 bytes
    dialler  -> acceptor   proof     HMAC(secret, "dialler ", hello, nonce)            32 bytes

HMAC is HMAC-SHA256, the nonces are 32 random bytes. Everything that was agreed on is in the MAC,
so no part can be exchanged, and the acceptor's nonce is new each time, so a recording is worth
nothing. Every message has one length: nothing is parsed that was not proven, but the hello.

The secret comes through torch's store, which anybody reads and writes who reaches its port. A job
may have a key, which its launcher or user hands to the ranks past the network: a file that only its
owner can read, named by DISTCORE_KEY_FILE. Mixed with the key, what lies in the store lets nobody
into a group. What follows the handshake is neither encrypted nor signed: an attacker who can alter
packets between the hosts can alter data.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import struct
from dataclasses import dataclass

from ..errors import RendezvousError

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


KEY_FILE_VARIABLE = "DISTCORE_KEY_FILE"
_LAUNCHERS = "DISTDEBUG_KEY_FILE"
"""The variable of a key that a launcher has made for the ranks of one host; the user's goes before
it."""
LEAST_BYTES = 32
_MOST_BYTES = 4096
_known: dict[str, bytes] = {}
"""Keys that were read already: the file may be removed while the job runs."""


def job_key() -> bytes:
    """The key, empty where none is named. Raises RendezvousError for a file that cannot be read, is
    open to others than its owner, or holds less than 32 bytes."""
    path = os.environ.get(KEY_FILE_VARIABLE, os.environ.get(_LAUNCHERS, ""))
    if not path:
        return b""
    try:
        # Not blocking: what is named may be a pipe that nobody writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        if path in _known:
            return _known[path]
        raise _refusal(path, f"cannot be read: {error}") from None
    except (OSError, ValueError) as error:
        raise _refusal(path, f"cannot be read: {error}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _refusal(path, "is no plain file")
        if found.st_uid not in (os.geteuid(), 0):
            raise _refusal(path, f"belongs to user {found.st_uid}, not to the one of this rank")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise _refusal(path, f"is open to other users (mode {mode:04o}): chmod 600 {path}")
        key = os.read(descriptor, _MOST_BYTES)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error}") from None
    finally:
        os.close(descriptor)
    if len(key) < LEAST_BYTES:
        raise _refusal(path, f"holds {len(key)} bytes, a key has {LEAST_BYTES} or more")
    _known[path] = key
    return key


def fingerprint(key: bytes) -> str:
    """Returns a text by which ranks see whether they have one key; it gives nothing of it away.
    Empty for none."""
    return hashlib.sha256(b"distcore key\0" + key).hexdigest()[:32] if key else ""


def mixed(key: bytes, secret: bytes) -> bytes:
    """A secret for which one must know both; the secret itself where there is no key."""
    return hmac.digest(key, b"distcore group\0" + secret, "sha256") if key else secret


def _refusal(path: str, why: str) -> RendezvousError:
    return RendezvousError(f"{KEY_FILE_VARIABLE}: {path!a} {why}")
