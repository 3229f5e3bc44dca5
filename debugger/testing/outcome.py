"""Makes one pytest report of those of all ranks: each distinct traceback once, the cause first,
what follows from it folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..diagnosis.findings import Finding
from ..record.kinds import Family
from ..record.safe_files import end_of
from ..record.safe_text import clean
from ..record.wording import comparable, ranges, site_text
from .channel import Message
from .pytest_private import chain_of, failure, native, report_of, subtest_of
from .running import RankRun, RankTest

MOST_OUTPUT_BYTES = 256 << 10
MOST_LINE = 20_000
_STRICT = "[XPASS(strict)]"
_Report = tuple[int, Message, Message]
"""A rank, pytest's report, and what the rank says about its error."""


@dataclass(slots=True)
class Merged:
    """The outcome of one phase, of all ranks together: as the fields of pytest's report."""

    outcome: str = "passed"
    longrepr: Any = None
    wasxfail: str | None = None


@dataclass(slots=True)
class _Failed:
    """Ranks that failed at the same lines, by what they say."""

    place: tuple[Any, ...]
    first: Message
    subtest: str | None = None
    """The part of the test that failed, where it was no more."""
    ranks: dict[str, list[int]] = field(default_factory=dict)

    @property
    def everybody(self) -> list[int]:
        return sorted(rank for ranks in self.ranks.values() for rank in ranks)

    def who(self, ranks: Iterable[int]) -> str:
        """These ranks, and the part of the test where it is about one."""
        return f"{ranges(ranks)}, {self.subtest}" if self.subtest else ranges(ranks)


