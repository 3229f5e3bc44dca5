"""A supervised run, from the command to the exit code: started, watched, ended, reported.

The supervisor decides when. How is elsewhere, each part in a place of its own, so that a run may
have its ranks on several hosts: `several_nodes` (where ranks are read, looked into and ended),
`guarded_watch` (what is said while it goes on).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .. import hook
from ..diagnosis.findings import Finding
from ..diagnosis.judging import warnings_at_the_end
from ..nodes.job import Job, one_terminal
from ..nodes.missing import Incomplete, LateMeeting
from ..record.collection import collect_where_due
from ..record.exits import ExitStatus
from ..record.limits import POLL_EVERY_S
from ..record.reading.records import Records, newest_ranks, unreadable_ranks
from ..record.requests.control import ControlServer
from ..record.runs.recorded_runs import kept_small
from ..record.safe_text import clean
from ..record.wording import ranks_text, verb
from ..reports import document, junit, text
from ..reports.stored import Document
from ..system.memory import OomWatch
from .actions import Actions
from .begin import Begun
from .command.launch import can_raise
from .command.reach import FromOutside, Reach, early_death
from .guarded_watch import Announcements, GuardedWatch, OwnFaults, Pauses
from .injection import Injection
from .limits import (
    END_GRACE_S,
    INTERRUPTED_S,
    ORPHAN_GRACE_S,
    PROCESSES_EVERY_S,
    RAISE_GRACE_S,
    STACKS_S,
)
from .machine import listeners
from .machine.host import HostSampler
from .machine.processes import ProcessTable
from .machine.task_limit import TaskLimit
from .metrics_file import MetricsFile
from .output.lines import colour_wanted
from .run_options import about
from .several_nodes import JobRanks, JobReader, Orders
from .stacks.evidence import Evidence
from .stacks.standstill_watch import StandstillWatch
from .watch import Look, Policy, without_deaths_by

_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): \S.*$", re.MULTILINE)
"""The last line of a traceback. torchrun's ChildFailedError has its text below that."""


