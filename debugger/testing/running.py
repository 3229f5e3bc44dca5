"""Runs one test in its ranks: starts them, keeps their phases in step, ends what cannot go on.

The ranks are judged from outside, as by `distdebug run`, with the same records, diagnosis, stacks
and report.
"""

from __future__ import annotations

import selectors
import shutil
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..diagnosis.diagnose import verdict
from ..diagnosis.findings import Finding
from ..diagnosis.judging import judge
from ..diagnosis.limits import Limits
from ..record.exits import ExitLog
from ..record.kinds import Family
from ..record.layout import Activity
from ..record.reading.records import Records, newest_ranks
from ..record.requests.supervision import any_stop
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import Process, Rank
from ..reports import document, text
from ..supervisor.limits import GONE_WITHIN_S, STACKS_S
from ..supervisor.machine.processes import ProcessTable
from ..supervisor.stacks import stack_tree
from ..supervisor.stacks.evidence import Evidence, gather
from ..supervisor.watch import LocalReader, Look, Policy, Watch
from ..system.memory import OomWatch
from .channel import Message, MessageChannel
from .limits import FAILED_GRACE_S, LATE_S, RAISE_GRACE_S, TEARDOWN_S
from .marks import Wanted
from .server import ForkServer, ServerError


class BodyTable(ProcessTable):
    """The ranks' processes, of which those whose body has ended count as ended: such a rank comes
    to no call any more that others wait in, although its process waits for them."""

    def __init__(self, exits: ExitLog) -> None:
        super().__init__(exits, None, OomWatch())
        self._bodies: dict[int, Process] = {}

    def body_ended(self, pid: int, code: int) -> None:
        """Notes that the body has ended, until `go_on`."""
        self._bodies[pid] = Process(alive=False, exit_code=code, ended_ns=time.time_ns())

    def go_on(self) -> None:
        """The fixtures are torn down: they may communicate."""
        self._bodies.clear()

    def observe(self, pid: int, start_ticks: int = 0) -> Process:
        return self._bodies.get(pid) or super().observe(pid, start_ticks)


class BodyJudge:
    """The judge of one test. `finding` is what ended it, or was found in it; None so far."""

    def __init__(self, directory: RunDirectory, exits: ExitLog, wanted: Wanted, level: str) -> None:
        self._directory = directory
        self._wanted = wanted
        self._exits = exits
        self._began_s = time.monotonic()
        self._limits = Limits(hang_timeout_s=wanted.hang_timeout_s or 1e6)
        self._evidence = Evidence()
        self._waiting: dict[int, int] = {}
        self._look = Look((), (), (), None)
        self._previous = self._look
        self.table = BodyTable(exits)
        self._watch = Watch(
            LocalReader(Records(directory.ranks, trusted=True), self.table, wanted.nproc),
            Policy(limits=self._limits, level=level),
        )
        self.finding: Finding | None = None

    @property
    def pause_s(self) -> float:
        """The seconds to wait until the next look."""
        return self._watch.pause_s

    @property
    def ranks(self) -> dict[int, Rank]:
        return newest_ranks(self._look.snapshots)

    def pause(self) -> None:
        """Holds the clock: a rank is at a breakpoint, and no rank is late meanwhile."""
        self._watch.pause()

    def look(self) -> Finding | None:
        """Look at all ranks; the error that was found, and confirmed."""
        self._previous, self._look = self._look, self._watch.look()
        return self._allowed(self._look.verdict)

    def last_look(self) -> Finding | None:
        """All ranks are through with the body: whatever the records show is true."""
        self.look()
        allowed = [one for one in self._look.findings if one.kind not in self._wanted.ignore]
        found = verdict(allowed)
        if found is None and self._wanted.strict:
            return next(iter(allowed), None)  # there are warnings alone
        if found is not None and found.kind == "rank_exception":
            return None  # the traceback says it, and more
        return found

    @property
    def ignored(self) -> Finding | None:
        """The finding that a check has raised in a rank, if the test ignores it."""
        found = self._look.verdict
        of_check = found is not None and found.about.family is Family.DATA
        return found if of_check and self._allowed(found) is None else None

    def _allowed(self, found: Finding | None) -> Finding | None:
        return None if found is None or found.kind in self._wanted.ignore else found

    def all_wait(self, numbers: Collection[int]) -> bool:
        """Whether all of these ranks have been in one wait since the last call of this."""
        ranks = self.ranks
        before, self._waiting = self._waiting, {}
        for number in numbers:
            rank = ranks.get(number)
            if rank is not None and any(one.activity is not Activity.NONE for one in rank.waits):
                self._waiting[number] = rank.layer_serial
        return all(
            number in before and before[number] == self._waiting.get(number) for number in numbers
        )

    # -- ending the test -----------------------------------------------------------------------

    def late(self) -> Finding | None:
        """At the test's timeout: who is late, however little."""
        limits = Limits(hang_timeout_s=LATE_S, settle_s=0.0)
        return self._allowed(judge(self._look.snapshots, self._previous.snapshots, limits).verdict)

    def gather(self) -> str:
        """Take the stacks of the ranks that are alive; all of them as one tree."""
        self._evidence = gather(self._directory, self.ranks, False, STACKS_S)
        return stack_tree.render(self._evidence.stacks)

    def stop(self, finding: Finding) -> None:
        """Every rank that can still run Python raises the finding; its words are kept."""
        self.finding = self._evidence.refine(finding)
        self.raise_in_ranks(finding.kind, self.finding.message, finding.cause)

    def raise_in_ranks(self, kind: str, message: str, cause: str | None = None) -> None:
        """Have every rank that can raise this raise it; the first time counts."""
        if not self._directory.verdict.exists():
            self._directory.raise_in_ranks(kind, message, cause)

    # -- what is left of it --------------------------------------------------------------------

    def report(self, nodeid: str, outcome: str) -> str:
        """Write the report of the run; its text."""
        finding = self.finding
        others = [
            one
            for one in self._look.findings
            if finding is None or one.identity != finding.identity
        ]
        if finding is not None and finding.severity == "error":
            others = [one for one in others if one.severity == "error"]
        findings = [*([finding] if finding is not None else ()), *others]
        made = document.build(
            command=["pytest", nodeid],
            run_dir=self._directory.path,
            world_size=self._wanted.nproc,
            duration_s=time.monotonic() - self._began_s,
            outcome=finding.kind if finding is not None else outcome,
            exit_code=finding.exit_code if finding is not None else int(outcome != "ok"),
            findings=[(one, self._watch.detected_after_s.get(one.identity)) for one in findings],
            ranks=self.ranks,
            stacks=self._evidence.lines,
        )
        words = text.render(made)
        self._directory.write_json(self._directory.report_json.name, made)
        self._directory.write_text(self._directory.report_text.name, words)
        return words

    def write_run(self, nodeid: str) -> None:
        """Writes what made this directory, for `distdebug report` and `distdebug tui`."""
        about: dict[str, Any] = {"command": ["pytest", nodeid], "started_ns": time.time_ns()}
        self._directory.write_json(self._directory.run_json.name, about)


