"""What can be read is seen, whatever its descriptor's number is."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from distdebug.record.streams import readable

FAR = 1500
"""Beyond what `select.select` takes."""


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * FAR if soft == resource.RLIM_INFINITY else max(soft, 2 * FAR)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_number_and_a_socket() -> None:
    here, there = socket.socketpair()
    reading, writing = os.pipe()
    far = fcntl.fcntl(reading, fcntl.F_DUPFD, FAR)
    try:
        assert far >= FAR
        assert readable([here, far], 0) == []
        os.write(writing, b"x")
        assert readable([here, far]) == [far]
        there.send(b"y")
        assert readable([here, far], 5.0) == [here, far]
        there.close()
        os.read(far, 1)
        here.recv(1)
        assert readable([here, far], 5.0) == [here], "it has ended"
    finally:
        for one in (reading, writing, far):
            os.close(one)
        here.close()
