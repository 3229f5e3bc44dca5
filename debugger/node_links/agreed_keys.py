"""The CurveZMQ keys of nodes that were given one job key: a pair for the head, one for the others.

Whoever has the job key can derive both, and nobody else either of them: the head proves by its
pair that it has the job key, and so does each node by the other. Versions of distdebug derive the
same, so that nodes of two versions come to speak, and say that they are of two versions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

_HEAD, _NODE = b"distdebug head", b"distdebug node"


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of keys as ZeroMQ writes them, 40 letters each."""

    public: bytes
    secret: bytes = field(repr=False)


def head_pair(job_key: bytes) -> Pair:
    """Returns the keys of the node that listens."""
    return _pair(job_key, _HEAD)


def node_pair(job_key: bytes) -> Pair:
    """Returns the keys of all other nodes."""
    return _pair(job_key, _NODE)


def _pair(job_key: bytes, label: bytes) -> Pair:
    """BLAKE2b keyed by the digest of the job key, which may be longer than a key of BLAKE2b."""
    root = hashlib.blake2b(job_key, digest_size=64, person=b"distdebug key").digest()
    secret = z85.encode(hashlib.blake2b(label, digest_size=32, key=root).digest())
    return Pair(zmq.curve_public(secret), secret)
