"""Runs `distdebug exec` where torch is loaded already: the supervisor and all below it are forked.

See `supervised.py` for what is the real thing in such a run, and what is not.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.support import runs
from tests.support.supervised import PROGRAM
from tests.support.torch_loaded import Forked, TorchLoaded, request


@dataclass(frozen=True)
class Command:
    """A `distdebug` that was started; its run directory, and where its output goes."""

    process: Forked
    directory: Path
    stdout: Path
    stderr: Path

    def finish(self, limit_s: float = runs.LIMIT_S) -> runs.Run:
        """Wait for it; after `limit_s` it is interrupted, so that its report shows where it hung.
        The exit code is as a shell gives it."""
        try:
            code = self.process.wait(limit_s)
        except TimeoutError:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            text = self.stderr.read_text(errors="replace")[-6000:]
            raise AssertionError(f"distdebug did not end within {limit_s} s\n{text}") from None
        texts = (path.read_text() for path in (self.stdout, self.stderr))
        return runs.Run(code if code >= 0 else 128 - code, *texts, self.directory)


@dataclass(frozen=True)
class Part:
    """A node's part of a job: its ranks begin with `first`. `init`: the node's."""

    init: int
    first: int
    world: int
    node: int
    nodes: int
    address: str
    port: int

    def text(self) -> str:
        """As the launcher reads it."""
        return ",".join(map(str, astuple(self)[1:]))


class Zygote:
    """One run at a time. `loaded`: where it is forked; a server of its own by default."""

    def __init__(self, loaded: TorchLoaded | None = None) -> None:
        self._loaded = loaded or TorchLoaded()

    def ready(self) -> None:
        """Wait until what is started has torch at once."""
        self._loaded.ready()

    def start(
        self,
        size: int,
        program: Sequence[str],
        tmp_path: Path,
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        part: Part | None = None,
        directory: Path | None = None,
        breaks: str = "",
        mpiexec: bool = False,
    ) -> Command:
        """Start a script, with its arguments, on `size` ranks, as `runs.start` does: below
        `distdebug exec`, with these flags. The run directory is below `tmp_path`, if no other is
        named. `part`: on a node, which has so many ranks of a greater world. `breaks`: what the
        supervisor's process executes before it is one, to break something in it. `mpiexec`: below
        `distdebug run --launcher mpi` instead."""
        directory = directory or tmp_path / "run"
        stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
        for path in (stdout, stderr):
            path.write_bytes(b"")
        argv = ["run" if mpiexec else "exec", "--run-dir", str(directory), *flags]
        if mpiexec:
            argv += ["--launcher", "mpi", "-n"]
        else:
            argv += ["--", sys.executable, str(PROGRAM), *(["--node", part.text()] if part else [])]
        argv += [str(size), *map(str, program)]
        node = part.init if part else 0
        more = {"argv": argv, "node": node, "breaks": breaks}
        order = request(tmp_path, runs.environment(extra), stdout, stderr, **more)
        ((process, channel),) = self._loaded.fork("tests.support.supervised:supervise", order)
        channel.close()
        return Command(process, directory, stdout, stderr)

    def run(
        self,
        size: int,
        program: Sequence[str],
        tmp_path: Path,
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        limit_s: float = runs.LIMIT_S,
        mpiexec: bool = False,
    ) -> runs.Run:
        """`start` it, and wait for its end."""
        started = self.start(size, program, tmp_path, flags, extra, mpiexec=mpiexec)
        return started.finish(limit_s)

    def close(self) -> None:
        """End the server."""
        self._loaded.close()
