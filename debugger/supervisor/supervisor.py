"""A supervised run, from the command to the exit code: started, watched, ended, reported.

The supervisor decides when. How is elsewhere, each part in a place of its own, so that a run may
have its ranks on several hosts: `run_reader` (where ranks are read), `guarded_watch` (what is said
while it goes on), `run_end` (where they are looked into and ended) and `run_report`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import hook
from ..diagnosis.findings import Finding
from ..diagnosis.judging import slow_ranks
from ..nodes.job import Job, one_terminal
from ..nodes.late_meeting import LateMeeting
from ..nodes.missing import Incomplete
from ..record.collection import no_collection
from ..record.exits import ExitLog
from ..record.reading.records import Records
from ..record.requests.control import ControlServer
from ..record.requests.lifeline import Lifeline
from ..record.runs.run_directory import BASE, RunDirectory
from ..system.memory import OomWatch
from . import garbage
from .ci import defused
from .command.interrupts import Interrupts
from .command.launch import Launch, find_command
from .command.reach import FromOutside, Reach
from .guarded_watch import Announcements, GuardedWatch, Pauses
from .injection import Injection
from .job_actions import JobActions
from .limits import INTERRUPTED_S, ORPHAN_GRACE_S, OUTPUT_S, PROCESSES_EVERY_S
from .machine.host import HostSampler
from .machine.processes import ProcessTable
from .machine.task_limit import TaskLimit
from .metrics_file import MetricsFile
from .output.process import OutputProcess
from .own_faults import OwnFaults
from .run_end import RunEnd
from .run_options import Options, about, environment, here, key_variables
from .run_reader import LocalReader
from .run_report import RunReport
from .several_nodes import JobRanks, JobReader, Orders
from .stacks.standstill_watch import StandstillWatch
from .terminal_app import Beside
from .watch import Look, Policy, without_deaths_by


class Supervisor:
    """Starts the command, watches it, ends it, reports."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._interrupts = Interrupts()
        self._app = Beside(options.tui)
        self._faults = OwnFaults()
        self._output: OutputProcess | None = None
        self._unreached_asked_s = 0.0
        self._suspected: Finding | None = None

    @property
    def directory(self) -> RunDirectory:
        """The run directory; not before `run` has made it."""
        return self._directory

    def run(self) -> int:
        """Run to the end; returns the exit code of `distdebug`."""
        with defused(self._options.ci), no_collection():
            return self._run()

    def _run(self) -> int:
        options = self._options
        exits = ExitLog(steady=True)
        cwd, base = here()
        find_command(options.command, os.environ, cwd)
        with (
            Lifeline() as lifeline,  # let go of when the others have ended all that there is
            Launch(exits, self._app.aside) as launch,
            self._interrupts.heard(),
            self._app,
        ):
            self._directory = RunDirectory.create(base, options.run_dir)
            self._faults.directory = self._directory
            with self._faults.guard("the lifeline of the ranks"):
                lifeline.begin(self._directory.path)
            exits.follow(self._directory.exits)
            started_s = time.monotonic()
            end = self._prepared(launch, exits, base)
            look, finding = self._until_it_ends(launch, end, cwd)
            if finding is None and not self._job.judged_elsewhere:
                with self._faults.guard("rule stragglers"):
                    slow = slow_ranks(look.snapshots)
                    look = replace(look, findings=[*look.findings, *slow])
                    self._announcements.announce(look)
            return self._reported(launch, end, started_s, look, finding)

    def _prepared(self, launch: Launch, exits: ExitLog, base: Path) -> RunEnd:
        """All parts of the run are made; how it will be ended."""
        options, faults, directory = self._options, self._faults, self._directory
        directory.write_json(directory.run_json.name, about(options))
        self._reach = Reach(str(directory.path), str(hook.SITE))
        self._announcements = Announcements(directory)
        self._say = self._announcements.say
        self._outside = FromOutside(options.inspect, self._reach, options.limits, self._say)
        self._metrics = MetricsFile(options.prom, directory.path.name, self._say)
        self._injection = Injection(options.faults, directory, self._say, options.own_network)
        self._oom = OomWatch()
        self._task_limit = TaskLimit()
        table = ProcessTable(exits, launch, self._oom)
        self._job = Job(options.several, directory, table.observe, self._say)
        within_s = options.limits.hang_timeout_s
        self._late = LateMeeting(self._job, directory.path, self._say, within_s)
        self._watch = self._watching(table)
        self._standstill = StandstillWatch(options.limits, launch.descendants, table, faults.note)
        ranks = JobRanks(launch, self._job, directory)
        incomplete = Incomplete(
            self._job, lambda: len(launch.descendants()) > 1, options.limits, self._say
        )
        by_torchrun = options.launcher == "torchrun"
        self._orders = Orders(
            self._job,
            ranks,
            self._interrupts,
            self._say,
            self._late,
            incomplete if by_torchrun else None,
        )
        latest = base == BASE and RunDirectory.latest() == directory.path
        self._pauses = Pauses(directory.path, "" if latest else str(directory.path))
        with faults.guard("the output of the ranks"):
            self._output = OutputProcess(
                directory.path,
                options.log_max_mb,
                colour=not options.ci,
                defuse=options.ci is not None,
                on_lost=self._output_is_lost,
            )
        if options.tui:
            self._app.start(directory.path)
        else:
            self._say(f"watched and recorded; in another terminal: distdebug tui {directory.path}")
        return RunEnd(
            options,
            launch,
            ranks,
            self._watch,
            self._interrupts,
            faults,
            self._reach,
            self._say,
            self._oom,
        )

    def _until_it_ends(self, launch: Launch, end: RunEnd, cwd: str) -> tuple[Look, Finding | None]:
        """The command is run; the last look, and the finding that ended it, if one did."""
        with self._beside() as host:
            self._job.begin(lambda: self._interrupts.signal is not None)
            launch.start(
                self._options.command,
                self._environment(),
                cwd,
                network=self._injection.network,
                scratch=self._options.scratch,
            )
            look, finding = self._follow(launch, host)
            with self._faults.guard("the limit of processes"):
                finding = self._task_limit.explained(finding, launch)
            look, finding = end.end(look, finding)
            with self._faults.guard("the limit of processes"):  # also of what is found at the end
                finding = self._task_limit.explained(finding, launch)
            if finding is None and self._interrupts.signal is None:
                with self._faults.guard("the breakpoints"):
                    self._tell_pauses()  # who has left one since the last look, and ended
            self._unwatched.tell()
            if finding is not None:
                with self._faults.guard("what the GPUs say of a finding"):
                    finding = host.explained(finding)
        return look, finding

    def _reported(
        self, launch: Launch, end: RunEnd, started_s: float, look: Look, finding: Finding | None
    ) -> int:
        """The report is out: that of the job's head, or one of our own; its exit code."""
        report = RunReport(
            self._options,
            self._directory,
            started_s,
            self._watch,
            self._injection,
            self._interrupts,
            self._faults,
            self._reach,
            self._outside,
            self._app,
            self._say,
            self._job.publish,
            self._job.kept,
        )
        with contextlib.closing(self._job):
            document = None
            with self._faults.guard("the report of the head"):
                document = self._orders.document(launch.poll())
            if document is None:
                status = self._orders.status(launch.poll())
                killed = status is not None and status.signal == signal.SIGKILL
                memory = killed and self._oom.killed(launch.pid)
                document = report.give(status, look, finding, end.evidence, memory)
            else:
                head = self._job.member.host if self._job.member is not None else ""
                report.pass_on(document, one_terminal(), head)
            with self._faults.guard("the metrics"):
                self._metrics.end(look, document)
            return int(document["exit_code"])

    def _watching(self, table: ProcessTable) -> GuardedWatch:
        options, note = self._options, self._faults.note
        records = Records(
            self._directory.ranks, note, steady=True, trusted=True, far=self._job.copy_of
        )
        policy = Policy(
            limits=options.limits, level=options.level, max_restarts=options.max_restarts
        )
        reader = JobReader(LocalReader(records, table, options.world_size), self._job, self._late)
        self._unwatched = reader.unwatched
        job = self._job
        return GuardedWatch(
            reader, policy, self._faults, self._announcements, lambda: job.judged_elsewhere
        )

    @contextlib.contextmanager
    def _beside(self) -> Iterator[HostSampler]:
        """Runs what goes on beside the command, from before its start to behind its end."""
        directory, guard = self._directory, self._faults.guard
        actions = JobActions(self._job, directory, lambda: self._watch.ranks)
        control = ControlServer(
            directory.path, {**actions.table(), **self._job.actions(), "stop": self._stop}
        )
        host = HostSampler(directory)
        try:
            control.start()
            yield host
        finally:
            for closing in (control, self._injection, self._late, host):
                with guard(f"the end of {type(closing).__name__}"):
                    closing.close()
            with guard("the end of the output"):
                # After Ctrl-C nobody wants to see the rest of a flood.
                if self._output is not None:
                    interrupted = self._interrupts.signal is not None
                    self._output.finish(INTERRUPTED_S if interrupted else OUTPUT_S)

    def _environment(self) -> dict[str, str]:
        aside = self._app.aside
        found = environment(
            self._options,
            self._directory.path,
            None if aside is None else aside.fileno(),
            self._output is not None,
            {**self._injection.environment, **self._job.environment},
        )
        return {**found, **key_variables(found, self._directory)}

    # -- watching ------------------------------------------------------------------------------

    def _follow(self, launch: Launch, host: HostSampler) -> tuple[Look, Finding | None]:
        """Follows the run until the command has ended, something was found, or somebody pressed
        Ctrl-C."""
        launcher_ended_s = 0.0
        look = Look((), (), (), None)
        guard = self._faults.guard
        while True:
            with guard("the breakpoints"):
                self._tell_pauses()
            look = self._watch.observe() or look
            impossible = self._injection.look()
            with guard("the sampling of the host"):
                host.sample(self._watch.pids_here)
            with guard("the metrics"):
                self._metrics.look(look)
            with guard("the look for a standstill"):
                self._standstill.look(self._watch.ranks)
            with guard("the look for processes out of reach"):
                look = self._look_for_unreached(launch, look)
            if self._output is not None:
                self._output.show(not self._app.open)
            for number in self._interrupts.for_command():
                self._say(f"{signal.Signals(number).name} is handed on to the command")
                launch.signal(number, [launch.pid])
            if self._app.hung_up:
                self._interrupts.signal = self._interrupts.signal or signal.SIGHUP
            with guard("the other nodes"):
                self._orders.look(self._watch.ranks)
            if self._interrupts.signal is not None:
                # Another node may have got it first, whose ranks have died of it by now.
                return without_deaths_by(look, self._interrupts.signal), None
            if impossible and not self._job.judged_elsewhere:
                return look, None
            if look.verdict is not None and self._options.on_finding == "stop":
                return look, look.verdict
            if self._orders.over:
                if self._orders.finding is not None:
                    self._watch.found(self._orders.finding)
                return look, self._orders.finding
            if launch.poll() is not None:
                launcher_ended_s = launcher_ended_s or time.monotonic()
                waited_s = time.monotonic() - launcher_ended_s
                ended = not launch.descendants() or waited_s > ORPHAN_GRACE_S
                if self._orders.may_end(launch.poll(), ended, self._watch.ranks):
                    return look, None
            garbage.collect_where_due()
            with guard("the other nodes"):
                self._job.pause(self._watch.pause_s)

    def _output_is_lost(self, why: str) -> None:
        """Reports that the log of the output is lost, in the thread that listens to the drain."""
        self._faults.say("the log of what the ranks print", why)
        self._say(f"what the ranks print is shown, but not kept in {self._directory.logs}: {why}")

    def _look_for_unreached(self, launch: Launch, look: Look) -> Look:
        """Looks for ranks that the hook cannot reach, and for those on the way, as long as not all
        are seen. Returns the look with what is suspected of those, if they are all that there
        is."""
        now_s = time.monotonic()
        if len(self._watch.ranks) >= self._watch.world_size:
            self._suspected = None
        elif now_s - self._unreached_asked_s >= PROCESSES_EVERY_S:
            self._unreached_asked_s = now_s
            pids = launch.descendants()
            self._reach.look(pids)
            self._suspected = self._outside.look(pids, self._watch.pids_here.values())
        finding = self._suspected
        if finding is not None and not self._job.judged_elsewhere:
            look = replace(look, findings=[finding], notices=(), verdict=finding)
            self._announcements.announce(look)
        return look

    def _tell_pauses(self) -> None:
        """Tells which ranks have come to a breakpoint, and which have left one; meanwhile none is
        late."""
        # Of ranks of other nodes the head gives notice, and their own node.
        far = self._job.far_stops if self._job.member is not None else ()
        notices, paused = self._pauses.look(far)
        for notice in notices:
            self._announcements.keep("breakpoint", notice)
        if paused:
            self._watch.pause()

    def _stop(self, _request: Mapping[str, Any]) -> str:
        self._interrupts.stop()
        return "the run is being stopped"
