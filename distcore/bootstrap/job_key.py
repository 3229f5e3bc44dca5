"""The key of a job, which its launcher or user hands to the ranks past the network: a file that
only its owner can read, named by DISTCORE_KEY_FILE.

A group's secret comes through torch's store, which anybody reads and writes who reaches its port.
Mixed with the key, what lies in the store lets nobody into a group.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat

from ..errors import RendezvousError

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
