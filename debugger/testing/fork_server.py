"""The fork server: a process with torch loaded, without threads and groups, that forks ranks.

It is started with a descriptor: of a socket on which pytest tells it what to load
and which ranks to start, and on which it tells how they ended. pytest is loaded first, so that
whatever it would rewrite the assertions of is loaded by it here and in every rank alike. When the
socket ends, everything below is killed.

A request: {"start": {...}, "ranks": n} with n sockets, one for each rank; {"kill": true}. An
answer: {"ready": threads}, {"started": [pids]}, {"pid", "status", "time_ns"}, {"killed": true}.
A rank is what `start["main"]`, a `module:function`, makes of it, by default `rank_session.main`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from ..hook import loading
from ..system import proc

_PR_SET_PDEATHSIG = 1


def _load_pytest(request: dict[str, Any]) -> None:
    """Import what a rank's pytest needs, by making a configuration that nobody uses."""
    from _pytest.config import get_config

    arguments = ["-c", os.devnull, "--rootdir", os.sep, "--noconftest", "-p", "no:cacheprovider"]
    for name in request["blocked"]:
        arguments += ["-p", name]
    try:
        config = get_config(arguments)
        config.parse(arguments, addopts=False)
    except Exception as error:  # a plugin that does not like this: each rank loads it itself
        sys.stderr.write(f"the plugins of pytest are not loaded before the ranks: {error!r}\n")


class Server:
    """Sleeps until pytest says something or a child ends."""

    def __init__(self, connection: socket.socket) -> None:
        from ..supervisor.command import warden
        from . import channel, rank_session

        self._warden = warden
        self._main = f"{rank_session.__name__}:main"
        self._connection = connection
        self._channel = channel.MessageChannel(connection)
        self._rank_channel = channel.MessageChannel

    def run(self) -> None:
        self._warden.become_subreaper()
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._channel.send({"ready": len(proc.threads())})
        while not self._channel.ended:
            watched: list[Any] = [self._connection, self._woken]
            ready = select.select(watched, [], [])[0]
            if self._woken in ready:
                os.read(self._woken, 512)
                self._reap()
            if self._connection in ready:
                for message in self._channel.receive():
                    if "start" in message:
                        self._start(message["start"], int(message["ranks"]))
                    elif "kill" in message:
                        self._reap()
                        self._warden.kill_all_below(os.getpid())
                        self._channel.send({"killed": True})
        self._warden.kill_all_below(os.getpid())

    def _start(self, request: dict[str, Any], count: int) -> None:
        descriptors = self._channel.take_descriptors(count)
        listener = socket.socket()  # of the store, which needs no port of its own by this
        listener.bind(("127.0.0.1", 0))
        listener.listen(4 * count + 16)
        pids = []
        for rank, descriptor in enumerate(descriptors):
            pid = os.fork()
            if not pid:
                try:
                    # This is the child: drop what is the server's.
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    self._connection.close()
                    others = (one for one in descriptors if one != descriptor)
                    for other in (self._woken, self._wake, *others):
                        os.close(other)
                    os.setsid()
                    # Were the server killed, nobody else would end its ranks.
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    with listener:
                        channel = self._rank_channel(socket.socket(fileno=descriptor))
                        module, _, name = str(request.get("main", self._main)).partition(":")
                        main = getattr(importlib.import_module(module), name)
                        main(rank, count, channel, request, listener)
                finally:
                    os._exit(120)
            pids.append(pid)
        listener.close()
        for descriptor in descriptors:
            os.close(descriptor)
        self._channel.send({"started": pids})

    def _reap(self) -> None:
        for end in self._warden.ended_children():
            self._channel.send(end)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    line = b""
    while not line.endswith(b"\n"):
        received = connection.recv(1 << 16)
        if not received:
            return
        line += received
    request = json.loads(line)
    sys.path[:] = request["sys_path"]
    if request["load_plugins"]:
        _load_pytest(request)
    for name in ("torch", "torch.distributed", "pdb", "numpy"):
        try:
            importlib.import_module(name)
        except ImportError:
            if name.startswith("torch"):
                raise
    with loading.core:
        for name in ("rank.install", "testing.rank_session"):
            loading.load(name)
    for name in request["preload"]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here already is garbage for no rank, and need not be copied for it
    Server(connection).run()
