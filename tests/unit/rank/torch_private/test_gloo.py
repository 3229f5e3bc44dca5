"""gloo's connections are shut down once each, by however many threads."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from distdebug.rank.torch_private.gloo import GlooSockets


def test_another_thread_shuts_them_down_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = GlooSockets()
    with sockets.remembered("0"):
        pairs = [socket.socketpair() for _ in range(2)]
    of_other: list[bool] = []
    readlink = os.readlink

    def read(path: Any) -> str:
        if not of_other:  # as this thread has just begun
            of_other.append(False)
            of_other.append(sockets.shut_down())
        return readlink(path)

    monkeypatch.setattr(os, "readlink", read)
    assert sockets.shut_down()
    assert of_other == [False, True]
    assert not sockets.belong_to("0")
    for pair in pairs:
        for one in pair:
            assert one.recv(1) == b""
            one.close()
