"""Prints the fault matrix as it is found to be now: `python -m tests.faults`. 1 if any is wrong."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.support.zygote import Zygote

from .cases import Case
from .running import complaints, matrix, run, twins

WORKERS = 2


def main() -> int:
    """Run it all; a row for each run."""
    began = time.monotonic()
    rows = [row for row in (*matrix(), *twins()) if os.geteuid() == 0 or not row[0].own_network]
    zygotes: SimpleQueue[Zygote] = SimpleQueue()
    for _ in range(WORKERS):
        zygotes.put(Zygote())
    print(f"{'fault':28} {'backend':7} {'ranks':>5}  {'said':16} {'culprits':10} {'after':>7}")

    def row(place: int) -> bool:
        case, backend, size = rows[place]
        zygote = zygotes.get()
        try:
            with tempfile.TemporaryDirectory() as directory:
                text, wrong = _row(zygote, case, backend, size, Path(directory))
        finally:
            zygotes.put(zygote)
        print(text, flush=True)
        return bool(wrong)

    with ThreadPoolExecutor(WORKERS) as pool:
        wrong = sum(pool.map(row, range(len(rows))))
    took_s = time.monotonic() - began
    print(f"{len(rows)} runs, {wrong} wrong, {took_s:.0f} s")
    return int(wrong > 0)


def _row(
    zygote: Zygote, case: Case, backend: str, size: int, directory: Path
) -> tuple[str, list[str]]:
    done = run(zygote, case, backend, size, directory)
    wrong = complaints(case, size, done)
    found = next(iter(done.errors), None)
    said = done.report["outcome"]
    after = culprits = ""
    if found:
        culprits = ",".join(map(str, found["culprits"]))
        after = f"{found['detected_after_s']:.2f} s"
    name = case.name
    if not case.specs and not case.does:
        name = f"({' '.join((case.program, *case.arguments))})"
    text = f"{name:28} {backend:7} {size:5}  {said:16} {culprits:10} {after:>7}"
    return text + (f"  WRONG: {'; '.join(wrong)}" if wrong else ""), wrong


if __name__ == "__main__":
    sys.exit(main())
