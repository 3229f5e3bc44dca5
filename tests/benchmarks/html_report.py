"""What `distdebug report --html` costs, against its bars: size and time for 4 and for 1,024 ranks.

python tests/benchmarks/html_report.py [4] [1024]     (default: both)

The runs are made up (fixtures/make_run.py): every rank makes 400 calls at times of its own and then
waits in one that rank 2 replaced by another; all have logs, stacks and samples of their hosts. The
time is that of the whole command, the best of three; on a crowded machine that of its core counts.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distdebug.supervisor import on_the_spot
from fixtures import make_run
from fixtures.make_run import ALL_REDUCE, BROADCAST, Author
from tests.benchmarks.tui_app import ROOT, environment
from tests.benchmarks.tui_scale import bar

BARS = {4: (300, 1.0), 1024: (2048, 5.0)}
"""KiB and seconds, by ranks."""
CALLS = 400
SAMPLES = 120


def _trains(author: Author) -> None:
    chance = random.Random(author.rank)
    for _ in range(CALLS):
        author.clock.passes(chance.uniform(1, 40))
        author.call(took_ms=chance.uniform(0.5, 20))
    odd = author.rank == 2
    author.call(BROADCAST if odd else ALL_REDUCE, line=91 if odd else 88, ends=False)
    author.clock.passes(4000)
    author.stands(91 if odd else 88, free_threads=0)


def made(path: Path, ranks: int) -> None:
    """Makes the run, with its report."""
    make_run.STATES["mismatch"] = (_trains, {})
    make_run._EACH_ITS_OWN = frozenset({"mismatch"})
    directory = make_run.make(path, "mismatch", ranks)
    chance = random.Random(7)
    for rank in range(ranks):
        lines = [f"[rank {rank}] step {n} loss {chance.random():.6f}\n" for n in range(200)]
        directory.write_text(f"logs/{rank}.out", "".join(lines))
    rows = []
    for at in range(SAMPLES):
        sample = {
            str(rank): {"cpu_percent": round(chance.uniform(0, 100), 1), "rss_bytes": 7 << 28}
            for rank in range(ranks)
        }
        time_ns = make_run.START_NS + at * 10**9
        rows.append(json.dumps({"time_ns": time_ns, "ranks": sample}) + "\n")
    directory.host.write_text("".join(rows))
    report, _ = on_the_spot.report(directory)
    directory.write_json("report.json", report)


def took_s(*command: str) -> tuple[float, float]:
    """Returns how long it took, and how long it had a core."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began_s, used_s


def main(worlds: list[int]) -> None:
    start_s = min(took_s(sys.executable, "-m", "distdebug", "--version") for _ in range(3))
    print(f"distdebug --version: {start_s[0]:.2f} s, of a core {start_s[1]:.2f} s")
    for ranks in worlds:
        with tempfile.TemporaryDirectory() as scratch:
            run, page = Path(scratch) / "run", Path(scratch) / "report.html"
            made(run, ranks)
            command = [sys.executable, "-m", "distdebug", "report", str(run), "--html", str(page)]
            times = [took_s(*command) for _ in range(3)]
            best_s, used_s = min(times)[0], min(used for _, used in times)
            most_kib, most_s = BARS.get(ranks, (2048, 5.0))
            print(f"{ranks} ranks")
            bar("size", page.stat().st_size / 1024, most_kib, "KiB")
            bar("time of the command", best_s, most_s, "s")
            bar("of a core", used_s, most_s, "s")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or sorted(BARS))
