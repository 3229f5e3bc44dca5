"""A node whose ranks have ended before any of them met the other nodes, which wait for them.

A rank that dies before it imports torch has been to no store, and a supervisor imports no torch:
its node would say alone what happened, and the others that they wait for ever. So a short-lived
process of ours goes to the store where the ranks were to meet, and has this node join the head that
it finds there. Where nobody serves that store, or has met in it, the node stays alone.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..hook.loading import command
from ..record.layout import Phase
from ..record.safe_text import endpoint
from ..record.snapshot import Rank
from ..record.wording import printable
from .interfaces import is_here
from .job import Job
from .limits import COMES_S
from .presence import Role


class LateMeeting:
    """The late meeting of one run."""

    def __init__(
        self, job: Job, directory: Path, say: Callable[[str], None], within_s: float = COMES_S
    ) -> None:
        """`within_s`: for how long the others wait for the ranks here before they say so."""
        self._job = job
        self._directory = directory
        self._say = say
        self._within_s = min(within_s, COMES_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0
        self._looked_again = self._over = False

    def goes_on(self, ranks: Mapping[int, Rank], what: str = "") -> bool:
        """Something is wrong here, `what` if that is known: whether others may still come to hear
        of it, so that it is not judged here yet. `ranks`: as of the last look."""
        if self._job.judged_elsewhere:
            return True
        if self._over or self._job.role in (Role.HEAD, Role.MEMBER, Role.ORPHAN):
            return False
        if self._process is None:
            here = {number: rank for number, rank in ranks.items() if not rank.node}
            if not (here or self._looked_again) and self._may_look:
                self._looked_again = True  # they may have come and gone since the last look
                return True
            place = self._place(here)
            if place is None:
                return False
            self._begin(what, *place, 0.0 if 0 in here else self._within_s)
        elif self._process.poll() is not None or time.monotonic() > self._until_s:
            self.close()
            self._say("no other node is reached: what is said here is of this node alone")
        return not self._over

    @property
    def _may_look(self) -> bool:
        """Whether there may be nodes that were not met."""
        several = self._job.several
        return several is not None and several.agreed is None and self._job.role is Role.ALONE

    def _place(self, here: Mapping[int, Rank]) -> tuple[str, int] | None:
        """Returns where the ranks of all nodes were to meet; None where that is not known, where
        one of those here may still come to it, and where there are no other nodes."""
        several = self._job.several
        if several is None or not self._may_look:
            return None
        if any(rank.process.alive and rank.phase < Phase.EXITING for rank in here.values()):
            return None
        told = {rank.job for rank in here.values()}
        if several.task and not told:  # what is started here is a rank, which has left no record
            told = {":".join(os.environ.get(one, "") for one in ("MASTER_ADDR", "MASTER_PORT"))}
        if not told:
            return None
        host, port = endpoint(told.pop())
        if told or not host or port is None:
            return None
        return None if several.guessed and is_here(host) else (host, port)

    def _begin(self, what: str, host: str, port: int, within_s: float) -> None:
        self._say(
            f"{what}{'; ' if what else ''}the ranks here have ended before they met those of other "
            f"nodes: these are told of it at {printable(host, 120)} port {port}, where they meet, "
            f"if they are there within {within_s:.0f} s"
        )
        words = [str(self._directory), host, str(port), str(within_s)]
        self._until_s = time.monotonic() + within_s + COMES_S
        try:
            self._process = subprocess.Popen(
                command("rank.process.meeting", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except OSError:
            self._over = True

    def close(self) -> None:
        """Ends the meeting: no node is to be met any more."""
        self._over = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