def make_directory(path: Path) -> RunDirectory:
    """The run directory of a test; no `latest` points to it."""
    return RunDirectory.create(path.parent / "none", path)


START, CALL, TEARDOWN, END = range(4)
"""The stages of a rank. At CALL and TEARDOWN it waits to be told to go on."""
REACHED = {"call": CALL, "teardown": TEARDOWN}


@dataclass(slots=True)
class RankRun:
    """A rank of the test, as pytest sees it. `reports` are pytest's, by phase, each with what the
    rank says about its error."""

    number: int
    channel: MessageChannel
    pid: int = 0
    at: int = START
    done: bool = False
    reports: dict[str, tuple[Message, Message]] = field(default_factory=dict)
    subtests: list[tuple[Message, Message]] = field(default_factory=list)
    """The reports, as `reports`, of each subtest that failed; the body went on after it."""
    error: str = ""
    """The error that no report tells: it could not collect the test, or pytest itself failed."""

    @property
    def died(self) -> bool:
        """The process has gone in the middle of the test."""
        return self.at == END and not self.done

    @property
    def stopped_early(self) -> bool:
        """Whether it failed, or skipped the rest."""
        return any(data["outcome"] != "passed" for data, _ in self.reports.values())

    @property
    def failed(self) -> bool:
        """An exception has ended the body or a fixture, an expected one, too."""
        return any(
            data["outcome"] == "failed" or "wasxfail" in data for data, _ in self.reports.values()
        )


@dataclass(frozen=True, slots=True)
class PytestSurroundings:
    """The parts of the pytest process that a test needs. `request` is the same for all ranks,
    without what is the test's own; `at_prompt` shows the prompt of the rank that stands at a
    breakpoint, in the run directory it is given; `warn` takes the warnings of ranks."""

    server: ForkServer
    request: Message
    at_prompt: Callable[[Path, Sequence[RankRun]], None]
    warn: Callable[[Message], None]
    follow: Callable[[Path], Callable[[], None]] | None
    """Shows what the ranks print, as they do, until what it returns is called."""


