"""Runs parts one after the other, each within its limit and all within one, and keeps what comes of
each as it comes. Standard library only: the first part makes the environment of the others.

A part is a command. What it starts in sessions of its own is ended with it: this process adopts
orphans, so that each of them stays among its descendants.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[2]
LEAST_S = 5.0
"""A part for which less than this is left is not begun."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Part:
    """One row of the table: `what` it tries, by which command, for how long at most. None of the
    later parts is begun where one that is `needed` fails."""

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    needed: bool = False


@dataclass(frozen=True)
class Result:
    """What came of a part. `result`: passed, failed, skipped, timed out, not run; `counts`: its
    tests by their ends; `names`: those that neither passed nor were skipped."""

    name: str
    what: str
    result: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Runner:
    """Runs parts, and writes to the folder `out`: `results.jsonl` (a line for each test as it
    begins and ends, and one for each part), `log.txt` (what they print) and `table.md`."""

    def __init__(self, out: Path, total_s: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out.resolve()
        self._until_s = time.monotonic() + total_s
        self._lines = self._out / "results.jsonl"
        self._lines.write_bytes(b"")
        (self._out / "log.txt").write_bytes(b"")
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self, parts: Iterable[Part]) -> list[Result]:
        """Run them. The table is written after each, so that it is there whatever ends this."""
        results: list[Result] = []
        lacking = ""
        for part in parts:
            left_s = self._until_s - time.monotonic()
            if lacking or left_s < LEAST_S:
                why = f"not run: {lacking or 'no time was left'}"
                result = Result(part.name, part.what, why, 0.0)
            else:
                result = self._run(part, min(part.limit_s, left_s))
            if part.needed and result.result != "passed":
                lacking = f"{part.name} {result.result}"
            results.append(result)
            with self._lines.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            (self._out / "table.md").write_text(table(results))
            print(f"gpu: {part.name}: {result.result}, {result.seconds:.0f} s", flush=True)
        return results

    def _run(self, part: Part, limit_s: float) -> Result:
        began_s = time.monotonic()
        offset = self._lines.stat().st_size
        environment = {**os.environ, "GPU_OUT": str(self._out), "GPU_CASES": str(self._lines)}
        with (self._out / "log.txt").open("ab") as log:
            log.write(f"\n=== {part.name}: {' '.join(part.command)}\n".encode())
            log.flush()
            code = _command(part.command, environment, log, limit_s)
        ends = self._ends(offset)
        counts = Counter(ends.values())
        if code is None:
            result = "timed out"
        elif code != 0:
            result = "failed"
        else:
            result = "skipped" if set(counts) == {"skipped"} else "passed"
        names = tuple(name for name, end in ends.items() if end in ("failed", "begun"))
        took_s = round(time.monotonic() - began_s, 1)
        return Result(part.name, part.what, result, took_s, dict(counts), names)

    def _ends(self, offset: int) -> dict[str, str]:
        """How each test of which a line has come behind `offset` ended."""
        found: dict[str, str] = {}
        for line in self._lines.read_bytes()[offset:].splitlines():
            try:
                row = json.loads(line)
                if found.get(row["case"]) != "failed":  # also where only its teardown failed
                    found[row["case"]] = row["result"]
            except (ValueError, KeyError):
                pass  # it was cut as its writer was killed
        return found


def _command(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO, limit_s: float
) -> int | None:
    """Run it, and end all that it leaves: its exit code, None where its time was up."""
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        log.write(f"{error}\n".encode())
        return 127
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        kill_descendants()
        process.poll()  # not `wait`: what the GPU's driver holds may not end


def table(results: Sequence[Result]) -> str:
    """The results as the table of `distcore/nccl/README.md`, and what failed below it."""
    rows = ["| part | what | result | s |", "|---|---|---|---|"]
    for one in results:
        words = {"begun": "unfinished"}
        counts = [f"{number} {words.get(end, end)}" for end, number in sorted(one.counts.items())]
        result = f"{one.result} ({', '.join(counts)})" if counts else one.result
        rows.append(f"| {one.name} | {one.what} | {result} | {one.seconds:.0f} |")
    wrong = [f"- {one.name}: `{name}`" for one in results for name in one.names]
    return "\n".join([*rows, *([""] if wrong else []), *wrong]) + "\n"


def kill_descendants() -> None:
    """Kill all that descends from this process, until nothing does."""
    until_s = time.monotonic() + 10
    while (found := _descendants()) and time.monotonic() < until_s:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _reap()
        time.sleep(0.02)  # a process that the GPU's driver holds takes its time to end
    _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _descendants() -> list[int]:
    """Children, theirs, and so on; zombies, too, until they are reaped."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name may hold spaces and brackets; the state and the parent stand behind it.
            _, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended since
        children.setdefault(int(parent), []).append(int(path.parent.name))
    found: list[int] = []
    below = [os.getpid()]
    while below:
        below = [child for parent in below for child in children.get(parent, ())]
        found += below
    return found
