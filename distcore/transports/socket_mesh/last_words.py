"""The last words of a failed peer, on a connection that another part of this process reads."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

from ..frames import FAIL, FAIL_BYTES, HEADER, MAGIC

_MOST_BYTES = 8 * 1024 * 1024
_MARK = struct.pack("<HB", MAGIC, FAIL)


def last_words(descriptor: int) -> bytes | None:
    """The payload of the failure at the end of what a peer sent, if it lies there unread (see
    `frames.failure_from`). Takes nothing away; the peer must have ended the connection."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
            size = int.from_bytes(answer, "little")
            if not 0 < size <= _MOST_BYTES:
                return None
            unread = connection.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return None
    begin = unread.rfind(_MARK, max(0, len(unread) - HEADER.size - FAIL_BYTES))
    if begin < 0 or begin + HEADER.size > len(unread):
        return None
    payload = unread[begin + HEADER.size :]
    length = HEADER.unpack_from(unread, begin)[-1]
    return payload if len(payload) == length else None
