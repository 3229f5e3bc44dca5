"""Renders a report document for people: what, where, what the others did, where the evidence is."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from ..diagnosis.story import STEPS
from ..record.kinds import KINDS, kind_of
from ..record.snapshot import is_own
from ..record.wording import ranks_text, shortened, spans
from . import ddp_times, injections, off, planned, table
from .table import Table, TableRow

WIDTH = 120
SCREEN = 28
"""The lines of a terminal, about: a longer report is told shortly at the end of a run."""
MOST_HOSTS = 16
"""The most hosts that are shown; of more, those that something is wrong on."""
_MOST_FURTHER = 8
_MOST_STACK = 12
_GAP = "   "
BOLD, DIM = 1, 2
RED, GREEN, YELLOW = 31, 32, 33


def render(document: Mapping[str, Any], colour: bool = False, width: int = WIDTH) -> str:
    """The report as text that ends with a newline. Nothing is cut off at `width` columns (0: no
    limit): rows of a table that would be longer are written on several lines."""
    return "\n".join(_Text(document, colour, width).lines()) + "\n"


def columns(stream: TextIO) -> int:
    """Returns how wide the terminal of the stream is; `WIDTH` of a file or a pipe."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if stream.isatty() else WIDTH


def on_a_screen(document: Mapping[str, Any], colour: bool = False, width: int = WIDTH) -> str:
    """The same; where that is longer than a screen, all but the verdict has one line each, without
    its middle, and the command that prints it in full follows."""
    whole = render(document, colour, width)
    if whole.count("\n") <= SCREEN:
        return whole
    return "\n".join(_Text(document, colour, width, brief=True).lines()) + "\n"


