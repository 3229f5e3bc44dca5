"""The evidence that is gathered when a run is stopped: the stacks of all ranks, kept, and used in
the finding.

A lock of Python's does not say who holds it, and a flight record knows nothing of locks. But who
stands in the body of `with lock:` is inside it; that it is the same lock is read from its name, in
the same file, so that this is evidence, and no proof.

The rank's stack shows that it waits for a process, and not for which. It is taken to be the newest
one below it that is in code of the user's, or that is no Python: idle workers, and the helpers of
multiprocessing, are in code of Python's own and torch's.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from types import MappingProxyType

from ...diagnosis.findings import Finding, RankEvidence
from ...diagnosis.rules.late_rank import placed, refine_cause, restated
from ...diagnosis.story import step
from ...record.exits import ExitStatus
from ...record.kinds import Family, kind_of
from ...record.layout import Activity
from ...record.runs.run_directory import RunDirectory
from ...record.safe_text import clean
from ...record.snapshot import CallSite, Rank
from ...record.wording import RankState
from ...system import proc
from ...system.processes import Tree
from ...system.threads import asleep_in, lock_holder, lock_holders
from ..limits import A_SLEEP_S
from ..machine import listeners
from . import stack_tree
from .stacks import Frame, ThreadStack, capture, text_of
from .standstill_watch import in_hand, stood


@dataclass(frozen=True, slots=True)
class HeldLock:
    """`name` is the lock as the source writes it; `inside`: what the holder's line has called, and
    that line itself, innermost first."""

    name: str
    waiter: Frame
    holder: Frame
    inside: tuple[Frame, ...]

    def __str__(self) -> str:
        called = stack_tree.own_frames(self.inside)
        within = f", in {called[0].function}" if called and called[0] != self.holder else ""
        return clean(
            f"a thread waits for `{self.name}` at {_place(self.waiter)}, and another one is inside "
            f"`with {self.name}` at {_place(self.holder)}{within}",
            400,
        )


def held_lock(threads: Sequence[ThreadStack], late: ThreadStack | None = None) -> HeldLock | None:
    """The first lock of this process that a thread waits for while another one is inside it.

    Where each of two waits for what the other one holds, it is `late` who is said to wait: where
    that one stands is what the finding is about.
    """
    for waiter in sorted(threads, key=lambda thread: thread is not late):
        found = stack_tree.users_frame(waiter.frames)
        if found is None or not stack_tree.waits_for_lock(waiter):
            continue
        frame = found[0]
        blocks = _blocks(frame.root + frame.file)
        for name in [one.name for one in blocks if one.first <= frame.line < one.body]:
            for holder in threads:
                if holder is waiter:
                    continue
                for index, other in enumerate(holder.frames):
                    if other.file == frame.file and any(
                        one.name == name and one.body <= other.line <= one.last
                        for one in _blocks(other.root + other.file)
                    ):
                        return HeldLock(name, frame, other, holder.frames[: index + 1])
    return None


def _place(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}"


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    first: int
    body: int
    last: int


@lru_cache(maxsize=64)
def _blocks(path: str) -> tuple[_Block, ...]:
    """Returns where the file takes locks: `with name:`, and `name.acquire()`, which has no body."""
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            body, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            for item in node.items:
                if isinstance(item.context_expr, ast.Name | ast.Attribute):
                    name = ast.unparse(item.context_expr)
                    found.append(_Block(name, item.context_expr.lineno, body, last))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "acquire"
            and isinstance(node.func.value, ast.Name | ast.Attribute)
        ):
            end = (node.end_lineno or node.lineno) + 1
            found.append(_Block(ast.unparse(node.func.value), node.lineno, end, 0))
    return tuple(found)


MOST_CHILDREN = 8
_WAITS_IN = re.compile(
    r"/(?:subprocess|multiprocessing/\w+|concurrent/futures/process|torch/utils/data/dataloader)\.py$"
)
_BEGINS_IN = re.compile(r"/multiprocessing/(?:process|resource_tracker|forkserver)\.py$")
"""The files above which a child's own functions stand; multiprocessing's helpers have none."""
_KERNEL_WAITS = ("do_wait", "pipe_read")


def awaited_child(
    pid: int, threads: Sequence[ThreadStack], ranks: Container[int]
) -> tuple[str, Sequence[str]] | None:
    """The process for which the main thread of rank process `pid` waits: `its child 4711 (name)`,
    and its stack, innermost call first. `ranks`: the pids of all ranks, which are nobody's."""
    main = stack_tree.main_of(threads)
    if main is None or not _waits_for_process(main, threads):
        return None
    tree = Tree()
    below = [one for one in tree.below(pid) if one not in ranks]
    below = sorted(below, key=lambda one: tree.stats[one].start_ticks)[-MOST_CHILDREN:]
    stacks = capture(below, timeout_s=2.0)
    for one in reversed(below):
        stands = _stands_at(one, stacks[one])
        if stands:
            return f"its child {one} ({clean(proc.name(one), 80)})", stands
    return None