class Supervisor:
    """Starts the command, watches it, ends it, reports."""

    def __init__(self, begun: Begun) -> None:
        self.options = begun.options
        self.interrupts, self.app = begun.interrupts, begun.app
        self.directory, self.started_s = begun.directory, begun.started_s
        self._begun, self._launch, self._output = begun, begun.launch, begun.output
        self.faults = OwnFaults()
        self.faults.directory = self.directory
        self._unreached_asked_s = 0.0
        self._suspected: Finding | None = None
        self.evidence = Evidence()
        """The stacks that were gathered on the way to the end."""

    def run(self) -> int:
        """Run to the end; returns the exit code of `distdebug`."""
        for part, error in self._begun.failed:
            self.faults.note(part, error)
        self._prepare()
        look, finding = self._until_it_ends()
        for why in self._begun.lost:
            self.faults.say("the log of what the ranks print", why)
        if finding is None and not self.job.judged_elsewhere:
            with self.faults.guard("rules of the end"):
                found = warnings_at_the_end(look.snapshots)
                look = replace(look, findings=[*look.findings, *found])
                self.announcements.announce(look)
        return self._reported(look, finding)

    def _prepare(self) -> None:
        """Makes all parts of the run."""
        options, faults, directory = self.options, self.faults, self.directory
        launch = self._launch
        directory.write_json(directory.run_json.name, about(options))
        self.reach = Reach(str(directory.path), str(hook.SITE))
        self.announcements = Announcements(directory, options.on_finding_run)
        self.say = self.announcements.say
        self.outside = FromOutside(options.inspect, self.reach, options.limits, self.say)
        self._metrics = MetricsFile(options.prom, directory.path.name, self.say)
        self.injection = Injection(options.faults, directory, self.say, options.own_network)
        self._oom = OomWatch()
        self._task_limit = TaskLimit()
        table = ProcessTable(launch.exits, launch, self._oom)
        self.job = Job(options.several, directory, table.observe, self.say)
        within_s = options.limits.hang_timeout_s
        self._late = LateMeeting(self.job, directory.path, self.say, within_s)
        self.watch = self._watching(table)
        self._standstill = StandstillWatch(options.limits, launch.descendants, table, faults.note)
        self._ranks = JobRanks(launch, self.job, directory)
        incomplete = Incomplete(
            self.job, lambda: len(launch.descendants()) > 1, options.limits, self.say
        )
        by_torchrun = options.launcher == "torchrun"
        self._orders = Orders(
            self.job,
            self._ranks,
            self.interrupts,
            self.say,
            self._late,
            incomplete if by_torchrun else None,
        )
        self._pauses = Pauses(directory.path, self._begun.shown_as)

    def _until_it_ends(self) -> tuple[Look, Finding | None]:
        """The command is run; the last look, and the finding that ended it, if one did."""
        launch = self._launch
        with self._beside() as host:
            self.job.begin(lambda: self.interrupts.signal is not None)
            if not self._begun.started:
                of_parts = {**self.injection.environment, **self.job.environment}
                self._begun.start(of_parts, self.injection.network)
            look, finding = self._follow(host)
            with self.faults.guard("the limit of processes"):
                finding = self._task_limit.explained(finding, launch)
            look, finding = self._end(look, finding)
            with self.faults.guard("the limit of processes"):  # also of what is found at the end
                finding = self._task_limit.explained(finding, launch)
            if finding is None and self.interrupts.signal is None:
                with self.faults.guard("the breakpoints"):
                    self._tell_pauses()  # who has left one since the last look, and ended
            self._unwatched.tell()
            if finding is not None:
                with self.faults.guard("what the GPUs say of a finding"):
                    finding = host.explained(finding)
        return look, finding

    def _reported(self, look: Look, finding: Finding | None) -> int:
        """The report is out: that of the job's head, or one of our own; its exit code."""
        launch = self._launch
        with contextlib.closing(self.job):
            document = None
            with self.faults.guard("the report of the head"):
                document = self._orders.document(launch.poll())
            if document is None:
                status = self._orders.status(launch.poll())
                killed = status is not None and status.signal == signal.SIGKILL
                memory = killed and self._oom.killed(launch.pid)
                document = _report(self, status, look, finding, memory)
            else:
                _pass_on(self, document)
            with self.faults.guard("the metrics"):
                self._metrics.end(look, document)
            self.announcements.command.finish()
            return int(document["exit_code"])

    def _watching(self, table: ProcessTable) -> GuardedWatch:
        options, note = self.options, self.faults.note
        records = Records(
            self.directory.ranks, note, steady=True, trusted=True, far=self.job.copy_of
        )
        policy = Policy(
            limits=options.limits, level=options.level, max_restarts=options.max_restarts
        )
        reader = JobReader(records, table, options.world_size, self.job, self._late)
        self._unwatched = reader.unwatched
        job = self.job
        return GuardedWatch(
            reader, policy, self.faults, self.announcements, lambda: job.judged_elsewhere
        )

    @contextlib.contextmanager
    def _beside(self) -> Iterator[HostSampler]:
        """Runs what goes on beside the command, from before its start to behind its end."""
        directory, guard = self.directory, self.faults.guard
        actions = Actions(self.job, directory, lambda: self.watch.ranks)
        control = ControlServer(
            directory.path, {**actions.table(), **self.job.actions(), "stop": self._stop}
        )
        host = HostSampler(directory)
        try:
            control.start()
            yield host
        finally:
            for closing in (control, self.injection, self._late, host):
                with guard(f"the end of {type(closing).__name__}"):
                    closing.close()
            with guard("the end of the output"):
                # After Ctrl-C nobody wants to see the rest of a flood.
                if self._output is not None:
                    interrupted = self.interrupts.signal is not None
                    self._output.finish(timeout_s=INTERRUPTED_S if interrupted else 60.0)

    # -- watching ------------------------------------------------------------------------------

    def _follow(self, host: HostSampler) -> tuple[Look, Finding | None]:
        """Follows the run until the command has ended, something was found, or somebody pressed
        Ctrl-C."""
        launcher_ended_s, launch = 0.0, self._launch
        look = Look((), (), (), None)
        guard = self.faults.guard
        while True:
            with guard("the breakpoints"):
                self._tell_pauses()
            look = self.watch.observe() or look
            impossible = self.injection.look()
            with guard("the sampling of the host"):
                host.sample(self.watch.pids_here)
            with guard("the metrics"):
                self._metrics.look(look)
            with guard("the look for a standstill"):
                self._standstill.look(self.watch.ranks)
            with guard("the look for processes out of reach"):
                look = self._look_for_unreached(look)
            if self._output is not None:
                self._output.show(not self.app.open)
            for number in self.interrupts.for_command():
                self.say(f"{signal.Signals(number).name} is handed on to the command")
                launch.signal(number, [launch.pid])
            if self.app.hung_up:
                self.interrupts.signal = self.interrupts.signal or signal.SIGHUP
            with guard("the other nodes"):
                self._orders.look(self.watch.ranks)
            if self.interrupts.signal is not None:
                # Another node may have got it first, whose ranks have died of it by now.
                return without_deaths_by(look, self.interrupts.signal), None
            if impossible and not self.job.judged_elsewhere:
                return look, None
            if look.verdict is not None and self.options.on_finding == "stop":
                return look, look.verdict
            if self._orders.over:
                if self._orders.finding is not None:
                    self.watch.found(self._orders.finding)
                return look, self._orders.finding
            if launch.poll() is not None:
                launcher_ended_s = launcher_ended_s or time.monotonic()
                waited_s = time.monotonic() - launcher_ended_s
                ended = not launch.descendants() or waited_s > ORPHAN_GRACE_S
                if self._orders.may_end(launch.poll(), ended, self.watch.ranks):
                    return look, None
            collect_where_due()
            with guard("the other nodes"):
                self.job.pause(self.watch.pause_s)

    def _look_for_unreached(self, look: Look) -> Look:
        """Looks for ranks that the hook cannot reach, and for those on the way, as long as not all
        are seen. Returns the look with what is suspected of those, if they are all that there
        is."""
        now_s = time.monotonic()
        if len(self.watch.ranks) >= self.watch.world_size:
            self._suspected = None
        elif now_s - self._unreached_asked_s >= PROCESSES_EVERY_S:
            self._unreached_asked_s = now_s
            pids = self._launch.descendants()
            self.reach.look(pids)
            self._suspected = self.outside.look(pids, self.watch.pids_here.values())
        finding = self._suspected
        if finding is not None and not self.job.judged_elsewhere:
            look = replace(look, findings=[finding], notices=(), verdict=finding)
            self.announcements.announce(look)
        return look

    def _tell_pauses(self) -> None:
        """Tells which ranks have come to a breakpoint, and which have left one; meanwhile none is
        late."""
        # Of ranks of other nodes the head gives notice, and their own node.
        far = self.job.far_stops if self.job.member is not None else ()
        notices, paused = self._pauses.look(far)
        for notice in notices:
            self.announcements.keep("breakpoint", notice)
        if paused:
            self.watch.pause()

    def _stop(self, _request: Mapping[str, Any]) -> str:
        self.interrupts.stop()
        return "the run is being stopped"

    # -- the end -------------------------------------------------------------------------------

    def _end(self, look: Look, finding: Finding | None) -> tuple[Look, Finding | None]:
        """Bring the run to its end; the look that counts, and the verdict."""
        ranks = newest_ranks(look.snapshots)
        if self.interrupts.signal is not None:
            with self.faults.guard("the stacks"):
                self.evidence = self._ranks.stacks(ranks, self.reach.ranks, False, INTERRUPTED_S)
            if look.notices:
                with self.faults.guard("the suspects at the interrupt"):
                    suspects = [self.evidence.refine(one) for one in self.watch.suspects()]
                    look = replace(look, findings=[*suspects, *look.findings])
            self._forward(self.interrupts.signal)
            return look, None
        if finding is None:
            return self._end_without_finding(look)
        with self.faults.guard("rule early_death"):
            finding = self._early_death(finding, ranks) or finding
        with self.faults.guard("the stacks"):
            native = self.options.native_stacks
            self.evidence = self._ranks.stacks(ranks, self.reach.ranks, native, STACKS_S)
            finding = self.evidence.refine(finding)
        with self.faults.guard("the exception in the ranks"):
            self._raise_in_ranks(finding)
        self._ranks.end(END_GRACE_S, self._quiet)
        return look, finding

    def _early_death(self, found: Finding | None, recorded: Collection[int]) -> Finding | None:
        status = self._launch.poll()
        orphaned = status is not None and status.signal == signal.SIGKILL
        exits = self._launch.exits
        return early_death(found, self.reach, recorded, exits, self._oom.killed, orphaned)

    @property
    def _quiet(self) -> bool:
        """Whether the launcher is ended first, and unasked: torchrun has ranks on this host only,
        and prints tracebacks about the ranks it loses."""
        return self.options.launcher == "torchrun"

    def _forward(self, number: int) -> None:
        """The signal goes to the command, which gets the time to end that it would have without us:
        after SIGTERM a checkpoint is written that torchrun would have waited for."""
        interrupts = self.interrupts
        self.say(
            f"{interrupts.name} is handed on to the command, which may take "
            f"{interrupts.grace_s:.0f} s to end; a further Ctrl-C ends it at once"
        )
        self._ranks.forward(number, interrupts.grace_s, lambda: interrupts.at_once)
        # What is left then has had its time already.
        self._ranks.end(grace_s=0 if interrupts.at_once else 0.4)

    def _end_without_finding(self, look: Look) -> tuple[Look, Finding | None]:
        """The command has ended, or it is ended since a fault cannot be made. What it left behind
        is ended, but for a daemon that it started and that nobody would miss here."""
        launch = self._launch
        status = launch.poll()
        left = self._ranks.left()
        if status is not None:
            # All of them may have ended since the last look, the one that failed among them.
            look = self.watch.observe() or look
        ranks = newest_ranks(look.snapshots)
        if status is None or any(rank.process.alive for rank in ranks.values()):
            # How the ranks end from here on is our doing; what was found before stands.
            if status is not None and status.shell_code and look.verdict is None:
                look = self._look_once_failed(look, finished=False)
            self._ranks.end(END_GRACE_S, self._quiet)
            return look, look.verdict if status is not None else None
        if left:
            pids = [rank.pid for rank in ranks.values()]
            spared = launch.daemons(pids) if status.shell_code == 0 else []
            launch.spare(spared)
            self._ranks.end(END_GRACE_S, self._quiet, spared)
        look = self.watch.observe(finished=True) or look
        found = look.verdict
        if status.shell_code:
            with self.faults.guard("rule early_death"):
                ranks = newest_ranks(look.snapshots)
                found = self._early_death(found, ranks)
        if found is None and status.shell_code:
            look = self._look_once_failed(look, finished=True)
            found = look.verdict
        if found is not None:
            with self.faults.guard("who listens at an address"):
                found = listeners.with_listener(found)
        return look, found

    def _look_once_failed(self, look: Look, finished: bool) -> Look:
        """The last look; where it finds nothing, what ranks caught before they ended with a status
        that nobody saw may be what the command failed of."""
        self.watch.fail()
        look = self.watch.observe(finished) or look
        if not finished and look.findings:
            time.sleep(self.watch.pause_s)
            look = self.watch.observe() or look  # which confirms it
        return look

    def _raise_in_ranks(self, finding: Finding) -> None:
        """Every rank that can still run Python raises the finding; wait until they have ended."""
        if not self._ranks.tell(finding):
            return
        deadline = time.monotonic() + RAISE_GRACE_S
        while self._ranks.left() and time.monotonic() < deadline and self.interrupts.signal is None:
            look = self.watch.only_look()
            if not any(can_raise(rank) for rank in newest_ranks(look.snapshots).values()):
                return
            time.sleep(POLL_EVERY_S)


