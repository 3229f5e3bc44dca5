"""The result of a run: its outcome and exit code, and the report of it, written and printed."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..diagnosis.findings import Finding
from ..record.exits import ExitStatus
from ..record.reading.records import newest_ranks, unreadable_ranks
from ..record.runs.recorded_runs import kept_small
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..record.wording import ranks_text, verb
from ..reports import document, junit, text
from ..reports.stored import Document
from .command.interrupts import Interrupts
from .command.reach import FromOutside, Reach
from .guarded_watch import GuardedWatch
from .injection import Injection
from .output.lines import colour_wanted
from .own_faults import OwnFaults
from .run_options import Options
from .stacks.evidence import Evidence
from .terminal_app import Beside
from .watch import Look

EXIT_FAILED = 1
EXIT_UNWATCHED = 2
EXIT_TOOL_FAILED = 96


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one run; `started_s` is of the monotonic clock. `publish` takes the report as
    soon as it stands in the run directory, if it was made here; `kept` is called then in any
    case."""

    options: Options
    directory: RunDirectory
    started_s: float
    watch: GuardedWatch
    injection: Injection
    interrupts: Interrupts
    faults: OwnFaults
    reach: Reach
    outside: FromOutside
    app: Beside
    say: Callable[[str], None]
    publish: Callable[[Document], None] = lambda _report: None
    kept: Callable[[], None] = lambda: None

    def give(
        self,
        status: ExitStatus | None,
        look: Look,
        finding: Finding | None,
        evidence: Evidence,
        oom_killed: bool = False,
    ) -> Document:
        """Write the report into the run directory, print it, and return it. `status`:
        how the command ended; `look`: the one that counts. `oom_killed`: the kernel has killed the
        command for want of memory."""
        outcome, code = self._outcome(status, look, finding)
        unexplained = outcome == "failed" and not self.injection.look()
        findings = [finding] if finding is not None else []
        findings += [
            one for one in look.findings if finding is None or one.identity != finding.identity
        ]
        timed = [(one, self.watch.detected_after_s.get(one.identity)) for one in findings]
        ranks = newest_ranks(look.snapshots)
        if outcome == "interrupted":
            ranks = evidence.stood(ranks)
        ends = ranks
        with self.faults.guard("how the ranks ended"):
            ends = newest_ranks(self.watch.only_look().snapshots)
        memory = ": the kernel killed it, out of memory" if oom_killed else ""
        notes = [f"the command itself ended with {status}{memory}"] if unexplained else []
        world_size = max((one.world_size for one in look.snapshots), default=0)
        world_size = world_size or self.outside.seen["world_size"]
        watched = sorted({*ranks, *ends})
        size = world_size or len({*self.reach.ranks.values()})
        unseen = sorted(set(range(size)) - set(watched))
        why = self.reach.why_nothing(watched)
        if outcome == "unwatched" or (outcome == "interrupted" and not watched and why):
            notes.append(why)
        elif watched and unseen and why:
            seen = verb(unseen, "was", "were")
            notes.append(f"{ranks_text(unseen)} {seen} not seen: {why}")
        report = document.minimal(outcome, code, self.directory.path)
        with self.faults.guard("the report"):
            report = document.build(
                command=list(self.options.shown_command or self.options.command),
                run_dir=self.directory.path,
                world_size=world_size,
                duration_s=time.monotonic() - self.started_s,
                outcome=outcome,
                exit_code=code,
                findings=timed,
                ranks=ranks,
                ends=ends,
                stacks=evidence.lines,
                notes=notes,
                unreadable=unreadable_ranks(look.snapshots),
            )
        with self.faults.guard("what became of the injected faults"):
            code = self.injection.settle(report, timed, ends)
        if (unseen or not watched) and self.watch.judged:
            report["watched"] = {"ranks": watched, "of": size, "why": why}
            if outcome != "ok":
                report["ranks"] = {**self.outside.seen["ranks"], **report["ranks"]}
        rendered = self._write(report)
        with self.faults.guard("the report to other nodes"):
            self.publish(report)
        self._close_app()
        if unexplained:
            self._show_launcher_output(findings)
        self._print(report, rendered)
        for failure in self.directory.failures:
            self.say(failure)
        if self.options.run_dir is None:
            with self.faults.guard("the runs of before"):
                if told := kept_small(self.directory.path.parent, self.options.keep_runs):
                    self.say(told)
        if self.options.ci is not None:
            self.options.ci.finish(self.directory, report, self.say)
        return report

    def pass_on(self, report: Document, printed: bool, host: str) -> None:
        """Keep and print the report that the head of the job has made, which is on that host.
        `printed`: the head has done that where this would be printed."""
        rendered = self._write(report)
        self._close_app()
        if not printed:
            self._print(report, rendered)
            self.say(
                f"the run of all nodes is kept on {host}, in {report['run_dir']}; what is of this "
                f"node alone, in {self.directory.path}"
            )

    @staticmethod
    def _print(report: Document, rendered: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            columns = min(shutil.get_terminal_size().columns, text.WIDTH)
            # The single line of a run in order needs nothing that parts it from what was printed.
            rule = "" if report["outcome"] == "ok" else f"{' distdebug ':=^{columns}}\n"
            sys.stderr.write(rule + rendered)
            sys.stderr.flush()

    def _outcome(
        self, status: ExitStatus | None, look: Look, finding: Finding | None
    ) -> tuple[str, int]:
        if finding is not None:
            return finding.kind, finding.exit_code
        if self.interrupts.signal is not None:
            return "interrupted", 128 + self.interrupts.signal
        if not self.watch.judged:
            return "tool_error", EXIT_TOOL_FAILED
        if status is not None and status.shell_code == 0:
            # Ranks that the hook was in, and that have not loaded torch, had nothing to record.
            without_torch = self.reach.ranks and not self.reach.unwatched.keys() & self.reach.ranks
            unwatched = not look.snapshots and not without_torch
            if unwatched and not self.options.allow_unwatched:
                return "unwatched", EXIT_UNWATCHED
            warnings = [one for one in look.findings if one.severity == "warning"]
            if self.options.strict and warnings:
                return warnings[0].kind, warnings[0].exit_code or EXIT_FAILED
            return "ok", 0
        if status is not None and status.signal is not None:
            return "failed", 128 + status.signal
        return "failed", EXIT_FAILED

    def _write(self, report: Document) -> str:
        """Writes the report into the run directory, in all its forms; returns it as it is to be
        printed."""
        directory = self.directory
        off_in_ranks = report["off"]
        report["off"] = [*off_in_ranks, *self.faults.off]
        plain = f"distdebug: {report['outcome']}, exit code {report['exit_code']}\n"
        rendered = {False: plain}
        with self.faults.guard("the text of the report"):
            colour = self.options.ci is None and colour_wanted(sys.stderr)
            rendered = {one: text.render(report, one) for one in {False, colour}}
        report["off"] = [*off_in_ranks, *self.faults.off]  # rendering may have failed, too
        directory.write_json(directory.report_json.name, report)
        directory.write_text(directory.report_text.name, rendered[False])
        with self.faults.guard("the report for JUnit"):
            directory.write_text(directory.junit.name, junit.pieces(report))
        with self.faults.guard("the run of all nodes as it is seen here"):
            self.kept()
        directory.close()
        return rendered[max(rendered)]

    def _close_app(self) -> None:
        """Closes the app once the user has left it, or nobody waits; what the command has printed
        then follows."""
        interrupts = self.interrupts
        if interrupts.signal is None or interrupts.asked_to_stop:
            self.app.wait(
                until=lambda: interrupts.signal is not None and not interrupts.asked_to_stop
            )
        self.app.close()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(clean(self.app.printed_aside(), newlines=True))

    def _show_launcher_output(self, findings: Sequence[Finding]) -> None:
        """torchrun's own words are kept in a file; they matter where we found no better ones."""
        if any(one.severity == "error" for one in findings):
            return
        with contextlib.suppress(OSError):
            words = (self.directory.logs / "launcher.err").read_text(errors="backslashreplace")
            sys.stderr.write(clean(words, max_length=20_000, newlines=True))
