"""What `ssh` is between real nodes: a command on one of them has another run on its neighbour.

`remote_shell.serve(nodes)` gives the path of a program that launchers take for a remote shell, as
in `mpirun --prtemca plm_ssh_agent PATH`: `PATH NODE WORDS...` runs the words, joined, in a shell on
that node, with the streams of whoever asked, an environment of its own, and the exit code handed
back. A thread of the tests does that, for a node sees no process of another.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .nodes import Nodes

_CLIENT = """#!{python} -IS
import json, os, socket, sys
words = [word for word in sys.argv[1:] if word != "-x"]
asked = socket.socket(socket.AF_UNIX)
asked.connect({socket!r})
request = json.dumps({{"node": words[0], "line": " ".join(words[1:])}}).encode()
socket.send_fds(asked, [request], [0, 1, 2])
answer = asked.recv(64)
sys.exit(int(answer) if answer else 255)
"""
_MOST_BYTES = 1 << 16
_KEPT = ("PATH", "HOME", "LANG", "USER")
"""What a shell on another node has of the environment: no more than `ssh` would give it."""


@contextmanager
def serve(nodes: Nodes) -> Iterator[Path]:
    """The program, as long as the block lasts."""
    program, place = nodes.directory / "remote-shell", nodes.directory / "remote-shell.socket"
    program.write_text(_CLIENT.format(python=sys.executable, socket=str(place)))
    program.chmod(0o700)
    running: list[subprocess.Popen[bytes]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        thread = threading.Thread(target=_accept, args=(nodes, listener, running), daemon=True)
        thread.start()
        try:
            yield program
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for process in running:
                process.kill()
                process.wait()


def _accept(nodes: Nodes, listener: socket.socket, running: list[subprocess.Popen[bytes]]) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:
            return  # it was shut down
        request, streams, _, _ = socket.recv_fds(asked, _MOST_BYTES, 3)
        question = json.loads(request)
        node = next((one for one in nodes if question["node"] in (one.name, one.address)), None)
        if node is None or not node.is_up:
            asked.close()  # as if it could not be reached
        else:
            env = {name: os.environ[name] for name in _KEPT if name in os.environ}
            process = node.execute(["sh", "-c", question["line"]], env, streams)
            running.append(process)
            threading.Thread(target=_answer, args=(asked, process), daemon=True).start()
        for stream in streams:
            os.close(stream)


def _answer(asked: socket.socket, process: subprocess.Popen[bytes]) -> None:
    code = process.wait()
    with asked:
        try:
            asked.sendall(str(code if code >= 0 else 128 - code).encode())
        except OSError:
            pass  # whoever asked is gone
