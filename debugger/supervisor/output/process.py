"""The supervisor's handle on the process that drains what the ranks print (`drain`).

It keeps the reading ends of all ranks, too: where the drain is killed, another one goes on with
them, and no rank is killed by a pipe that nobody reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...hook.loading import command
from ...record.limits import POLL_EVERY_S
from ...record.log_file import in_bytes
from ...record.safe_files import short_name
from ...system import proc
from ..limits import RETRY_S
from .drain import NAME, PACKET_BYTES
from .lines import QuietLooks

_BACKLOG = 4096


class OutputProcess:
    """Drains the ranks of one run. `on_lost` is called, in the thread that listens, with the reason
    why a part of the output is not kept. Raises OSError where it cannot be set up: then ranks print
    where they would without it."""

    def __init__(
        self,
        directory: Path,
        log_max_mb: float,
        *,
        colour: bool,
        defuse: bool = False,
        on_lost: Callable[[str], None],
    ) -> None:
        """`defuse`: nothing that is shown is a command to a CI system."""
        self._directory = directory
        self._request = {
            "logs": str(directory / "logs"),
            "most_bytes": in_bytes(log_max_mb),
            "colour": colour,
            "defuse": defuse,
            "encodings": [
                getattr(one, "encoding", None) or "utf-8" for one in (sys.stdout, sys.stderr)
            ],
        }
        self._on_lost = on_lost
        self._shown = True
        self._finishing = False
        self._finished = threading.Event()
        self._closed = False
        self._heard = 0
        """The number of messages from the drain so far."""
        self._kept: dict[int, tuple[int, str]] = {}
        self._next = 0
        self._starts = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with short_name(directory) as folder:
                before = os.umask(0o177)
                try:
                    self._listener.bind(f"{folder}/{NAME}")
                finally:
                    os.umask(before)
            self._listener.listen(_BACKLOG)
            self._control, self._process = self._spawn()
        except OSError:
            self._listener.close()
            raise
        with contextlib.suppress(OSError, ValueError):  # it keeps a descriptor of each stream
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._thread = threading.Thread(target=self._serve, name="distdebug-output", daemon=True)
        self._thread.start()

    def show(self, shown: bool) -> None:
        """Whether the ranks' output is shown: an app may have the terminal."""
        if shown != self._shown:
            self._shown = shown
            self._send({"show": shown})

    def finish(self, timeout_s: float = 60.0, stalled_s: float = 2.0) -> None:
        """Waits until all that the ranks have printed so far is shown. Call it when they are gone.

        Gives up after `timeout_s`, or when the drain waits and says nothing for `stalled_s`; what
        was not shown is still in the files.
        """
        self._finishing = True
        deadline_s = time.monotonic() + timeout_s
        looks = QuietLooks(POLL_EVERY_S, stalled_s, self._heard)
        self._send({"finish": True})
        while not self._finished.wait(POLL_EVERY_S):
            quiet = looks.too_many(self._heard, self._drain_runs())
            if quiet or time.monotonic() > deadline_s:
                self._process.kill()
                break
        self.close()

    def close(self) -> None:
        """Lets the drain end with the last of the ranks; a daemon's output is shown as long as it
        lives."""
        self._closed = True
        self._send({"close": True})
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)
        self._control.close()
        self._listener.close()
        for descriptor, _ in self._kept.values():
            os.close(descriptor)
        self._kept.clear()
        with contextlib.suppress(OSError):
            os.unlink(self._directory / NAME)
        self._process.poll()

    def _drain_runs(self) -> bool:
        """Whether it is at work, or would be if it got a core."""
        folder = proc.tasks(self._process.pid)
        with contextlib.suppress(OSError):
            stats = [proc.read_stat(one, folder) for one in proc.threads(self._process.pid)]
            return any(stat is not None and stat.state == "R" for stat in stats)
        return False

    def _spawn(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            passed = [self._listener.fileno(), *(one for one, _ in self._kept.values())]
            # -I and -S: nothing of the program's environment has a part in it.
            process = subprocess.Popen(
                command("supervisor.output.drain", alone=True),
                stdin=theirs.fileno(),
                pass_fds=passed,
            )
        request = {
            **self._request,
            "listener": self._listener.fileno(),
            "next": self._next,
            "show": self._shown,
            "sources": [[number, fd, name] for number, (fd, name) in self._kept.items()],
        }
        ours.send(json.dumps(request).encode())
        self._starts += 1
        return ours, process

    def _serve(self) -> None:
        while not self._closed:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1)
            except OSError:
                packet, descriptors = b"", []
            if packet:
                self._take(json.loads(packet), descriptors)
            elif not self._started_again():
                return

    def _take(self, value: dict[str, Any], descriptors: list[int]) -> None:
        if "source" in value and descriptors:
            self._kept[int(value["source"])] = descriptors[0], str(value["name"])
            self._next = int(value["source"]) + 1
        elif "ended" in value:
            kept = self._kept.pop(int(value["ended"]), None)
            if kept is not None:
                os.close(kept[0])
        elif "lost" in value:
            self._on_lost(str(value["lost"]))
        elif "finished" in value:
            self._finished.set()
        self._heard += 1

    def _started_again(self) -> bool:
        """Whether another drain has taken the place of one that was killed."""
        self._process.wait()
        while not self._closed:
            time.sleep(min(POLL_EVERY_S * self._starts, RETRY_S))
            with self._lock:
                try:
                    control, self._process = self._spawn()
                except OSError as error:
                    self._on_lost(f"the process that takes it cannot be started: {error.strerror}")
                    self._starts += 1
                    continue
                self._control.close()
                self._control = control
            if self._finishing:
                self._send({"finish": True})
            return True
        return False

    def _send(self, value: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._control.send(json.dumps(value).encode())