def verdict_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The finding that the outcome is named after: the first error, or what --strict made one; of
    an interrupted run who was suspected."""
    errors = [one for one in document["findings"] if one["severity"] == "error"]
    if document["outcome"] == "interrupted" and not errors:
        errors = [one for one in document["findings"][:1] if not one["proven"]]
    named = [one for one in errors or document["findings"] if one["kind"] == document["outcome"]]
    return next(iter(named or errors), None)


class _Text:
    def __init__(
        self, document: Mapping[str, Any], colour: bool, width: int, brief: bool = False
    ) -> None:
        self.document = document
        self.brief = brief
        self.colour = colour
        self.width = width if width > 0 else 1 << 30
        self.watched: Any = document.get("watched")
        self.explained: set[str] = set()

    def lines(self) -> Iterator[str]:
        verdict = verdict_of(self.document)
        outcome = self.document["outcome"]
        unmade = injections.unmade(self.document)
        if injections.failed_by_faults(self.document):
            yield from self._headed("NOT INJECTED", unmade.pop(0), RED)
            verdict = None
        elif outcome == "ok":
            yield self._ok()
        elif verdict is not None:
            yield from self._block(verdict)
        else:
            yield from self._without_verdict()
        others = [one for one in self.document["findings"] if one is not verdict]
        errors = [one for one in others if one["severity"] == "error"]
        warnings = [one for one in others if one["severity"] != "error"]
        rows = [("also: ", one) for one in errors[:_MOST_FURTHER]]
        rows += [("warning: ", one) for one in warnings[:_MOST_FURTHER]]
        for which, finding in rows:
            why = f"   (injected: {finding['injected']})" if finding.get("injected") else ""
            yield from self._wrapped(which, f"{finding['title']}  {finding['message']}{why}")
            if not self.brief:
                yield from self._explain(finding["kind"], "    ")
        left_out = len(errors[_MOST_FURTHER:]) + len(warnings[_MOST_FURTHER:])
        if left_out:
            yield f"  ... and {left_out} more in report.json"
        if verdict is not None and outcome in ("failed", "interrupted"):
            shown = self.document["ranks"].keys() <= verdict["ranks"].keys()
            yield f"  {outcome} {self._after()}" + ("" if shown else "; where each rank was:")
            yield from () if shown else self._everybody()
        for sentence in unmade:
            yield from self._wrapped("not injected: ", sentence)
        for sentence in off.sentences(self.document):
            yield from self._wrapped("off: ", sentence)
        for word, sentence in planned.notices(self.document):
            yield from self._wrapped(word, sentence)
        yield from self._hosts()
        if self.watched and self.watched["of"] and outcome not in ("ok", "unwatched"):
            yield f"  {self._how_many()}"
        for note in self.document.get("notes", ()):
            yield from self._wrapped("note: ", note)
        if self.brief:
            yield f"  in full: distdebug report {shlex.quote(self._run_dir())}"
        else:
            yield from ddp_times.lines(self.document.get("ddp", ()))
        if outcome != "ok":
            place = self._run_dir()
            if self.document.get("stacks_file"):
                stacks = f"{place}{self.document['stacks_file']}"
                if self.document.get("packed"):
                    stacks = f"distdebug stacks {shlex.quote(place)}"
                yield f"  stacks of all ranks: {stacks}"
            after = ""
            if self.document["outcome"] != "running":
                after = f"{_GAP}exit code {self.document['exit_code']}"
            if last := f"evidence: {place}{after}" if place else after.strip():
                yield f"  {last}"
        for line in planned.last_lines(self.document):
            yield from self._wrap(line, "", "  ")

    # -- the first lines -----------------------------------------------------------------------

    def _ok(self) -> str:
        ranks = self.document["ranks"].values()
        calls = sorted(one["calls"] for one in ranks)
        parts = ["no rank was seen"]
        if calls:
            count = str(calls[0]) if calls[0] == calls[-1] else f"{calls[0]} to {calls[-1]}"
            number = "1 rank" if len(calls) == 1 else f"{len(calls)} ranks"
            parts = [number, f"{count} call{'' if count == '1' else 's'} each"]
            if not calls[-1]:
                made = any(one.get("groups", 1) for one in ranks)
                parts[1] = "which called nothing" if made else "which made no process group"
            if self.watched:
                parts[0] = self._how_many()
        parts.append(f"{self.document['duration_s']:.1f} s")
        title = self.paint("OK", BOLD, GREEN)
        return f"{title}  {', '.join(parts)}{_GAP}evidence: {self._run_dir()}"

    def _without_verdict(self) -> Iterator[str]:
        outcome = str(self.document["outcome"])
        code = self.document["exit_code"]
        colour = {"interrupted": YELLOW, "running": GREEN, "unwatched": YELLOW}.get(outcome, RED)
        seen = self.document["ranks"] or self.document["world_size"]
        where = "; where each rank was:" if seen else ", before any rank was seen"
        why = "no cause of it was found among the ranks"
        if self.watched and not self.watched["ranks"]:
            why = f"no rank was watched: {self.watched['why']}"
        sentence = {
            "failed": planned.failed(self.document)
            or f"the program ended with exit code {code} {self._after()}, and {why}",
            "unwatched": f"the program ended with exit code 0 {self._after()}, but no rank was "
            "seen, so nothing was observed (--allow-unwatched lets such a run pass)",
            "running": "nothing is wrong so far; where each rank is:",
            "tool_error": "distdebug itself failed; the program is not to blame",
        }.get(outcome, self._after() + where)
        yield from self._headed(outcome.upper().replace("_", " "), sentence, colour)
        yield from self._everybody()

    def _after(self) -> str:
        return f"after {self.document['duration_s']:.1f} s"

    def _how_many(self) -> str:
        return f"watched {len(self.watched['ranks'])} of {self.watched['of']} ranks"

    def _hosts(self) -> Iterator[str]:
        """Yields which ranks are on which host, if there are several, and something is wrong. A
        plan has no hosts: it gives each of its nodes a name."""
        hosts = self.document.get("hosts")
        if not isinstance(hosts, Mapping) or len(hosts) < 2 or planned.is_plan(self.document):
            return
        if self.document["outcome"] != "ok":
            rows = list(hosts.items())
            if len(rows) > MOST_HOSTS:
                about = {one for row in self.document["findings"] for one in row["culprits"]}
                rows = [row for row in rows if not about.isdisjoint(row[1])][:MOST_HOSTS]
            shown = [f"{ranks_text(ranks)} on {host}" for host, ranks in rows]
            if len(rows) < len(hosts):
                shown.append(f"{len(hosts)} hosts in all")
            yield from self._wrapped("", "; ".join(shown))

    def _headed(self, title: str, sentence: str, colour: int) -> Iterator[str]:
        first, *rest = self._wrap(f"{title}  {sentence}", "", "    ")
        yield self.paint(title, BOLD, colour) + first[len(title) :]
        yield from rest

    # -- one finding ---------------------------------------------------------------------------

    def _block(self, finding: Mapping[str, Any]) -> Iterator[str]:
        yield from self._headed(finding["title"], finding["headline"], RED)
        whole = table.of_whole_finding(finding, self.document["ranks"])
        shown, details = whole.table, whole.details
        yield from self._table(shown)
        if finding.get("injected"):
            yield from self._wrap(f"injected: {finding['injected']}", "  ", "    ")
        if whole.rounds:
            first = shown.rows[0].ranks[0]
            yield f"  ... and {whole.rounds} more in the cycle, back to rank {first}"
        if whole.undecided:
            yield "  no majority: any of them may be the one that is wrong"
        # Sentences come first, then the unified diff, whose lines must keep their first column.
        difference = finding.get("difference")
        start = next(
            (at for at, line in enumerate(details) if line.startswith("--- ")), len(details)
        )
        for line in [*details[:start], *([difference] if difference else [])]:
            yield from self._wrap(line, "  ", "    ")
        for line in details[start:]:
            colour = {"-": RED, "+": GREEN}.get(line[:1])
            yield "    " + (self.paint(line, colour) if colour else line)
        yield from self._stack(finding)
        yield from self._explain(finding["kind"])

    def _explain(self, kind: str, indent: str = "  ") -> Iterator[str]:
        """Yields the command that prints the page of the kind, below its first finding."""
        if kind in KINDS and kind not in self.explained:  # else it is of another version
            self.explained.add(kind)
            yield indent + self.paint(f"distdebug explain {kind}", DIM)

    def _stack(self, finding: Mapping[str, Any]) -> Iterator[str]:
        """Yields the stack of the first culprit alone; the others are in the file with all
        stacks."""
        if not kind_of(finding["kind"]).stack_tells:
            return
        for rank in finding["culprits"][:1]:
            raised = finding["data"].get("stack")  # of an exception: outermost call first
            stack = finding["ranks"].get(str(rank), {}).get("stack", ())
            if isinstance(raised, list) and raised:
                ours = finding["kind"] == "tool_error"
                stack = [line for line in raised[::-1] if ours or not is_own(str(line))]
            if not stack:
                return
            yield f"  {'traceback' if raised else 'stack'} of rank {rank}, innermost call first:"
            for line in stack[:_MOST_STACK]:
                yield f"    {line}"
            if len(stack) > _MOST_STACK:
                yield f"    ... and {len(stack) - _MOST_STACK} outer calls"

    # -- the last lines ------------------------------------------------------------------------

    def _everybody(self) -> Iterator[str]:
        shown = table.of_ranks(self.document["ranks"], self.document["world_size"])
        yield from self._table(shown)

    def _run_dir(self) -> str:
        path = str(self.document["run_dir"])
        try:
            shorter = os.path.relpath(path) if os.path.isabs(path) else path
        except OSError:  # the working directory was removed
            shorter = path
        shorter = path if shorter.startswith("..") else shorter
        return shorter if not shorter or self.document.get("packed") else os.path.join(shorter, "")

    # -- lines ---------------------------------------------------------------------------------

    def paint(self, text: str, *attributes: int) -> str:
        """Returns the text with these ANSI attributes, or as it is where colour is off: colour
        marks what to read first, and means nothing that the words do not say."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(map(str, attributes))}m{text}\x1b[0m"

    def _wrapped(self, word: str, text: str) -> Iterator[str]:
        if self.brief:
            text = shortened(text, self.width - len(word) - 2)
        first, *rest = self._wrap(word + text, "  ", "    ")
        yield "  " + self.paint(word, DIM if word == "note: " else YELLOW) + first[2 + len(word) :]
        yield from rest

    def _wrap(self, text: str, first: str, others: str) -> list[str]:
        """Lines of at most the width; a word that is longer stands on a line of its own."""
        if len(first) + len(text) <= self.width:
            return [first + text]
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )

    def _table(self, shown: Table) -> Iterator[str]:
        rows = shown.rows
        if not rows:
            return
        names = table.who(rows, [spans(row.ranks) for row in rows])
        whats = [table.plural(row.what, len(row.ranks)) for row in rows]
        pairs = list(zip(rows, whats, strict=True))
        first = max(map(len, names))
        second = max((len(what) for row, what in pairs if row.where or row.mark), default=0)
        third = max((len(row.where) for row in rows if row.mark), default=0)
        wheres = [f"{row.where:<{third}}" for row in rows]
        lines = [
            _GAP.join(filter(None, (f"  {name:<{first}}", f"{what:<{second}}", where, row.mark)))
            for name, (row, what), where in zip(names, pairs, wheres, strict=True)
        ]
        lines = [line.rstrip() for line in lines]
        too_wide = max(map(len, lines)) > self.width
        for name, (row, what), line in zip(names, pairs, lines, strict=True):
            for part in self._stacked(f"{name:<{first}}", what, row) if too_wide else [line]:
                yield self.paint(part, BOLD) if row.culprit else part
        if shown.left_out:
            yield f"  ... and {shown.left_out} more rank{'s' if shown.left_out > 1 else ''}"

    def _stacked(self, name: str, what: str, row: TableRow) -> list[str]:
        """Returns a row on several lines, for a terminal that is too narrow for the table."""
        start = f"  {name}{_GAP}"
        lines: list[str] = []
        if len(start) > self.width // 2:
            lines, start = [start.rstrip()], "      "
        indent = " " * len(start)
        below = _GAP.join(part for part in (row.where, row.mark) if part)
        return [
            *lines,
            *self._wrap(what, start, indent + "  "),
            *([indent + below] if below else []),
        ]


def story(document: Mapping[str, Any]) -> str:
    """Returns which rule made each finding, and what has changed it since: a paragraph for each;
    the verdict has no place of its own in it."""
    lines = [] if document["findings"] else [f"nothing was found: {document['outcome']}"]
    for finding in document["findings"]:
        lines.append(f"{finding['severity']} {finding['kind']}: {finding['message']}")
        told = finding.get("story")
        if not isinstance(told, list) or not told:
            lines.append("  who made it is not on record: the report is of an older version")
            continue
        lines.append(f"  made by {told[0]}")
        width = max(map(len, told[1:]), default=0)
        lines += [
            f"  then {one:{width}}  {STEPS.get(one, 'a step of another version')}"
            for one in told[1:]
        ]
    return "\n".join(lines) + "\n"
