"""One supervised run, from the command to the exit code: what `run` and `exec` have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import hook
from ..diagnosis.findings import Finding
from ..diagnosis.rules.straggler import stragglers
from ..launch import job_key
from ..record.exits import ExitLog, ExitStatus
from ..record.log_file import MAX_MB
from ..record.records import Records, newest_ranks
from ..record.run_directory import BASE, RunDirectory
from ..record.sanitize import clean
from ..record.secret_words import masked
from ..record.snapshot import Rank
from ..record.wording import finding_line
from ..reports import document, junit, off, text
from ..supervisor.actions import Actions
from ..supervisor.control import ControlServer
from ..supervisor.ending import can_raise, end_tree, forward
from ..supervisor.evidence import Evidence, gather
from ..supervisor.host import HostSampler
from ..supervisor.interrupts import Interrupts
from ..supervisor.launch import Launch, find_command
from ..supervisor.oom import OomWatch
from ..supervisor.output import colour_wanted
from ..supervisor.output_process import OutputProcess
from ..supervisor.own_faults import OwnFaults
from ..supervisor.pauses import Pauses
from ..supervisor.processes import ProcessTable
from ..supervisor.reach import Reach
from ..supervisor.unrecorded import early_death
from ..supervisor.watch import Look, Policy, Watch
from . import run_facts
from .ci import defused
from .injection import Injection
from .run_options import Options
from .terminal_app import Beside

LEFT_GRACE_S = 0.4
INTERRUPT_STACKS_S = 0.6
END_GRACE_S = 2.0
RAISE_GRACE_S = 3.0
ORPHAN_GRACE_S = 1.0
OUTPUT_S = 60.0
INTERRUPT_OUTPUT_S = 0.5
"""How long to go on printing what the ranks have printed before they ended."""
EXIT_FAILED = 1
EXIT_UNWATCHED = 2
EXIT_TOOL_FAILED = 96
LOOK_FOR_UNREACHED_EVERY_S = 0.5


class Session:
    """Starts the command, watches it, ends it, reports."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._interrupts = Interrupts()
        self._told: dict[str, float] = {}
        self._recorded: set[tuple[object, ...]] = set()
        self._evidence = Evidence()
        self._ranks: Mapping[int, Rank] = {}
        self._app = Beside(options.tui)
        self._faults = OwnFaults()
        self._judged = True
        self._world_size = 1
        self._output: OutputProcess | None = None
        self._unreached_asked_s = 0.0

    def run(self) -> int:
        """Run to the end; returns the exit code of `distdebug`."""
        with defused(self._options.ci):
            return self._run()

    def _run(self) -> int:
        options = self._options
        exits = ExitLog(steady=True)
        here, base = _here()
        find_command(options.command, os.environ, here)
        with Launch(exits, self._app.aside) as launch, self._interrupts.heard(), self._app:
            directory = RunDirectory.create(base, options.run_dir)
            exits.follow(directory.exits)
            self._directory = self._faults.directory = directory
            self._reach = Reach(str(directory.path), str(hook.SITE))
            self._started_s = time.monotonic()
            self._write_run()
            self._injection = Injection(options.faults, directory, self._say, options.own_network)
            table = ProcessTable(exits, launch, OomWatch())
            policy = Policy(
                limits=options.limits,
                level=options.level,
                max_restarts=options.max_restarts,
                world_size=options.world_size,
            )
            faults = self._faults
            self._watch = Watch(
                Records(directory.ranks, faults.note, steady=True, trusted=True),
                table,
                policy,
                faults.note,
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
            actions = Actions(directory, lambda: self._ranks)
            control = ControlServer(directory.path, {**actions.table(), "stop": self._stop})
            host = HostSampler(directory)
            try:
                control.start()
                environment, network = self._environment(directory), self._injection.network
                launch.start(
                    options.command, environment, here, network=network, scratch=options.scratch
                )
                look, finding = self._follow(launch, host)
                look, finding = self._end(launch, look, finding)
                if finding is not None:
                    with faults.guard("what the GPUs say of a finding"):
                        finding = host.explained(finding)
            finally:
                for closing in (control, self._injection, host):
                    with faults.guard(f"the end of {type(closing).__name__}"):
                        closing.close()
                with faults.guard("the end of the output"):
                    self._finish_output()
            if finding is None:
                with faults.guard("rule stragglers"):
                    slow = [one for snapshot in look.snapshots for one in stragglers(snapshot)]
                    look = replace(look, findings=[*look.findings, *slow])
                    self._tell(look)
            return self._report(launch.poll(), look, finding)

    # -- watching ------------------------------------------------------------------------------

    def _follow(self, launch: Launch, host: HostSampler) -> tuple[Look, Finding | None]:
        """Until the command has ended, something was found, or somebody pressed Ctrl-C."""
        launcher_ended_s = 0.0
        look = Look((), (), (), None)
        guard = self._faults.guard
        while True:
            with guard("the breakpoints"):
                self._tell_pauses()
            look = self._look() or look
            impossible = self._injection.look()
            with guard("the sampling of the host"):
                host.sample({number: rank.pid for number, rank in self._ranks.items()})
            with guard("the look for processes out of reach"):
                self._look_for_unreached(launch)
            if self._output is not None:
                self._output.show(not self._app.open)
            if self._app.hung_up:
                self._interrupts.signal = self._interrupts.signal or signal.SIGHUP
            if self._interrupts.signal is not None or impossible:
                return look, None
            if look.verdict is not None and self._options.on_finding == "stop":
                return look, look.verdict
            if launch.poll() is not None:
                launcher_ended_s = launcher_ended_s or time.monotonic()
                if not launch.descendants() or time.monotonic() - launcher_ended_s > ORPHAN_GRACE_S:
                    return look, None
            time.sleep(self._watch.pause_s)

    def _output_is_lost(self, why: str) -> None:
        """In the thread that listens to the drain."""
        self._faults.say("the log of what the ranks print", why)
        self._say(f"what the ranks print is shown, but not kept in {self._directory.logs}: {why}")

    def _finish_output(self) -> None:
        # After Ctrl-C nobody wants to see the rest of a flood.
        if self._output is not None:
            self._output.finish(
                INTERRUPT_OUTPUT_S if self._interrupts.signal is not None else OUTPUT_S
            )

    def _look(self, finished: bool = False) -> Look | None:
        """One look at all ranks, told; None where it failed, which costs no more than this look."""
        look = None
        self._judged = False
        with self._faults.guard("the look at the ranks"):
            look = self._watch.look(finished)
            self._judged = True
            self._ranks = newest_ranks(look.snapshots)
            self._world_size = max([1, *(one.world_size for one in look.snapshots)])
        if look is not None:
            with self._faults.guard("the notices"):
                self._tell(look)
        return look

    def _look_for_unreached(self, launch: Launch) -> None:
        """As long as not all are seen: whom the hook cannot reach, and who is on the way."""
        now_s = time.monotonic()
        if (
            len(self._ranks) < self._world_size
            and now_s - self._unreached_asked_s >= LOOK_FOR_UNREACHED_EVERY_S
        ):
            self._unreached_asked_s = now_s
            self._reach.look(launch.descendants())

    def _tell_pauses(self) -> None:
        """Who has come to a breakpoint, and who has left one; meanwhile nobody is late."""
        notices, paused = self._pauses.look()
        for notice in notices:
            self._say(notice)
            self._directory.append_event("breakpoint", notice)
        if paused:
            self._watch.pause()

    def _tell(self, look: Look) -> None:
        """Notices at most every ten seconds each; findings once."""
        now_s = time.monotonic()
        for notice in look.notices:
            key = notice.split(" (", 1)[0]
            if now_s - self._told.get(key, -1e9) >= 10.0:
                self._told[key] = now_s
                self._say(notice)
                self._directory.append_event("notice", notice)
        for why in off.news(newest_ranks(look.snapshots), self._told):
            self._say(why)
            self._directory.append_event("off", why)
        for finding in look.findings:
            if finding.identity not in self._recorded and (
                finding.severity == "warning" or finding is look.verdict
            ):
                self._recorded.add(finding.identity)
                self._directory.append_event(
                    "finding",
                    finding.message,
                    finding=finding.kind,
                    severity=finding.severity,
                    culprits=list(finding.culprits),
                )
                if finding.severity == "error":
                    self._say(f"{finding.kind}: {finding.message}")

    @staticmethod
    def _say(sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"distdebug: {clean(sentence)}\n")
            sys.stderr.flush()

    # -- what the control socket may ask -------------------------------------------------------

    def _stop(self, _request: Mapping[str, Any]) -> str:
        self._interrupts.stop()
        return "the run is being stopped"

    # -- ending --------------------------------------------------------------------------------

    def _end(
        self, launch: Launch, look: Look, finding: Finding | None
    ) -> tuple[Look, Finding | None]:
        """Bring the run to its end; the look that counts, and the verdict."""
        ranks = newest_ranks(look.snapshots)
        quiet = self._options.launcher == "torchrun"
        if self._interrupts.signal is not None:
            with self._faults.guard("the stacks"):
                self._evidence = gather(self._directory, ranks, False, INTERRUPT_STACKS_S)
            self._forward(launch, self._interrupts.signal)
            return look, None
        if finding is None:
            return self._end_without_finding(launch, look, quiet)
        with self._faults.guard("the stacks"):
            self._evidence = gather(self._directory, ranks, self._options.native_stacks, 5.0)
            finding = self._evidence.refine(finding)
        with self._faults.guard("the exception in the ranks"):
            self._raise_in_ranks(launch, finding)
        end_tree(launch, END_GRACE_S, silence_launcher=quiet)
        return look, finding

    def _forward(self, launch: Launch, number: int) -> None:
        """The signal goes to the command, which gets the time to end that it would have without us:
        after SIGTERM a checkpoint is written that torchrun would have waited for."""
        interrupts = self._interrupts
        self._say(
            f"{interrupts.name} is handed on to the command, which may take "
            f"{interrupts.grace_s:.0f} s to end; Ctrl-C ends it at once"
        )
        forward(launch, number, interrupts.grace_s, hasten=lambda: interrupts.at_once)
        end_tree(launch, 0 if interrupts.at_once else LEFT_GRACE_S)

    def _end_without_finding(
        self, launch: Launch, look: Look, quiet: bool
    ) -> tuple[Look, Finding | None]:
        """The command has ended, or it is ended since a fault cannot be made. What it left behind
        is ended, but for a daemon that it started and that nobody would miss here."""
        status = launch.poll()
        left = launch.descendants()
        if left:
            look = self._look() or look
        if status is None or any(
            rank.process.alive for rank in newest_ranks(look.snapshots).values()
        ):
            # How the ranks end from here on is our doing; what was found before stands.
            end_tree(launch, END_GRACE_S, silence_launcher=quiet)
            return look, look.verdict if status is not None else None
        if left:
            pids = [rank.pid for rank in self._ranks.values()]
            spared = launch.daemons(pids) if status.shell_code == 0 else []
            launch.spare(spared)
            end_tree(launch, END_GRACE_S, silence_launcher=quiet, spared=spared)
        look = self._look(finished=True) or look
        found = look.verdict
        if found is None and status.shell_code:
            with self._faults.guard("rule early_death"):
                found = early_death(self._reach.ranks, self._ranks.keys(), launch.exits)
        return look, found

    def _raise_in_ranks(self, launch: Launch, finding: Finding) -> None:
        """Every rank that can still run Python raises the finding; wait until they have ended."""
        summary = {
            "kind": finding.kind,
            "cause": finding.cause,
            "text": finding_line(finding.kind, finding.message),
        }
        if not self._directory.write_json(self._directory.verdict.name, summary):
            return
        deadline = time.monotonic() + RAISE_GRACE_S
        while (
            launch.descendants() and time.monotonic() < deadline and self._interrupts.signal is None
        ):
            look = self._watch.look()
            if not any(can_raise(rank) for rank in newest_ranks(look.snapshots).values()):
                return
            time.sleep(0.05)

    # -- reporting -----------------------------------------------------------------------------

    def _report(self, status: ExitStatus | None, look: Look, finding: Finding | None) -> int:
        outcome, code = self._outcome(status, look, finding)
        unexplained = outcome == "failed" and not self._injection.look()
        findings = [finding] if finding is not None else []
        findings += [
            one for one in look.findings if finding is None or one.identity != finding.identity
        ]
        timed = [(one, self._watch.detected_after_s.get(one.identity)) for one in findings]
        ends = newest_ranks(look.snapshots)
        with self._faults.guard("how the ranks ended"):
            ends = newest_ranks(self._watch.look().snapshots)
        notes = [f"the command itself ended with {status}"] if unexplained else []
        if outcome == "unwatched":
            notes.append(self._reach.why_nothing())
        report = document.minimal(outcome, code, self._directory.path)
        with self._faults.guard("the report"):
            report = document.build(
                command=list(self._options.shown_command or self._options.command),
                run_dir=self._directory.path,
                world_size=max((one.world_size for one in look.snapshots), default=0),
                duration_s=time.monotonic() - self._started_s,
                outcome=outcome,
                exit_code=code,
                findings=timed,
                ranks=newest_ranks(look.snapshots),
                ends=ends,
                stacks=self._evidence.lines,
                notes=notes,
            )
        with self._faults.guard("what became of the injected faults"):
            code = self._injection.settle(report, timed, ends)
        off_in_ranks = report["off"]
        report["off"] = [*off_in_ranks, *self._faults.off]
        directory = self._directory
        rendered = {False: f"distdebug: {outcome}, exit code {code}\n"}
        with self._faults.guard("the text of the report"):
            colour = self._options.ci is None and colour_wanted(sys.stderr)
            rendered = {one: text.render(report, one) for one in {False, colour}}
        report["off"] = [*off_in_ranks, *self._faults.off]  # rendering may have failed, too
        directory.write_json(directory.report_json.name, report)
        directory.write_text(directory.report_text.name, rendered[False])
        with self._faults.guard("the report for JUnit"):
            directory.write_text(directory.junit.name, junit.render(report))
        directory.close()
        if self._interrupts.signal is None or self._interrupts.asked_to_stop:
            self._app.wait(
                until=lambda: (
                    self._interrupts.signal is not None and not self._interrupts.asked_to_stop
                )
            )
        self._app.close()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(clean(self._app.printed_aside(), newlines=True))
        if unexplained:
            self._show_launcher_output(findings)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(rendered[max(rendered)])
            sys.stderr.flush()
        for failure in directory.failures:
            self._say(failure)
        if self._options.ci is not None:
            self._options.ci.finish(directory, report, self._say)
        return code

    def _outcome(
        self, status: ExitStatus | None, look: Look, finding: Finding | None
    ) -> tuple[str, int]:
        if finding is not None:
            return finding.kind, finding.exit_code
        if self._interrupts.signal is not None:
            return "interrupted", 128 + self._interrupts.signal
        if not self._judged:
            return "tool_error", EXIT_TOOL_FAILED
        if status is not None and status.shell_code == 0:
            unwatched = not look.snapshots and not self._reach.ranks
            if unwatched and not self._options.allow_unwatched:
                return "unwatched", EXIT_UNWATCHED
            warnings = [one for one in look.findings if one.severity == "warning"]
            if self._options.strict and warnings:
                return warnings[0].kind, warnings[0].exit_code or EXIT_FAILED
            return "ok", 0
        if status is not None and status.signal is not None:
            return "failed", 128 + status.signal
        return "failed", EXIT_FAILED

    def _show_launcher_output(self, findings: Sequence[Finding]) -> None:
        """torchrun's own words are kept in a file; they matter where we found no better ones."""
        if any(one.severity == "error" for one in findings):
            return
        with contextlib.suppress(OSError):
            words = (self._directory.logs / "launcher.err").read_text(errors="backslashreplace")
            sys.stderr.write(clean(words, max_length=20_000, newlines=True))

    # -- surroundings --------------------------------------------------------------------------

    def _environment(self, directory: RunDirectory) -> dict[str, str]:
        outer = {**os.environ, **self._options.environment}
        aside = self._app.aside
        streams = (1, 2) if aside is None else (aside.fileno(), aside.fileno())
        environment = hook.environment(outer, directory.path, self._options.launcher, streams)
        drained = self._options.redirect and self._output is not None
        environment["DISTDEBUG_REDIRECT"] = "1" if drained else "0"
        environment.update(hook.drained(streams))
        environment["DISTDEBUG_LEVEL"] = self._options.level
        environment["DISTDEBUG_LEVEL_UNASKED"] = "" if self._options.level_asked else "1"
        environment.update(job_key.variables(environment, directory))
        environment.update(self._injection.environment)
        if self._options.ci is not None:
            environment.update(self._options.ci.environment(environment))
        environment[MAX_MB] = f"{self._options.log_max_mb:g}"
        environment["DISTDEBUG_BREAK"] = "\n".join(self._options.breaks)
        environment["DISTDEBUG_PDB"] = "1" if self._options.post_mortem else ""
        environment["DISTDEBUG_TUI"] = "1" if self._options.tui else ""
        environment["DISTDEBUG_DEBUGGER"] = self._options.debugger
        environment["DISTDEBUG_CHECK"] = ",".join(self._options.checks)
        environment["DISTDEBUG_CHECK_EVERY"] = str(self._options.check_every)
        if environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() not in ("", self._options.level):
            environment["TORCH_DISTRIBUTED_DEBUG"] = self._options.level  # which a flag overrides
        return environment

    def _write_run(self) -> None:
        options = self._options
        self._directory.write_json(
            self._directory.run_json.name,
            {
                "command": masked(options.shown_command or options.command),
                **run_facts.of_this_process(),
                "level": options.level,
                "checks": list(options.checks),
                "hang_timeout_s": options.limits.hang_timeout_s,
            },
        )


def _here() -> tuple[str, Path]:
    """The working directory, and where run directories are made. One that was removed is still a
    place to run in, but not one to keep anything in."""
    try:
        return os.getcwd(), BASE
    except OSError:
        return ".", Path(tempfile.gettempdir()) / f"distdebug-{os.geteuid()}"