class Merger:
    """The outcomes of one test; remembers what an earlier phase has reported already."""

    def __init__(self, test: RankTest, config: pytest.Config, location: tuple[str, int]) -> None:
        self._test = test
        self._config = config
        self._location = location
        self._told = False
        self._dead: set[int] = set()

    def of(self, when: str) -> Merged:
        """The outcome of this phase."""
        test = self._test
        reports = {one.number: one.reports[when] for one in test.ranks if when in one.reports}
        dead = [one for one in test.ranks if one.died and one.number not in self._dead]
        errors = [one for one in test.ranks if one.error]
        broken = not self._told and (bool(test.reason) or self._finding is not None)
        failed = {rank for rank, (data, _) in reports.items() if data["outcome"] == "failed"}
        xfailed = {
            rank
            for rank, (data, _) in reports.items()
            if data["outcome"] == "skipped" and "wasxfail" in data
        }
        folded = self._consequences(reports, failed | xfailed, bool(dead or errors))
        causes = failed - folded
        subtests = self._subtests(bool(dead or errors or causes))
        if xfailed and not errors and not subtests:
            strict = {
                rank for rank in causes if str(reports[rank][0]["longrepr"]).startswith(_STRICT)
            }
            if causes == strict and not dead and not test.reason:
                self._told = True
                first = reports[min(xfailed - folded or xfailed)][0]
                return Merged("skipped", str(_harmless(_message(first))), str(first["wasxfail"]))
        if broken or dead or errors or causes or subtests:
            failures = [*subtests, *((rank, *reports[rank]) for rank in causes)]
            made = Merged("failed", self._failure(failures, causes, folded, dead, errors, when))
            self._told = True
            self._dead |= {one.number for one in dead}
            for one in errors:
                one.error = ""
            return made
        return self._undisputed(reports, folded)

    @property
    def _finding(self) -> Finding | None:
        judge = self._test.judge
        return judge.finding if judge is not None else None

    def _subtests(self, others: bool) -> list[_Report]:
        """The subtests that failed and were not told yet; not those that only failed because of a
        finding, or, where there are `others`, lost their connection."""
        others = others or self._finding is not None or bool(self._test.reason)
        found = []
        for rank in self._test.ranks:
            for data, about in rank.subtests:
                if not about.get("told") and not (others and about.get("communication")):
                    found.append((rank.number, data, about))
            rank.subtests = []
        return found

    def _undisputed(self, reports: dict[int, tuple[Message, Message]], folded: set[int]) -> Merged:
        """Returns the outcome of a phase in which no rank failed."""
        skipped = {rank for rank, (data, _) in reports.items() if data["outcome"] == "skipped"}
        others = set(reports) - skipped
        if skipped - folded and others:
            first = reports[min(skipped)][0]["longrepr"]
            words = first[2] if isinstance(first, list) else str(first)
            path, line = self._location
            text = (
                f"{ranges(skipped)} skipped the test ({words}), {ranges(others)} did not: "
                "skip it in all ranks or in none"
            )
            return Merged("failed", failure([(native(text), None, None)], path, line, text))
        if skipped:
            found = _harmless(reports[min(skipped)][0]["longrepr"])
            return Merged("skipped", tuple(found) if isinstance(found, list) else found)
        for data, _ in reports.values():
            if "wasxfail" in data:
                return Merged("passed", None, str(data["wasxfail"]))
        return Merged()

    def _consequences(
        self, reports: dict[int, tuple[Message, Message]], stopped: set[int], dead: bool
    ) -> set[int]:
        """Ranks that only failed because of something else: they were told so, or lost their
        connection to one that failed first."""
        finding = self._finding
        told, lost, own = set(), set(), set()
        for rank in stopped:
            about = reports[rank][1]
            if about.get("told"):
                told.add(rank)
            elif about.get("communication") and not (
                # This rank's exception is the finding.
                finding is not None
                and finding.about.family is Family.FAILURE
                and rank in finding.culprits
            ):
                lost.add(rank)
            elif finding is not None and about.get("finding") == finding.kind:
                own.add(rank)
        others = stopped - told - lost
        if finding is not None or dead or others or self._test.reason:
            return told | lost | own
        return told

    # -- the text of a failure -----------------------------------------------------------------

    def _failure(
        self,
        failures: Sequence[_Report],
        causes: set[int],
        folded: set[int],
        dead: Sequence[RankRun],
        errors: Sequence[RankRun],
        when: str,
    ) -> Any:
        test, finding = self._test, self._finding
        path, line = self._location
        parts: list[tuple[Any, Any, Any]] = []
        message = ""
        if test.reason and not self._told:
            message = test.reason
            parts.append((native(clean(test.reason, MOST_LINE, newlines=True)), None, None))
        if finding is not None and test.judge is not None and not self._told:
            words = test.judge.report(test.nodeid, "failed")
            # The traceback of an exception says more than its finding.
            if finding.about.family is not Family.FAILURE or not failures:
                message = message or f"{finding.kind}: {finding.message}"
                parts.append((native(words), None, None))
        elif test.judge is not None:
            test.judge.report(test.nodeid, "failed")
        for rank in dead:
            if finding is None:  # gloo aborts the process for less than that
                text = f"rank {rank.number} ended in the middle of the test: {test.ending(rank)}"
                message = message or text
                parts.append((native(text), None, None))
        for text, numbers in _alike(
            (clean(one.error, MOST_LINE, newlines=True), one.number) for one in errors
        ):
            message = message or text.strip().rpartition("\n")[2]
            parts.append((native(f"{ranges(numbers)}:\n{text}"), None, None))
        for group in _distinct(failures):
            crash = _crash(group.first)
            if not message:
                path, line = (crash["path"], crash["lineno"]) if crash else (path, line)
                message = f"{group.who(group.everybody)}: {_message(group.first)}"
            parts += self._traceback(group)
        parts += [(native(text), None, None) for text in self._folded(folded, causes, dead, when)]
        if test.reason and test.stacks and not self._told:
            parts.append((native(f"where the ranks stood:\n{test.stacks}"), None, None))
        return failure(parts, str(path), line, clean(message.split("\n")[0]))

    def _traceback(self, group: _Failed) -> list[tuple[Any, Any, Any]]:
        texts = list(group.ranks)
        head = group.who(group.everybody)
        if len(texts) > 1:
            head += " failed at the same line; this is of " + ranges(group.ranks[texts[0]])
        parts = [(native(f"{head}:"), None, None), *chain_of(report_of(group.first, self._config))]
        rows = [
            f"{ranges(group.ranks[text])}: {text.splitlines()[0]}" for text in texts[1:] if text
        ]
        if rows:
            parts.append((native("\n".join(rows)), None, None))
        return parts

    def _folded(
        self, folded: set[int], causes: set[int], dead: Sequence[RankRun], when: str
    ) -> list[str]:
        """Returns which ranks were ended because of that, and where."""
        finding = self._finding
        stuck = {one.number for one in self._test.ranks if when not in one.reports and not one.died}
        ended = sorted(folded | (stuck - causes))
        if (
            not ended
            or not (causes or dead)
            or (finding is not None and finding.about.family is not Family.FAILURE)
        ):
            return []
        rows = []
        for number in ended:
            known = finding.ranks.get(number) if finding is not None else None
            call = f" in {known.call}" if known is not None and known.call else ""
            where = f" at {site_text(known.location)}" if known and known.location else ""
            rows.append((f"{call}{where}" if call else "", number))
        return [
            f"{ranges(numbers)} waited{where} and {'was' if len(numbers) == 1 else 'were'} ended "
            "by this"
            for where, numbers in _alike(rows)
        ]


