"""The watch of a run for its supervisor: news are announced on the terminal, and kept among the
events of the run; what fails costs that one look.

The observer never breaks the program. A rule that raises, a sampler that meets a /proc it does not
know, a record with nonsense in it: that part is lost, reported once, its traceback is kept in the
run directory, and the report says that it was.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnosis.findings import Finding
from ..record.reading.records import newest_ranks, unreadable_ranks
from ..record.requests.breakpoints import Stop, stops
from ..record.runs.run_directory import RunDirectory
from ..record.safe_files import append
from ..record.safe_text import clean
from ..record.snapshot import Rank
from ..reports import off
from .begin import say
from .finding_command import FindingCommand
from .limits import NOTICE_EVERY_S
from .watch import LocalReader, Look, Policy, Watch

FILE = "own-faults.txt"
_RAISE = "DISTDEBUG_RAISE_OWN_FAULTS"
"""Set in our own tests, where a fault of ours must not be survived in silence."""
_MOST_PARTS = 64


class OwnFaults:
    """The faults of one run. `directory` may be set later; what came before is then lost from the
    file, never from the report."""

    def __init__(self) -> None:
        self.directory: RunDirectory | None = None
        self._why: dict[str, str] = {}

    def note(self, part: str, error: Exception) -> None:
        """Notes that this part of the watching has failed with this error. Kept once a part."""
        if os.environ.get(_RAISE):
            raise error
        if part in self._why or len(self._why) >= _MOST_PARTS:
            return
        try:
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
        except Exception:  # an exception may be unable to say what it is
            text = f"{type(error).__name__}: it cannot be printed"
        self.say(part, clean(text, 300))
        if self.directory is not None:
            text = "".join(traceback.format_exception(error))
            with contextlib.suppress(OSError):
                append(
                    self.directory.path / FILE,
                    f"{part} failed:\n{text}\n".encode(errors="backslashreplace"),
                )

    def say(self, part: str, why: str) -> None:
        """Notes that a part is off for a reason that is no fault of ours, such as a disk that is
        full."""
        self._why.setdefault(part, why)

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Notes an exception that is raised inside, and lets it go no further."""
        try:
            yield
        except Exception as error:
            self.note(part, error)

    @property
    def off(self) -> list[dict[str, Any]]:
        """The parts that failed at least once, as report.json has them."""
        return [{"part": part, "why": why} for part, why in self._why.items()]


class Pauses:
    """Looks into the run directory. `run`: how `distdebug attach` is given this run."""

    def __init__(self, directory: Path, run: str, find: Callable[[Path], Sequence[Stop]] = stops):
        self._directory = directory
        self._run = run
        self._find = find
        self._told: dict[str, Stop] = {}

    def look(self, told_elsewhere: Collection[str] = ()) -> tuple[list[str], bool]:
        """Notices of what has changed since the last look; whether somebody stands now.
        `told_elsewhere`: the names of those of which another supervisor gives notice."""
        found = self._find(self._directory)
        now = {stop.name: stop for stop in found if stop.name not in told_elsewhere}
        before, self._told = self._told, now
        left = [stop for name, stop in before.items() if name not in now]
        came = [stop for name, stop in now.items() if before.get(name) != stop]
        notices = [f"{stop.who} has left its breakpoint ({stop.place})" for stop in left]
        return notices + [stop.notice(self._run) for stop in came], bool(found)


class Announcements:
    """The announcements of one run: a sentence that was printed is not printed again, or not so
    soon."""

    def __init__(self, directory: RunDirectory, on_finding: Sequence[str] = ()) -> None:
        """`on_finding`: the words of `--on-finding-run`."""
        self._directory = directory
        self.command = FindingCommand(on_finding, directory.path, self.say)
        self._announced_s: dict[str, float] = {}
        self._recorded: set[tuple[object, ...]] = set()

    say = staticmethod(say)

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
                self.command.tell([finding])
                self._directory.append_event(
                    "finding",
                    finding.message,
                    finding=finding.kind,
                    severity=finding.severity,
                    culprits=list(finding.culprits),
                )
                if finding.severity == "error":
                    self.say(f"{finding.kind}: {finding.message}")


class GuardedWatch(Watch):
    """`ranks` and `world_size` are as of the last look, and `pids_here`, by rank: on another host a
    pid is somebody else's. `judged`: whether that look did not fail."""

    def __init__(
        self,
        reader: LocalReader,
        policy: Policy,
        faults: OwnFaults,
        announcements: Announcements,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """`elsewhere`: whether another node's supervisor judges the run now."""
        super().__init__(reader, policy, faults.note)
        self._elsewhere = elsewhere
        self._faults = faults
        self._announcements = announcements
        self._told: Look | None = None
        self.judged = True
        self.ranks: Mapping[int, Rank] = {}
        self.pids_here: Mapping[int, int] = {}
        self.world_size = 1

    def suspects(self) -> Sequence[Finding]:
        """Returns the findings that are suspected by now of what a notice has said."""
        return [] if self._elsewhere() else super().suspects()

    def observe(self, finished: bool = False) -> Look | None:
        """Looks at all ranks, and announces what is found; None where that failed, which costs only
        this look."""
        look = None
        self.judged = False
        with self._faults.guard("the look at the ranks"):
            look = self.only_look() if self._elsewhere() else self.look(finished)
            self.judged = True
            if look is self._told:
                return look  # nothing is new in it, and of many ranks to see that takes a while
            self._told = look
            self.ranks = newest_ranks(look.snapshots)
            ranks = self.ranks.items()
            self.pids_here = {number: rank.pid for number, rank in ranks if not rank.node}
            self.world_size = max([1, *(one.world_size for one in look.snapshots)])
        if look is not None:
            with self._faults.guard("the notices"):
                self._announcements.announce(look)
        return look

    def found(self, finding: Finding) -> None:
        """Notes the time of what another part of the supervisor has found just now; not of a
        finding that does not say since when it could be seen."""
        if finding.observable_ns:
            self.note_time(finding)
