"""The evidence that is gathered when a run is stopped: the stacks of all ranks, kept, and used in
the finding."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...diagnosis.findings import Finding, RankEvidence
from ...diagnosis.rules.late_rank import placed, refine_cause, restated
from ...diagnosis.story import step
from ...record.layout import Activity
from ...record.runs.run_directory import RunDirectory
from ...record.snapshot import CallSite, Rank
from ...record.wording import RankState
from ..machine import listeners
from . import stack_tree
from .children import awaited_child, dead_children
from .held_locks import HeldLock, held_lock
from .stacks import Frame, ThreadStack, capture
from .standing import stood

MOST_LOCKS = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """Stacks by rank. `pids`: of those on this host."""

    stacks: Mapping[int, Sequence[ThreadStack]] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)

    @property
    def lines(self) -> dict[int, Sequence[str]]:
        """Each main thread's, innermost first, printable."""
        found = {rank: stack_tree.main_lines(threads) for rank, threads in self.stacks.items()}
        return {rank: lines for rank, lines in found.items() if lines}

    @step("stacks")
    def refine(self, finding: Finding) -> Finding:
        """The finding with what the stacks show (a lock, and where an absent rank stands), and with
        who listens at the address that it is about."""
        finding = listeners.with_listener(finding)
        if finding.kind == "missing_rank":
            finding = refine_cause(finding, self._states(finding))
        ranks = dict(finding.ranks)
        for rank in ranks:
            thread = self._standing(rank, finding) or self._main(rank)
            # Of a process that is ending, only the kernel's word may be left, which says nothing.
            if thread is not None and any(frame.file != "kernel" for frame in thread.frames):
                lines = tuple(stack_tree.lines_of(thread))
                ranks[rank] = replace(ranks[rank], stack=lines)
        finding = replace(finding, ranks=ranks)
        running = {rank for rank, known in ranks.items() if known.state == RankState.RUNS}
        absent = finding.culprits if finding.kind == "missing_rank" else ()
        for rank in running.union(absent):
            site = self._site(rank, finding)
            if site is not None:  # a busy machine's heartbeats may be old
                finding = placed(finding, rank, site)
        named = {n: replace(one, thread=self._thread(n, one)) for n, one in finding.ranks.items()}
        finding = replace(finding, ranks=named)
        if finding.kind not in ("missing_rank", "stalled"):
            return finding
        for rank in [one for one in finding.culprits if one in self.pids][:MOST_LOCKS]:
            pid, threads = self.pids[rank], self.stacks[rank]
            dead = tuple(f"rank {rank}: {said}" for said in dead_children(pid, threads))
            finding = replace(finding, details=(*finding.details, *dead))
            child = awaited_child(pid, threads, set(self.pids.values()))
            if child is not None:
                finding = restated(finding, rank, f"waits for {child[0]}")
                stands = f"rank {rank} waits for {child[0]}, which is in {'; '.join(child[1])}"
                finding = replace(finding, details=(*finding.details, stands))
        locks = self._held_locks((*finding.culprits, *finding.victims))
        said = (f"rank {rank}: {held}" for rank, held in locks.items())
        return replace(finding, details=(*finding.details, *said))

    def stood(self, ranks: Mapping[int, Rank]) -> dict[int, Rank]:
        """The ranks, each that is asleep in no call with where its stacks show it."""
        found = dict(ranks)
        for number, rank in ranks.items():
            main = self._main(number)
            waits = any(wait.activity is not Activity.NONE for wait in rank.waits)
            if main is not None and not (main.active or waits or rank.process.standstill):
                still = stood(self.stacks[number], main, location=rank.location)
                found[number] = replace(rank, process=replace(rank.process, standstill=still))
        return found

    def _held_locks(self, ranks: Iterable[int]) -> dict[int, HeldLock]:
        """Returns by rank the lock that is waited for in it, with the threads in question; of a
        few."""
        found: dict[int, HeldLock] = {}
        for rank in ranks:
            held = held_lock(self.stacks.get(rank, ()), self._main(rank))
            if held is not None and len(found) < MOST_LOCKS:
                found[rank] = held
        return found

    def _main(self, rank: int) -> ThreadStack | None:
        return stack_tree.main_of(self.stacks.get(rank, ()))

    def _thread(self, rank: int, known: RankEvidence) -> str:
        """The name of the thread that is at the line of the rank; "" where the main one is, too, or
        none."""
        site = known.location
        if site is None:
            return ""
        names = {
            thread.name
            for thread in self.stacks.get(rank, ())
            if (found := stack_tree.users_frame(thread.frames)) is not None
            and (found[0].file, found[0].line) == (site.file, site.line)
        }
        return "" if "MainThread" in names else min(names, default="")

    def _standing(self, rank: int, finding: Finding) -> ThreadStack | None:
        """The main thread; where it waits for another one, and that is where the rank says that it
        stands, that one; None where that one has gone on since."""
        main, known = self._main(rank), finding.ranks.get(rank)
        site = known.location if known is not None else None
        if main is None or site is None or not stack_tree.may_wait_for_thread(main):
            return main
        own = stack_tree.users_frame(main.frames)
        if own is not None and _is_at(own[0], site):
            return main
        for thread in self.stacks.get(rank, ()):
            found = stack_tree.users_frame(thread.frames)
            if found is not None and _is_at(found[0], site):
                return thread
        return None

    def _states(self, finding: Finding) -> dict[int, RankState]:
        """Returns the state of the thread that stands for each culprit, of those that have a
        stack."""
        standing = {rank: self._standing(rank, finding) for rank in finding.culprits}
        return {
            rank: stack_tree.state_of(thread)
            for rank, thread in standing.items()
            if thread is not None and thread.frames
        }

    def _site(self, rank: int, finding: Finding) -> CallSite | None:
        thread = self._standing(rank, finding)
        found = stack_tree.users_frame(thread.frames) if thread is not None else None
        if thread is None or found is None:
            return None
        frame, through = found
        held = None
        if stack_tree.waits_for_lock(thread):
            held = held_lock(self.stacks[rank], thread)
        if held is not None:  # this thread waits for the one that waits for it
            frame, through = held.waiter, ""
        return CallSite(frame.file, frame.line, frame.function, through)