class RankTest:
    """A test of ranks. The methods `setup`, `call` and `teardown` are pytest's phases."""

    def __init__(
        self, nodeid: str, wanted: Wanted, place: Path, around: PytestSurroundings
    ) -> None:
        self.nodeid = nodeid
        self.wanted = wanted
        self.place = place
        self.reason = ""
        """Why the test was broken off, where not for a finding."""
        self.stacks = ""
        self.exit_reason: str | None = None
        self.abandoned = False
        """The session ends: nothing of the test is waited for any more."""
        self.ranks: list[RankRun] = []
        self.judge: BodyJudge | None = None
        self._around = around
        self._deadline_s = 0.0
        self._ends_by_s: float | None = None
        self._failed_s: float | None = None
        self._over = False
        self._shown: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<RankTest {self.nodeid}: {[rank.at for rank in self.ranks]}>"

    # -- phases --------------------------------------------------------------------------------

    def setup(self) -> None:
        """Start the ranks; return when each is before the body, or came to its end before that."""
        try:
            self._start()
        except ServerError as error:
            self.reason, self._over = str(error), True
            return
        self._advance(CALL)

    def call(self) -> None:
        """Have all ranks run the body."""
        self._release(CALL)
        self._advance(TEARDOWN)
        if self.judge is not None and self.judge.finding is None and not self.reason:
            found = self.judge.last_look()
            if found is not None:
                self.judge.stop(found)

    def teardown(self, keep: bool) -> None:
        """Have the ranks tear down their fixtures, and end them. `keep`: leave the record."""
        if self.judge is None:
            self._around.server.kill()
            return
        try:
            self._deadline_s = max(self._deadline_s, time.monotonic() + TEARDOWN_S)
            if self._over or self._ends_by_s is not None:
                self._deadline_s = time.monotonic() + RAISE_GRACE_S
            if self.abandoned:
                return
            broken_off = self._over
            self._over, self._ends_by_s, self._failed_s = False, None, None
            self._release(CALL, go=False)
            if not broken_off:
                self._advance(TEARDOWN)
            self.judge.table.go_on()
            ready = [rank for rank in self.ranks if rank.at == TEARDOWN]
            self._release(TEARDOWN)
            if not broken_off:
                self._advance(END)
            while any(rank.at < END for rank in ready) and time.monotonic() < self._deadline_s:
                self._listen(0.1)
        finally:
            self._end(keep)

    def broken_off(self, reason: str) -> None:
        """Ends the test where another's time is up (pytest-timeout's), and notes where the ranks
        stand."""
        self.reason = self.reason or reason
        if self.judge is not None:
            self._give_up(reason)
        self._over = True

    # -- starting and ending -------------------------------------------------------------------

    def _start(self) -> None:
        server = self._around.server
        server.ready()
        directory = make_directory(self.place / "run")
        self._directory = directory
        pairs = [socket.socketpair() for _ in range(self.wanted.nproc)]
        request = {**self._around.request, "run_dir": str(directory.path)}
        request |= {"backend": self.wanted.backend, "check": self.wanted.check}
        request |= {"nodeid": self.nodeid, "temporary": str(self.place)}
        if self.wanted.level is not None:
            request["level"] = self.wanted.level
        self.ranks = [RankRun(at, MessageChannel(ours)) for at, (ours, _) in enumerate(pairs)]
        try:
            pids = server.start(request, [theirs for _, theirs in pairs])
        finally:
            for _, theirs in pairs:
                theirs.close()
        for rank, pid in zip(self.ranks, pids, strict=True):
            rank.pid = pid
        self._deadline_s = time.monotonic() + self.wanted.timeout_s
        self.judge = BodyJudge(directory, server.exits, self.wanted, request["level"])
        self.judge.write_run(self.nodeid)
        if self._around.follow is not None:
            self._shown = self._around.follow(directory.logs)

    def _end(self, keep: bool) -> None:
        self._around.server.kill()
        if self._shown is not None:
            self._shown()
        for rank in self.ranks:
            rank.channel.close()
        if keep and self.judge is not None and not self._directory.report_json.exists():
            self.judge.report(self.nodeid, "ok")
        self._directory.close()
        if not keep:
            shutil.rmtree(self._directory.path, ignore_errors=True)

    # -- one phase -----------------------------------------------------------------------------

    def _release(self, at: int, go: bool = True) -> None:
        for rank in self.ranks:
            if rank.at == at:
                rank.channel.send({"go": go})

    def _advance(self, target: int) -> None:
        """Until all ranks have come so far, or cannot."""
        while not self._over and any(rank.at < target for rank in self.ranks):
            assert self.judge is not None
            self._listen(self.judge.pause_s)
            if any(rank.at < target for rank in self.ranks):
                self._look(self.judge, target)

    def _look(self, judge: BodyJudge, target: int) -> None:
        self._pause(judge)
        now_s = time.monotonic()
        if self._ends_by_s is not None:
            judge.look()
            self._over = now_s >= self._ends_by_s
            return
        found = judge.look()
        through = [rank for rank in self.ranks if rank.at >= target]
        failed = any(rank.stopped_early or rank.died for rank in through)
        if found is not None and found.about.family is not Family.FAILURE:
            self.stacks = judge.gather()
            judge.stop(found)
            self._ends_by_s = time.monotonic() + RAISE_GRACE_S
        # Where a rank has failed, the others may still do the same; only when they wait for it they
        # are told.
        elif (found is not None or failed) and self._nobody_gets_on(judge, target):
            if found is not None:
                judge.stop(found)
            else:
                judge.raise_in_ranks("rank_exception", "another rank of the test has failed")
            self._ends_by_s = time.monotonic() + RAISE_GRACE_S
        # A check keeps a call from its backend: others wait there for a rank that expected that.
        elif (
            through
            and (ignored := judge.ignored) is not None
            and judge.all_wait([rank.number for rank in self.ranks if rank.at < target])
        ):
            judge.raise_in_ranks(ignored.kind, ignored.message, ignored.cause)
        elif now_s >= self._deadline_s:
            self._give_up(f"the test did not end within {self.wanted.timeout_s:g} s")

    def _nobody_gets_on(self, judge: BodyJudge, target: int) -> bool:
        now_s = time.monotonic()
        if self._failed_s is None:
            self._failed_s = now_s
        others = [rank.number for rank in self.ranks if rank.at < target]
        return judge.all_wait(others) or now_s - self._failed_s > FAILED_GRACE_S

    def _give_up(self, reason: str) -> None:
        """Time is up: where does everybody stand, and who is late?"""
        judge = self.judge
        assert judge is not None
        self.reason = self.reason or reason
        judge.look()
        found = judge.late()
        self.stacks = judge.gather()
        if found is not None:
            judge.stop(found)
        else:
            judge.raise_in_ranks("timeout", reason)
        self._ends_by_s = time.monotonic() + RAISE_GRACE_S

    def _pause(self, judge: BodyJudge) -> None:
        """Shows the prompt here if a rank stands at a breakpoint."""
        if not any_stop(self._directory.path):
            return
        began_s = time.monotonic()
        judge.pause()
        self._around.at_prompt(self._directory.path, self.ranks)
        self._deadline_s += time.monotonic() - began_s
        if self._failed_s is not None:
            self._failed_s = time.monotonic()
        judge.pause()

    # -- listening -----------------------------------------------------------------------------

    def _listen(self, wait_s: float) -> None:
        """Take in what the ranks, and the server of them, have to say."""
        server = self._around.server
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                if rank.at < END:
                    selector.register(rank.channel, selectors.EVENT_READ, rank)
            if server.alive:
                selector.register(server, selectors.EVENT_READ, None)
            for key, _ in selector.select(wait_s):
                if key.data is None:
                    server.poll()
                else:
                    self._hear(key.data)
        for rank in self.ranks:
            # A child that it has forked may hold the other end of its socket.
            if rank.at < END and server.exits.find(rank.pid) is not None:
                while rank.channel.readable(0):
                    self._hear(rank)
                rank.at = END
        if not server.alive and not self._over:
            self.reason, self._over = "the fork server of the ranks has died", True

    def _hear(self, rank: RankRun) -> None:
        for message in rank.channel.receive():
            self._take(rank, message)
        if rank.channel.ended and rank.at < END:
            rank.at = END
            self._await_status(rank)

    def _take(self, rank: RankRun, message: Message) -> None:
        match message:
            case {"report": dict(data), "about": dict(about)}:
                rank.reports[str(data["when"])] = (data, about)
            case {"subtest": dict(data), "about": dict(about)}:
                rank.subtests.append((data, about))
            case {"reached": str(phase)}:
                rank.at = REACHED[phase]
                if rank.at == TEARDOWN and self.judge is not None:
                    self.judge.table.body_ended(rank.pid, int(rank.failed))
            case {"error": str(text)}:
                rank.error += text
            case {"exit": str(reason)}:
                self.exit_reason, rank.done = reason, True
            case {"end": True}:
                rank.done, rank.at = True, END
            case {"warning": str()}:
                self._around.warn(message)
            case _:
                pass

    def _await_status(self, rank: RankRun) -> None:
        """Waits for the status of a rank that died, which is known a moment later."""
        server = self._around.server
        until_s = time.monotonic() + GONE_WITHIN_S
        while (left_s := until_s - time.monotonic()) > 0 and server.alive:
            if server.exits.find(rank.pid) is not None:
                return
            server.await_news(left_s)

    def ending(self, rank: RankRun) -> str:
        """Tells how a rank that died has ended: `exit code 3`, `SIGKILL`."""
        status = self._around.server.exits.find(rank.pid)
        return str(status) if status is not None else "no trace"
