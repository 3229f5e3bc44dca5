"""Starts ranks with the layer in them but no supervisor beside them, and reads their records."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from debugger.hook import environment
from debugger.record.reader import FlightReader
from debugger.record.snapshot import Call, Process, Rank
from tests.support import runs

LIMIT_S = 100.0
_LAUNCHER = Path(__file__).parents[1] / "rank" / "scripts" / "launch.py"
_ENDED = Process(alive=False)


@dataclass
class Ranks:
    """A program below the hook. `directory` is its run directory, `launcher` as `environment`'s."""

    directory: Path
    command: Sequence[str]
    launcher: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    observed: bool = True

    def start(self) -> subprocess.Popen[bytes]:
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
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            cwd=self.directory,
            env=variables,
            start_new_session=True,
        )
        for output in outputs:
            output.close()
        return self.process

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """Wait for it; its exit code. Whatever is left of it is killed."""
        try:
            self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not finished in {limit_s} s\n{self.explain()}") from None
        finally:
            self.kill()
        return self.process.returncode

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
        self.process.wait()
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


def torchrun(
    directory: Path, ranks: int, script: Path, *arguments: str, observed: bool = True
) -> Ranks:
    """A script under torchrun."""
    options = ["--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script), *arguments]
    return Ranks(directory, command, "torchrun", observed=observed)


def launched(directory: Path, ranks: int, script: Path, *arguments: str) -> Ranks:
    """A script whose ranks live and die each by itself. Prints `{rank: [exit code, Unix time]}`."""
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