def sections(test: RankTest, captured: bool) -> list[tuple[str, str]]:
    """Returns what the ranks have printed and logged so far, the same of several ranks once."""
    found: list[tuple[str, str]] = []
    for ending, name in (("out", "stdout"), ("err", "stderr")) if captured else ():
        rows = [
            (_output(test.place / "run" / "logs" / f"{one.number}.{ending}"), one.number)
            for one in test.ranks
        ]
        found += [
            (f"Captured {name} of {ranges(numbers)}", text)
            for text, numbers in _alike(rows)
            if text
        ]
    logged: dict[str, list[tuple[str, int]]] = {}
    for one in test.ranks:
        latest = list(one.reports.values())[-1:]
        for name, text in (pair for data, _ in latest for pair in data["sections"]):
            logged.setdefault(name, []).append((clean(text, MOST_LINE, newlines=True), one.number))
    for name, pairs in logged.items():
        found += [(f"{name} of {ranges(numbers)}", text) for text, numbers in _alike(pairs)]
    return found


def properties(test: RankTest) -> list[tuple[str, object]]:
    """`record_property` of all ranks: of those that differ, each with its rank."""
    rows: dict[tuple[str, str], tuple[object, list[int]]] = {}
    for one in test.ranks:
        for data, _ in list(one.reports.values())[-1:]:
            for name, value in data.get("user_properties", ()):
                rows.setdefault((name, repr(value)), (value, []))[1].append(one.number)
    size = len(test.ranks)
    return [
        (name if len(ranks) == size else f"{name} of {ranges(ranks)}", value)
        for (name, _), (value, ranks) in rows.items()
    ]


def _alike(rows: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Returns the ranks by text."""
    found: dict[str, list[int]] = {}
    for text, number in rows:
        found.setdefault(text, []).append(number)
    return list(found.items())


def _distinct(failures: Iterable[_Report]) -> list[_Failed]:
    """Failures by place, the first by time first."""
    found: dict[tuple[Any, ...], _Failed] = {}
    for rank, raw, _ in sorted(failures, key=lambda one: (one[2].get("time_ns", 0), one[0])):
        data = _harmless(raw)
        subtest = subtest_of(data)
        place = (subtest, *_place(data))
        group = found.setdefault(place, _Failed(place, data, subtest))
        group.ranks.setdefault(comparable(_message(data)), []).append(rank)
    return list(found.values())


def _harmless(value: Any) -> Any:
    """Every string of a rank's report safe to print."""
    if isinstance(value, str):
        return clean(value, MOST_LINE, newlines=True)
    if isinstance(value, dict):
        return {key: _harmless(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    return value


def _place(data: Message) -> tuple[Any, ...]:
    """The lines that the traceback passes, and the type of the error."""
    found = data["longrepr"]
    if not isinstance(found, dict):
        return ("text", comparable(str(found)))
    chain = found.get("chain") or [(found["reprtraceback"], None, None)]
    places = [
        (entry["data"].get("reprfileloc") or {"lines": entry["data"]["lines"]}).values()
        for traceback, _, _ in chain
        for entry in traceback["reprentries"]
    ]
    lines = [tuple(str(part) for part in place)[:2] for place in places]
    return (*lines, _message(data).partition(":")[0].split(" ")[0])


def _crash(data: Message) -> Message | None:
    found = data["longrepr"]
    crash = found.get("reprcrash") if isinstance(found, dict) else None
    return crash if isinstance(crash, dict) else None


def _message(data: Message) -> str:
    crash = _crash(data)
    return str(crash["message"] if crash is not None else data["longrepr"])


def _output(path: Path) -> str:
    try:
        data, before = end_of(path, MOST_OUTPUT_BYTES)
    except OSError:
        return ""
    words = clean(data.decode("utf-8", "backslashreplace"), MOST_LINE, newlines=True)
    return f"... {before} bytes before this\n{words}" if before else words
