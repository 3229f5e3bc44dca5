"""Real rank processes that do what they are told, one command at a time, over a socket each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distdebug.record.streams import readable
from tests.support import runs
from tests.support.torch_loaded import TorchLoaded, request
from tests.support.waiting import until

LIMIT_S = 60.0
WORKER = Path(__file__).parents[1] / "ranks" / "scripts" / "distcore_worker.py"


class Crew:
    """`size` ranks of the worker script, on one host. `extra`: environment variables."""

    def __init__(
        self,
        loaded: TorchLoaded,
        directory: Path,
        size: int,
        extra: Mapping[str, str] | None = None,
        worker: Path = WORKER,
    ) -> None:
        self.size = size
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "ranks.log"
        self._loaded = loaded
        environment = runs.environment(extra)
        order = request(directory, environment, self._log, self._log, worker=str(worker))
        ranks = loaded.fork("tests.support.crew_rank:main", order, size)
        self._ranks = [process for process, _ in ranks]
        self._channels = [channel for _, channel in ranks]
        self._received = [b""] * size
        self.pids = [process.pid for process in self._ranks]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._loaded.kill()
        for channel in self._channels:
            channel.close()

    def tell(self, ranks: Iterable[int], command: str, **arguments: Any) -> None:
        """Have these ranks begin with a command."""
        line = json.dumps({"command": command, **arguments}).encode() + b"\n"
        for rank in ranks:
            self._channels[rank].sendall(line)

    def answer(self, rank: int, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """What the rank's command gave. Raises AssertionError with its traceback, or when none
        comes."""
        ends_s = time.monotonic() + limit_s
        while b"\n" not in self._received[rank]:
            channel = self._channels[rank]
            ready = readable([channel], ends_s - time.monotonic())
            more = channel.recv(65536) if ready else b""
            if not more:
                what = "ended" if ready else f"did not answer within {limit_s} s"
                raise AssertionError(f"rank {rank} {what}\n{self.explain()}")
            self._received[rank] += more
        line, _, self._received[rank] = self._received[rank].partition(b"\n")
        found = json.loads(line)
        if "traceback" in found:
            raise AssertionError(f"rank {rank}:\n{found['traceback']}")
        return found

    def ask(
        self, ranks: Iterable[int], command: str, limit_s: float = LIMIT_S, **arguments: Any
    ) -> list[dict[str, Any]]:
        """The answers of these ranks to a command. The first that fails is raised when all have
        answered."""
        ranks = list(ranks)
        self.tell(ranks, command, **arguments)
        found: list[dict[str, Any]] = []
        failed: list[AssertionError] = []
        for rank in ranks:
            try:
                found.append(self.answer(rank, limit_s))
            except AssertionError as error:
                failed.append(error)
        if failed:
            raise AssertionError("\n".join(map(str, failed)))
        return found

    def everyone(self, command: str, limit_s: float = LIMIT_S, **arguments: Any) -> list[Any]:
        """`ask` all ranks."""
        return self.ask(range(self.size), command, limit_s, **arguments)

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def until_it_waits(self, limit_s: float = LIMIT_S) -> None:
        """Until whatever the ranks were told has come so far that all of them wait: no thread of
        theirs has run from one look to the next, nor wants to."""
        last: list[tuple[str, str]] = []

        def stands() -> bool:
            nonlocal last
            before, last = last, [one for pid in self.pids for one in _threads(pid)]
            return last == before and all(state in "ST" for state, _ in last)

        until(stands, self.explain, limit_s)

    def wait_for_end(self, rank: int, limit_s: float = LIMIT_S) -> None:
        """Until the rank's process has ended."""
        try:
            self._ranks[rank].wait(limit_s)
        except TimeoutError:
            raise AssertionError(f"rank {rank} did not end\n{self.explain()}") from None

    def explain(self) -> str:
        """What the ranks have printed."""
        return self._log.read_text()[-4000:]


def _threads(pid: int) -> list[tuple[str, str]]:
    """Of each thread of a process that is not dead: its state, and how often it has given up a
    core, or lost it."""
    found = []
    for task in (
        sorted(Path(f"/proc/{pid}/task").iterdir()) if Path(f"/proc/{pid}").exists() else ()
    ):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = dict(
                line.split(":\t", 1) for line in (task / "status").read_text().splitlines()
            )
            switches = fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]
            found.append((fields["State"][0], f"{task.name} {switches}"))
    return [one for one in found if one[0] not in "ZX"]