EXIT_FAILED = 1
EXIT_UNWATCHED = 2
EXIT_TOOL_FAILED = 96


def _report(
    run: Supervisor,
    status: ExitStatus | None,
    look: Look,
    finding: Finding | None,
    oom_killed: bool = False,
) -> Document:
    """Write the report into the run directory, print it, and return it. `status`:
    how the command ended; `look`: the one that counts. `oom_killed`: the kernel has killed the
    command for want of memory."""
    outcome, code = _outcome(run, status, look, finding)
    unexplained = outcome == "failed" and not run.injection.look()
    findings = [finding] if finding is not None else []
    findings += [
        one for one in look.findings if finding is None or one.identity != finding.identity
    ]
    timed = [(one, run.watch.detected_after_s.get(one.identity)) for one in findings]
    ranks = newest_ranks(look.snapshots)
    if outcome == "interrupted":
        ranks = run.evidence.stood(ranks)
    ends = ranks
    with run.faults.guard("how the ranks ended"):
        ends = newest_ranks(run.watch.only_look().snapshots)
    # torchrun's own words are kept in a file; they matter where we found no better ones.
    words = ""
    if unexplained:
        with contextlib.suppress(OSError):
            words = (run.directory.logs / "launcher.err").read_text("utf-8", "backslashreplace")
    raised = ["the kernel killed it, out of memory"] if oom_killed else _RAISED.findall(words)
    ending = ": ".join([f"the command itself ended with {status}", *raised[-1:]])
    notes = [clean(ending, 400)] if unexplained else []
    world_size = max((one.world_size for one in look.snapshots), default=0)
    world_size = world_size or run.outside.seen["world_size"]
    watched = sorted({*ranks, *ends})
    size = world_size or len({*run.reach.ranks.values()})
    unseen = sorted(set(range(size)) - set(watched))
    why = run.reach.why_nothing(watched)
    if outcome == "unwatched" or (outcome == "interrupted" and not watched and why):
        notes.append(why)
    elif watched and unseen and why:
        seen = verb(unseen, "was", "were")
        notes.append(f"{ranks_text(unseen)} {seen} not seen: {why}")
    report = document.minimal(outcome, code, run.directory.path)
    with run.faults.guard("the report"):
        report = document.build(
            command=list(run.options.shown_command or run.options.command),
            run_dir=run.directory.path,
            world_size=world_size,
            duration_s=time.monotonic() - run.started_s,
            outcome=outcome,
            exit_code=code,
            findings=timed,
            ranks=ranks,
            ends=ends,
            stacks=run.evidence.lines,
            notes=notes,
            unreadable=unreadable_ranks(look.snapshots),
        )
    with run.faults.guard("what became of the injected faults"):
        code = run.injection.settle(report, timed, ends)
    if (unseen or not watched) and run.watch.judged:
        report["watched"] = {"ranks": watched, "of": size, "why": why}
        if outcome != "ok":
            report["ranks"] = {**run.outside.seen["ranks"], **report["ranks"]}
    with run.faults.guard("the command of --on-finding-run"):
        run.announcements.command.tell(findings)
    rendered = _write(run, report)
    with run.faults.guard("the report to other nodes"):
        run.job.publish(report)
    _close_app(run)
    if unexplained and not any(one.severity == "error" for one in findings):
        with contextlib.suppress(OSError):
            sys.stderr.write(clean(words, max_length=20_000, newlines=True))
    _print(report, rendered)
    for failure in run.directory.failures:
        run.say(failure)
    if run.options.run_dir is None:
        with run.faults.guard("the runs of before"):
            if told := kept_small(run.directory.path.parent, run.options.keep_runs):
                run.say(told)
    if run.options.ci is not None:
        run.options.ci.finish(run.directory, report, run.say)
    return report


