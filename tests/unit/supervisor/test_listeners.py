"""Who listens at an address, by this host's kernel."""

from __future__ import annotations

import os
import socket

from debugger.supervisor.listeners import Listener, who_listens


def test_a_process_of_this_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"tcp://127.0.0.1:{port}", f"localhost:{port}"):
            heard = who_listens(address)
            assert heard is not None
            assert heard.address.endswith(f":{port}")
            assert heard.holder.startswith(f"process {os.getpid()} (")
    assert who_listens(f"127.0.0.1:{port}") == Listener(f"127.0.0.1:{port}", "")


def test_what_this_host_cannot_tell() -> None:
    for address in ("", "file:///tmp/x", "TCPStore:29500", "192.0.2.1:29500", "a:b"):
        assert who_listens(address) is None
