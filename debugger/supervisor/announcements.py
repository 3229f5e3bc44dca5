"""Says on the terminal what a run comes to while it goes on, and keeps it among its events."""

from __future__ import annotations

import contextlib
import sys
import time

from ..record.reading.records import newest_ranks, unreadable_ranks
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..reports import off
from .limits import NOTICE_EVERY_S
from .watch import Look


class Announcements:
    """The announcements of one run: a sentence that was printed is not printed again, or not so
    soon."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._announced_s: dict[str, float] = {}
        self._recorded: set[tuple[object, ...]] = set()

    @staticmethod
    def say(sentence: str) -> None:
        """Prints one line on the terminal."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"distdebug: {clean(sentence)}\n")
            sys.stderr.flush()

    def keep(self, kind: str, sentence: str) -> None:
        """Say it, and keep it as an event of that kind."""
        self.say(sentence)
        self._directory.append_event(kind, sentence)

    def announce(self, look: Look) -> None:
        """Notices at most every ten seconds each; findings once."""
        now_s = time.monotonic()
        for notice in look.notices:
            if now_s - self._announced_s.get(notice.what, -1e9) >= NOTICE_EVERY_S:
                self._announced_s[notice.what] = now_s
                self.keep("notice", notice.text)
        unreadable = unreadable_ranks(look.snapshots)
        for why in off.news(newest_ranks(look.snapshots), self._announced_s, unreadable):
            self.keep("off", why)
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
                    self.say(f"{finding.kind}: {finding.message}")