def _pass_on(run: Supervisor, report: Document) -> None:
    """Keep and print the report that the head of the job has made."""
    rendered = _write(run, report)
    _close_app(run)
    if not one_terminal():
        _print(report, rendered)
        head = run.job.member.host if run.job.member is not None else ""
        run.say(
            f"the run of all nodes is kept on {head}, in {report['run_dir']}; what is of this "
            f"node alone, in {run.directory.path}"
        )


def _print(report: Document, rendered: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        columns = min(shutil.get_terminal_size().columns, text.WIDTH)
        # The single line of a run in order needs nothing that parts it from what was printed.
        rule = "" if report["outcome"] == "ok" else f"{' distdebug ':=^{columns}}\n"
        sys.stderr.write(rule + rendered)
        sys.stderr.flush()


def _outcome(
    run: Supervisor, status: ExitStatus | None, look: Look, finding: Finding | None
) -> tuple[str, int]:
    if finding is not None:
        return finding.kind, finding.exit_code
    if run.interrupts.signal is not None:
        return "interrupted", 128 + run.interrupts.signal
    if not run.watch.judged:
        return "tool_error", EXIT_TOOL_FAILED
    if status is not None and status.shell_code == 0:
        # Ranks that the hook was in, and that have not loaded torch, had nothing to record.
        without_torch = run.reach.ranks and not run.reach.unwatched.keys() & run.reach.ranks
        unwatched = not look.snapshots and not without_torch
        if unwatched and not run.options.allow_unwatched:
            return "unwatched", EXIT_UNWATCHED
        warnings = [one for one in look.findings if one.severity == "warning"]
        if run.options.strict and warnings:
            return warnings[0].kind, warnings[0].exit_code or EXIT_FAILED
        return "ok", 0
    if status is not None and status.signal is not None:
        return "failed", 128 + status.signal
    return "failed", EXIT_FAILED


def _write(run: Supervisor, report: Document) -> str:
    """Writes the report into the run directory, in all its forms; returns it as it is to be
    printed."""
    directory = run.directory
    off_in_ranks = report["off"]
    report["off"] = [*off_in_ranks, *run.faults.off]
    whole = shown = f"distdebug: {report['outcome']}, exit code {report['exit_code']}\n"
    with run.faults.guard("the text of the report"):
        whole = text.render(report)
        colour = run.options.ci is None and colour_wanted(sys.stderr)
        shown = text.on_a_screen(report, colour, text.columns(sys.stderr))
    report["off"] = [*off_in_ranks, *run.faults.off]  # rendering may have failed, too
    directory.write_json(directory.report_json.name, report)
    directory.write_text(directory.report_text.name, whole)
    with run.faults.guard("the report for JUnit"):
        directory.write_text(directory.junit.name, junit.pieces(report))
    with run.faults.guard("the run of all nodes as it is seen here"):
        run.job.kept()
    directory.close()
    return shown


def _close_app(run: Supervisor) -> None:
    """Closes the app once the user has left it, or nobody waits; what the command has printed
    then follows."""
    interrupts = run.interrupts
    if interrupts.signal is None or interrupts.asked_to_stop:
        run.app.wait(until=lambda: interrupts.signal is not None and not interrupts.asked_to_stop)
    run.app.close()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(clean(run.app.printed_aside(), newlines=True))