def _is_at(frame: Frame, site: CallSite) -> bool:
    """Whether it is in the function of that line."""
    return frame.file == site.file and _name(frame.function) == _name(site.function)


def _name(function: str) -> str:
    return function.rpartition(".")[2]


def gather(
    directory: RunDirectory, ranks: Mapping[int, Rank], native: bool, timeout_s: float
) -> Evidence:
    """Take the stacks of the ranks that are alive, and keep them in the run directory."""
    pids = {rank.pid: number for number, rank in ranks.items() if rank.process.alive}
    problems: list[str] = []
    began_s = time.monotonic()
    found = capture(pids, native, timeout_s, directory.stacks, problems)
    stacks = {pids[pid]: threads for pid, threads in sorted(found.items()) if threads}
    keep(directory, stacks, problems, time.monotonic() - began_s)
    local = {rank: pid for pid, rank in pids.items() if rank in stacks}
    return Evidence(stacks, local)


def keep(
    directory: RunDirectory,
    stacks: Mapping[int, Sequence[ThreadStack]],
    problems: Sequence[str],
    took_s: float,
) -> None:
    """Put the stacks into the run directory. The ranks wait for the verdict meanwhile, and not for
    the disk."""
    directory.write_text("stacks/stacks.txt", stack_tree.render(stacks), lasts=False)
    rows = {**stack_tree.to_json(stacks), "problems": problems, "took_s": round(took_s, 3)}
    directory.write_json("stacks/stacks.json", rows, lasts=False)
