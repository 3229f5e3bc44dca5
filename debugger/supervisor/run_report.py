"""The result of a run: its outcome and exit code, and the report of it, written and printed."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..diagnosis.findings import Finding
from ..nodes.job import one_terminal
from ..record.exits import ExitStatus
from ..record.reading.records import newest_ranks, unreadable_ranks
from ..record.runs.recorded_runs import kept_small
from ..record.safe_text import clean
from ..record.wording import ranks_text, verb
from ..reports import document, junit, text
from ..reports.stored import Document
from .output.lines import colour_wanted
from .watch import Look

if TYPE_CHECKING:
    from .supervisor import Supervisor

EXIT_FAILED = 1
EXIT_UNWATCHED = 2
EXIT_TOOL_FAILED = 96


def give(
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
    memory = ": the kernel killed it, out of memory" if oom_killed else ""
    notes = [f"the command itself ended with {status}{memory}"] if unexplained else []
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
    rendered = _write(run, report)
    with run.faults.guard("the report to other nodes"):
        run.job.publish(report)
    _close_app(run)
    if unexplained:
        _show_launcher_output(run, findings)
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


def pass_on(run: Supervisor, report: Document) -> None:
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
    plain = f"distdebug: {report['outcome']}, exit code {report['exit_code']}\n"
    rendered = {False: plain}
    with run.faults.guard("the text of the report"):
        colour = run.options.ci is None and colour_wanted(sys.stderr)
        rendered = {one: text.render(report, one) for one in {False, colour}}
    report["off"] = [*off_in_ranks, *run.faults.off]  # rendering may have failed, too
    directory.write_json(directory.report_json.name, report)
    directory.write_text(directory.report_text.name, rendered[False])
    with run.faults.guard("the report for JUnit"):
        directory.write_text(directory.junit.name, junit.pieces(report))
    with run.faults.guard("the run of all nodes as it is seen here"):
        run.job.kept()
    directory.close()
    return rendered[max(rendered)]


def _close_app(run: Supervisor) -> None:
    """Closes the app once the user has left it, or nobody waits; what the command has printed
    then follows."""
    interrupts = run.interrupts
    if interrupts.signal is None or interrupts.asked_to_stop:
        run.app.wait(until=lambda: interrupts.signal is not None and not interrupts.asked_to_stop)
    run.app.close()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(clean(run.app.printed_aside(), newlines=True))


def _show_launcher_output(run: Supervisor, findings: Sequence[Finding]) -> None:
    """torchrun's own words are kept in a file; they matter where we found no better ones."""
    if any(one.severity == "error" for one in findings):
        return
    with contextlib.suppress(OSError):
        words = (run.directory.logs / "launcher.err").read_text(errors="backslashreplace")
        sys.stderr.write(clean(words, max_length=20_000, newlines=True))
