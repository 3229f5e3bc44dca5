"""Starts ranks with no supervisor beside them, with the layer in them or without, and reads their
records."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from distdebug.hook import environment
from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Call, Process, Rank
from tests.support import runs
from tests.support.supervised import PROGRAM
from tests.support.torch_loaded import Forked, TorchLoaded, request

LIMIT_S = runs.LIMIT_S
_LAUNCHER = Path(__file__).parents[1] / "ranks" / "scripts" / "launch.py"
_ENDED = Process(alive=False)


@dataclass
class Ranks:
    """A program below the hook. `directory` is its run directory, `launcher` as `environment`'s.
    With `loaded` the command is what follows `python`, and is forked from there."""

    directory: Path
    command: Sequence[str]
    launcher: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    observed: bool = True
    loaded: TorchLoaded | None = None

    def start(self) -> subprocess.Popen[bytes] | Forked:
        """Start it, in a session of its own."""
        for name in ("ranks", "logs", "stacks"):
            (self.directory / name).mkdir(parents=True, mode=0o700)
        variables = runs.environment({"OMP_NUM_THREADS": "1", **self.extra})
        outputs = [(self.directory / name).open("wb") for name in ("stdout", "stderr")]
        if self.observed:
            variables = environment(variables, self.directory, self.launcher)
            # What is the supervisor's own output otherwise: from there it goes to the ranks' logs.
            found = [os.fstat(output.fileno()) for output in outputs]
            variables["DISTDEBUG_STREAMS"] = ",".join(f"{f.st_dev}:{f.st_ino}" for f in found)
        self.process = self._begun(variables, outputs)
        for output in outputs:
            output.close()
        return self.process

    def _begun(
        self, variables: Mapping[str, str], outputs: Sequence[IO[bytes]]
    ) -> subprocess.Popen[bytes] | Forked:
        if self.loaded is not None:
            paths = (self.directory / name for name in ("stdout", "stderr"))
            order = request(self.directory, variables, *paths, argv=list(self.command))
            ((process, channel),) = self.loaded.fork("tests.support.supervised:launch", order)
            channel.close()
            return process
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            cwd=self.directory,
            env=variables,
            start_new_session=True,
        )

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """Wait for it; its exit code. Whatever is left of it is killed."""
        try:
            code = self.process.wait(limit_s)
        except (subprocess.TimeoutExpired, TimeoutError):
            raise AssertionError(f"not finished in {limit_s} s\n{self.explain()}") from None
        finally:
            self.kill()
        return code

    @property
    def stdout(self) -> str:
        """What came out of it, not counting what went to the ranks' logs."""
        return (self.directory / "stdout").read_text()

    @property
    def stderr(self) -> str:
        """As `stdout`."""
        return (self.directory / "stderr").read_text()

    def kill(self) -> None:
        """Leave no process behind."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(LIMIT_S)
        for rank in self.views():
            try:
                os.kill(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def run(self, limit_s: float = LIMIT_S) -> int:
        """Start it and wait; its exit code."""
        self.start()
        return self.finish(limit_s)

    def views(self) -> list[Rank]:
        """What each record says, in the order of the ranks."""
        files = sorted((self.directory / "ranks").glob("*.flight"))
        return sorted((FlightReader(f).view(_ENDED) for f in files), key=lambda v: (v.rank, v.pid))

    def log(self, rank: int, stream: str = "out") -> str:
        """What a rank has printed so far."""
        path = self.directory / "logs" / f"{rank}.{stream}"
        return path.read_text() if path.exists() else ""

    def explain(self) -> str:
        """For the message of a failed assertion."""
        logs = sorted((self.directory / "logs").iterdir())
        texts = [f"--- {path.name}\n{path.read_text()[-3000:]}" for path in logs]
        return "\n".join([*texts, "--- launcher", self.stderr[-3000:]])


def forked(
    loaded: TorchLoaded,
    directory: Path,
    ranks: int,
    script: Path,
    *arguments: str,
    observed: bool = True,
    apart: bool = False,
) -> Ranks:
    """A script on ranks that need not import torch; for the rest as torchrun does it, or, `apart`,
    so that each lives and dies by itself. Then it prints `{rank: [exit code, Unix time]}`."""
    command = [str(PROGRAM), *["--apart"] * apart, str(ranks), str(script), *arguments]
    return Ranks(directory, command, observed=observed, loaded=loaded)


def launched(directory: Path, ranks: int, script: Path, *arguments: str) -> Ranks:
    """A script in interpreters of their own, which live and die each by itself, and of whose start
    something is to be told. Prints `{rank: [exit code, Unix time]}`."""
    command = [sys.executable, str(_LAUNCHER), str(ranks), str(script), *arguments]
    return Ranks(directory, command)


def calls(view: Rank, script: Path) -> list[Call]:
    """All calls of a rank that its script made, in order."""
    assert view.history is not None
    every = view.history.recent(view.calls)
    assert len(every) == view.calls
    return [call for call in every if call.site and call.site.file == str(script)]


_EXPECTED = re.compile(r"^(.*)#(?: rank (\d):)? -> (?:(\d+) times )?(.+)$")


def expected(script: Path, rank: int) -> dict[int, list[str]]:
    """The calls that a script's own comments (`# -> call; call`, `# rank 0: -> 2 times call`)
    promise, by line: the comment's own, or the next where it stands alone."""
    promised: dict[int, list[str]] = {}
    for line, text in enumerate(script.read_text().splitlines(), start=1):
        found = _EXPECTED.search(text)
        if found and found[2] in (None, str(rank)):
            promised[line if found[1].strip() else line + 1] = found[4].split("; ") * int(
                found[3] or 1
            )
    return promised
