"""Puts the checking layer into all ranks of a job on this host, or into none of them.

First all are looked at (`injection.target`), then each is asked to run the layer's own start
(`injection`), then all of them say how far they have come, and are told from which call on to count
(`record.requests.late_install`). Where one cannot be reached, the others take their hooks out
again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..foreign import dump_files, judging
from ..foreign.trace import traced
from ..record import steady_clock
from ..record.requests import late_install
from ..record.requests.late_install import HOOKED, PAST, RECORDING, REFUSED, Answer
from ..record.runs.run_directory import SCHEMA, RunDirectory
from ..record.safe_text import clean
from ..record.wording import ranks_text
from ..reports.stored import Document
from ..supervisor import on_the_spot
from ..system import proc
from . import injection
from .injection import NotInstallable, Target, target
from .limits import INSTALL_LOOK_EVERY_S, REPLY_S
from .processes import Job

BOOTSTRAP = Path(__file__).resolve().parents[1] / "hook" / "late.py"
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Installed:
    """The layer is in all ranks. `behind`: those that have not yet come to where all count from;
    `stopped_ms`: the longest time that a rank was stopped for it, `paused_ms` that a main thread
    ran code of ours."""

    run: RunDirectory
    ranks: Sequence[int]
    behind: Sequence[int]
    stopped_ms: float
    paused_ms: float

    @property
    def past(self) -> Path:
        """Dumps of what torch's flight recorders held at the install."""
        return self.run.path / PAST


def install(job: Job, run_dir: Path | None, wait_s: float) -> Installed:
    """Install it. `wait_s`: so long each rank has to come back to its interpreter. Raises
    UsageError with one sentence a rank that is in the way; then no rank has it."""
    targets = _targets(job)
    run = RunDirectory.create(explicit=run_dir)
    try:
        run.write_json(
            "run.json",
            {
                "schema": SCHEMA,
                "command": job.command.split(" ") if job.command else [],
                "started_ns": steady_clock.now_ns(),
                "supervised": False,
                "installed": True,
            },
        )
        late_install.want(run.path)
        if not all(one.by_remote_exec for one in targets.values()):
            # Before any rank is touched.
            try:
                injection.rehearse(late_install.folder(run.path))
            except NotInstallable as error:
                raise _refusal([f"gdb was tried on a process of our own, and {error}"]) from None
        stopped_ms = _inject(targets, run.path)
        told = _await_all(targets, run.path, wait_s)
        late_install.start(run.path, late_install.first_common(told))
    except BaseException:
        # No rank is to have it: those that do take their hooks out before their answers are gone.
        late_install.give_up(run.path)
        hooked = [one for one in late_install.answers(run.path).values() if one.state == HOOKED]
        if hooked:
            time.sleep(min(REPLY_S, 10 * INSTALL_LOOK_EVERY_S))
        run.close()
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    behind = _behind(run.path)
    ranks = sorted(one.rank for one in told.values())
    paused_ms = max(one.paused_ms for one in told.values())
    return Installed(run, ranks, behind, stopped_ms, paused_ms)


def _targets(job: Job) -> dict[int, Target]:
    """By pid. Raises UsageError."""
    found: dict[int, Target] = {}
    problems = []
    for one in job.processes:
        try:
            found[one.pid] = target(one.pid)
        except NotInstallable as error:
            problems.append(f"{_who(one.pid, one.rank)}: {error}")
    size = max((one.world_size or 0 for one in job.processes), default=0)
    if size > len(job.processes):
        problems.append(
            f"{size - len(job.processes)} of its {size} ranks are not on this host: it must come "
            "into all of them, and reaches those of one host only"
        )
    if problems:
        raise _refusal(problems)
    return found


