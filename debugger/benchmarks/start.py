"""The cost of a run of a program that makes one call, from the start to the end: of torchrun's, and
of `distdebug run`'s, in turn."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from ..errors import DistdebugError
from ..hook import loading
from .limits import SILENCE_S

PROGRAM = Path(__file__).with_name("start_rank.py")
WAYS = ("torchrun", "distdebug")
Run = dict[str, float]
"""The figures of one run: seconds of `wall` and of `cpu` time of all its processes together, and
what `start_rank` says."""


def rounds(ranks: int, count: int) -> Iterator[dict[str, Run]]:
    """Yields the runs of each round, by way; one round more comes first, which counts for nothing:
    it fills the caches of files. Raises DistdebugError where a run fails."""
    with tempfile.TemporaryDirectory(prefix="distdebug-bench-") as folder:
        for number in range(count + 1):
            ways = WAYS if number % 2 else WAYS[::-1]  # who is first has no advantage
            found = {way: _run(way, ranks, Path(folder)) for way in ways}
            if number:
                yield found


def _run(way: str, ranks: int, folder: Path) -> Run:
    said = folder / "said.json"
    said.unlink(missing_ok=True)
    if way == "torchrun":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [sys.executable, "-m", "torch.distributed.run", f"--master-port={port}"]
        words += ["--master-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    else:
        words = [*loading.command("cli"), "run", f"--nproc-per-node={ranks}"]
    # An installation has its bytecode; a checkout gets it in the round that counts for nothing.
    left_out = ("DISTDEBUG_", "TORCH_D", "PYTHONDONTWRITEBYTECODE")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    variables["OMP_NUM_THREADS"] = "1"  # as torchrun does, and says
    before, began_s = os.times(), time.monotonic()
    try:
        done = subprocess.run(
            [*words, str(PROGRAM), str(said)],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SILENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DistdebugError(f"{way} took longer than {SILENCE_S:g} s") from None
    wall_s, after = time.monotonic() - began_s, os.times()
    if done.returncode or not said.exists():
        last = (done.stderr.decode(errors="backslashreplace").splitlines() or ["nothing"])[-1]
        raise DistdebugError(f"{way} ended with {done.returncode}, and said {last[:300]}")
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    return {"wall_s": wall_s, "cpu_s": cpu_s, **json.loads(said.read_text())}


def summary(found: Sequence[dict[str, Run]]) -> dict[str, dict[str, float]]:
    """Returns the medians, by figure and way, with those of the ratio and the difference of the two
    runs of a round."""
    figures = {}
    for name in ("wall_s", "cpu_s", "import_s", "modules"):
        stock, ours = ([one[way][name] for one in found] for way in WAYS)
        pairs = list(zip(stock, ours, strict=True))
        figures[name] = {
            "torchrun": median(stock),
            "distdebug": median(ours),
            "ratio": median(b / a for a, b in pairs) if all(stock) else 0.0,
            "added": median(b - a for a, b in pairs),
        }
    return figures
