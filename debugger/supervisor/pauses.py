"""The ranks at a breakpoint, as the supervisor sees them: what it says of them, and what waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ..record.requests.breakpoints import Stop, stops


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
