"""What torch's flight recorder holds of a fixture on stock gloo: recorded at its hang, or again and
again while it is at work, with nothing of distdebug in its ranks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import foreign_jobs
from .fixture_table import Expected
from .standstill import hangs

RECORDER = Path(__file__).resolve().parents[2] / "fixtures" / "record_dumps.py"
STILL_S = 6.0
LIMIT_S = 240.0
ANSWERED_S = 20.0
BETWEEN_S = 0.7
LONGEST_S = 60.0
END = "end"


def at_the_hang(one: Expected, scripts: Path, folder: Path) -> None:
    """Leave in `folder` the dump of every rank of a fixture that stands still, or has ended: the
    last one that it has written."""
    work = folder.with_name(f"{folder.name}.work")
    work.mkdir(parents=True)
    with foreign_jobs.job(_command(one, scripts, work), work) as running:
        if hangs(running, STILL_S, LIMIT_S):
            _ask(work, "hang")
            _answered(running, work, "hang", one["nproc"])
    _gather(work, ("hang", END), folder)
    shutil.rmtree(work)


def at_work(one: Expected, scripts: Path, folder: Path) -> Iterator[Path]:
    """Folders of dumps, each of all ranks, of a fixture at work, and at last that of its end."""
    work = folder.with_name(f"{folder.name}.work")
    work.mkdir(parents=True)
    with foreign_jobs.job(_command(one, scripts, work), work) as running:
        until_s, asked = time.monotonic() + LONGEST_S, 0
        while running.poll() is None and time.monotonic() < until_s:
            time.sleep(BETWEEN_S)
            _ask(work, str(asked))
            _answered(running, work, str(asked), one["nproc"])
            place = folder / str(asked)
            asked += 1
            if _gather(work, (str(asked - 1), END), place) == one["nproc"]:
                yield place
    if _gather(work, (END,), folder / END) == one["nproc"]:
        yield folder / END
    shutil.rmtree(work)


def _command(one: Expected, scripts: Path, work: Path) -> Sequence[str]:
    script = str(scripts / one["script"])
    return [
        sys.executable,
        str(RECORDER),
        str(work),
        str(one["nproc"]),
        script,
        *one["script_args"],
    ]


def _ask(work: Path, name: str) -> None:
    (work / f"ask_{name}").touch()


def _answered(running: subprocess.Popen[bytes], work: Path, name: str, ranks: int) -> None:
    """Wait until all who can have written: who is stopped, or holds the GIL, does not."""
    until_s = time.monotonic() + ANSWERED_S
    while running.poll() is None and time.monotonic() < until_s:
        there = {path.name for place in (name, END) for path in (work / place).glob("rank_*")}
        if len(there) == ranks:
            return
        time.sleep(0.1)


def _gather(work: Path, places: Sequence[str], folder: Path) -> int:
    """Copy each rank's dump from the first of these places that has one; how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in places:
        for path in (work / place).glob("rank_*"):
            if not (folder / path.name).exists():
                shutil.copy2(path, folder)
    return len([path for path in folder.iterdir() if re.fullmatch(r"rank_\d+", path.name)])