def dead_children(pid: int, threads: Sequence[ThreadStack]) -> list[str]:
    """The children of process `pid` that have failed and that it has not asked about since, though
    its main thread waits for processes: `its child 4711 (name) has ended (SIGKILL)`. Who reads the
    queue of one that was killed waits for ever."""
    main, found = stack_tree.main_of(threads), []
    if main is not None and _waits_for_process(main, threads):
        tree = Tree()
        for one in tree.children.get(pid, ()):
            stat = tree.stats[one]
            if stat.state == "Z" and stat.wait_status:
                ended = ExitStatus.from_wait(stat.wait_status)
                found.append(f"its child {one} ({clean(proc.name(one), 80)}) has ended ({ended})")
    return found[-MOST_CHILDREN:]


def _stands_at(pid: int, threads: Sequence[ThreadStack]) -> Sequence[str]:
    """The frames of the main thread, innermost first; none where it has nothing to do. A child that
    a thread has forked keeps that thread's name. What a fork has copied of the parent's stack is
    not its own."""
    main = next((one for one in threads if one.native_id == pid), stack_tree.main_of(threads))
    if main is None:
        return ()
    own = tuple(takewhile(lambda frame: not _BEGINS_IN.search(frame.file), main.frames))
    busy = main.source == "proc" or stack_tree.users_frame(own)
    return stack_tree.lines_of(replace(main, frames=own)) if busy else ()


def _waits_for_process(main: ThreadStack, threads: Sequence[ThreadStack]) -> bool:
    """Whether the thread sleeps in a call of the user's that waits for processes. A future's may be
    computed by threads: then no thread of this process serves an executor of processes."""
    if main.active:
        return False
    called = stack_tree.called_by_user(main)
    if any(frame.file.endswith("/concurrent/futures/_base.py") for frame in called):
        called = [frame for thread in threads for frame in thread.frames]
    waits = any(_WAITS_IN.search(frame.file) for frame in called)
    return waits or (not called and any(word in main.wait for word in _KERNEL_WAITS))