def _inject(targets: Mapping[int, Target], run: Path) -> float:
    """Ask all of them; the longest time for which one was stopped, in ms."""
    text = injection.code(BOOTSTRAP, run)
    problems: list[str] = []
    stopped = [0.0]

    def ask(one: Target) -> None:
        try:
            stopped.append(injection.inject(one, text, late_install.folder(run)).stopped_ms)
        except NotInstallable as error:
            problems.append(f"{_who(one.pid)}: {error}")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(ask, targets.values()))
    if problems:
        raise _refusal(problems)
    return max(stopped)


def _await_all(targets: Mapping[int, Target], run: Path, wait_s: float) -> dict[int, Answer]:
    """The answers of all, once they have hooks. Raises UsageError."""
    until_s = time.monotonic() + wait_s
    while True:
        told = late_install.answers(run)
        refused = [one for one in told.values() if one.state == REFUSED]
        if refused:
            raise _refusal([f"{_who(one.pid)}: {one.why}" for one in refused])
        silent = [pid for pid in targets if pid not in told]
        if not silent:
            break
        gone = [pid for pid in silent if not proc.exists(pid)]
        if gone:
            raise _refusal([f"{_who(pid)} has ended meanwhile" for pid in gone])
        if time.monotonic() > until_s:
            raise _refusal(
                [
                    f"{_who(pid)} has not come back to its interpreter within {wait_s:g} s: it "
                    "computes or waits in C++ (`distdebug inspect` says where), and code can only "
                    "run between two bytecodes"
                    for pid in silent
                ]
            )
        time.sleep(INSTALL_LOOK_EVERY_S)
    problems = _not_whole([one for one in told.values() if one.pid in targets])
    if problems:
        raise _refusal(problems)
    return told


def _not_whole(told: Sequence[Answer]) -> list[str]:
    """Why these are not all ranks of one world."""
    size = max(one.world_size for one in told)
    ranks = [one.rank for one in told]
    if len(set(ranks)) < len(ranks):
        return ["two processes are of one rank: that is no single world"]
    missing = sorted(set(range(size)) - set(ranks))
    if missing:
        return [f"{ranks_text(missing)} of its {size} ranks were not found on this host"]
    return []


def _behind(run: Path) -> list[int]:
    """Ranks that do not record yet, two seconds after the start."""
    until_s = time.monotonic() + 2.0
    while True:
        told = late_install.answers(run)
        behind = [one.rank for one in told.values() if one.state != RECORDING]
        if not behind or time.monotonic() > until_s:
            return sorted(behind)
        time.sleep(INSTALL_LOOK_EVERY_S)


def _who(pid: int, rank: int | None = None) -> str:
    return f"process {pid}" if rank is None else f"rank {rank} (process {pid})"


def _refusal(problems: Sequence[str]) -> UsageError:
    shown = "; ".join(clean(one, 400) for one in problems[:4])
    more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
    return UsageError(f"the layer was not installed, and no rank has it: {shown}{more}")


def findings_before(past: Path) -> Sequence[str]:
    """Returns, in sentences, what torch's flight recorders prove that were there when the layer
    came. A rank's dump is of another moment than its neighbour's, so nothing is suspected from
    them."""
    found = dump_files.of_files(sorted(past.glob("dump_*")))
    lines = []
    for job in found.jobs:
        proven = [one for one in judging.judge(traced(job.dumps), None) if one.proven]
        lines += [
            f"before that, by torch's flight recorder: {clean(one.message)}" for one in proven
        ]
        if not proven:
            calls = sum(len(dump.entries) for dump in job.dumps.values())
            lines.append(
                f"torch's flight recorders hold {calls} calls from before, of which none "
                f"contradicts another ({past})"
            )
    return lines


def watched(run: RunDirectory, every_s: float | None) -> Document:
    """The report of the run as it stands; with `every_s` the first one that has an error, or that
    of a job that has ended."""
    while True:
        report, _ = on_the_spot.report(run)
        errors = [one for one in report["findings"] if one["severity"] == "error"]
        if every_s is None or errors or report["outcome"] != "running":
            return report
        time.sleep(every_s)