MOST_LOCKS = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """Stacks by rank. `pids`: of those on this host."""

    stacks: Mapping[int, Sequence[ThreadStack]] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)

    @property
    def lines(self) -> dict[int, Sequence[str]]:
        """Each main thread's, innermost first, printable."""
        mains = {rank: self._main(rank) for rank in self.stacks}
        return {n: stack_tree.lines_of(one) for n, one in mains.items() if one and one.frames}

    @step("stacks")
    def refine(self, finding: Finding) -> Finding:
        """The finding with what the stacks show (a lock, and where an absent rank stands), and with
        who listens at the address that it is about."""
        finding = listeners.with_listener(finding)
        if finding.kind == "missing_rank":
            finding = refine_cause(finding, self._states(finding))
        ranks = dict(finding.ranks)
        for rank in self.pids.keys() & finding.missing:
            ranks[rank] = RankEvidence(f"runs, as process {self.pids[rank]}")
        for rank in ranks:
            thread = self._standing(rank, finding) or self._main(rank)
            # Of a process that is ending, only the kernel's word may be left, which says nothing.
            if thread is not None and any(frame.file != "kernel" for frame in thread.frames):
                lines = tuple(stack_tree.lines_of(thread))
                ranks[rank] = replace(ranks[rank], stack=lines)
        finding = replace(finding, ranks=ranks)
        running = {rank for rank, known in ranks.items() if known.state == RankState.RUNS}
        absent = finding.culprits if finding.kind == "missing_rank" else finding.missing
        for rank in running.union(absent):
            site = self._site(rank, finding)
            if site is not None:  # a busy machine's heartbeats may be old
                finding = placed(finding, rank, site)
        named = {n: replace(one, thread=self._thread(n, one)) for n, one in finding.ranks.items()}
        finding = replace(finding, ranks=named)
        kind = kind_of(finding.kind)
        if kind.family is not Family.ABSENCE or kind.leaves or kind.ends_culprits:
            return finding  # no culprit that is still there
        for rank in [one for one in finding.culprits if one in self.pids][:MOST_LOCKS]:
            pid, threads = self.pids[rank], self.stacks[rank]
            dead = tuple(f"rank {rank}: {said}" for said in dead_children(pid, threads))
            finding = replace(finding, details=(*finding.details, *dead))
            child = awaited_child(pid, threads, set(self.pids.values()))
            if child is not None:
                finding = restated(finding, rank, f"waits for {child[0]}")
                stands = f"rank {rank} waits for {child[0]}: {'; '.join(child[1])}"
                finding = replace(finding, details=(*finding.details, stands))
            elif finding.cause in ("user_code", "lock", "absent") and (slept := self._sleeps(rank)):
                finding = replace(finding, details=(*finding.details, f"rank {rank} {slept}"))
        locks = self._held_locks((*finding.culprits, *finding.victims))
        said = (f"rank {rank}: {held}" for rank, held in locks.items())
        return replace(finding, details=(*finding.details, *said))

    def _sleeps(self, rank: int) -> str:
        """Returns what the kernel tells of the main thread's sleep in a line of the user's; "" of
        one that runs, sleeps for a time of its own, or waits for another thread."""
        pid, main = self.pids[rank], self._main(rank)
        if main is None or main.active:
            return ""
        awaits, holder = asleep_in(pid, pid), lock_holders().get(pid)
        if holder is not None:
            who = self._process(holder)
            return f"waits for the lock on {clean(awaits.awaits, 400)}, which {who} holds"
        if awaits.awaits:
            return f"waits for {clean(awaits.awaits, 400)}"
        if awaits.wakes_in_s is not None:
            return self._polls(pid) if awaits.wakes_in_s < A_SLEEP_S else ""
        if not main.wait or stack_tree.waits_for_lock(main) or stack_tree.called_by_user(main):
            return ""
        return f"sleeps in {clean(main.wait, 80)} (kernel)"

    def _polls(self, pid: int) -> str:
        """Returns who has locked a file that the process has in hand while it sleeps again and
        again: that it asks for the lock, the kernel does not know. Of the many files that it may
        have open, and not in hand, only those count that another rank has locked."""
        main = stack_tree.main_of(capture([pid], timeout_s=2.0, values=True)[pid])
        named = {proc.root_of(pid) + one: one for one in in_hand(main)} if main is not None else {}
        opened: dict[str, str] = {}
        with suppress(OSError):
            opened = {proc.path_of(number, pid): one for number, one in proc.open_files(pid)}
        for path, shown in {**named, **opened}.items():
            holder = lock_holder(path)
            if 0 < holder != pid and (path in named or holder in self.pids.values()):
                who = self._process(holder)
                return f"polls, with {clean(shown, 400)} in hand, on which {who} has a lock"
        return ""

    def _process(self, pid: int) -> str:
        ranks = {one: f"rank {number}" for number, one in self.pids.items()}
        return ranks.get(pid, f"process {pid} ({clean(proc.name(pid), 80)})")

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
    directory: RunDirectory,
    ranks: Mapping[int, Rank],
    native: bool,
    timeout_s: float,
    numbers: Mapping[int, int] = MappingProxyType({}),
) -> Evidence:
    """Take the stacks of the ranks that are alive, and keep them in the run directory. `numbers`:
    of ranks without a record, by pid."""
    alive = {rank.pid: number for number, rank in ranks.items() if rank.process.alive}
    pids = {**numbers, **alive}
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
