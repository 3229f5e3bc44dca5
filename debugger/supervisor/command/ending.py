"""Ends the process tree of a run: wakes what is stopped, asks politely, then kills."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ...record import steady_clock
from ...record.limits import POLL_EVERY_S
from ...record.snapshot import Rank
from ..limits import GONE_WITHIN_S, REAP_TIMEOUT_S, SILENT_S, WAKE_AFTER_S
from .launch import Launch


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of ending a command. `killed` had to be SIGKILLed; `left` could not be
    (uninterruptible wait)."""

    killed: tuple[int, ...]
    left: tuple[int, ...]
    took_s: float


def forward(
    launch: Launch, number: int, grace_s: float, hasten: Callable[[], bool] = lambda: False
) -> bool:
    """Hand a signal on to the command, which knows how to end its own: torchrun sends it to its
    ranks and waits for their checkpoints. What a command leaves behind that does not hand it on is
    sent it then. True when all has ended within `grace_s`, and before `hasten()`.
    """
    began_s = time.monotonic()
    woken = False
    if launch.pid and launch.poll() is None:
        launch.signal(number, [launch.pid])
    asked: set[int] = {launch.pid}
    while left := launch.descendants():
        waited_s = time.monotonic() - began_s
        if hasten() or waited_s > grace_s:
            return False
        if waited_s > WAKE_AFTER_S and not woken:
            # Who is stopped acts on the signal when it wakes, if it has come by then.
            launch.signal(signal.SIGCONT, left)
            woken = True
        if launch.poll() is not None:
            late = [pid for pid in left if pid not in asked]
            launch.signal(number, late)
            asked.update(late)
        time.sleep(POLL_EVERY_S)
    launch.poll()
    return True


def end_tree(
    launch: Launch,
    grace_s: float,
    silence_launcher: bool = False,
    spared: Collection[int] = (),
) -> Ended:
    """SIGCONT and SIGTERM to every process of the run, SIGKILL to what is left after `grace_s`,
    until nothing is left. Takes at most `grace_s` + `GONE_WITHIN_S`, and hardly longer than the
    processes need.

    `silence_launcher` kills the command itself first. torchrun otherwise takes a second to end
    and prints tracebacks about the ranks it lost; a launcher with ranks on other hosts has to be
    asked, so that it ends those too. `spared` are processes that nothing is done to.
    """

    def descendants() -> list[int]:
        return [pid for pid in launch.descendants() if pid not in spared]

    began_s = time.monotonic()
    killed: dict[int, None] = {}
    if silence_launcher and launch.pid and launch.poll() is None:
        killed.update(dict.fromkeys(launch.signal(signal.SIGKILL, [launch.pid])))
        launch.wait(GONE_WITHIN_S)  # its ranks are the warden's from here on
    left = descendants()
    if grace_s > 0:
        # A stopped process gets the polite signal first, so that it acts on it when it wakes.
        launch.signal(signal.SIGTERM, left)
        launch.signal(signal.SIGCONT, left)
        asked = set(left)
        while left and time.monotonic() - began_s < grace_s:
            time.sleep(POLL_EVERY_S)
            launch.poll()
            left = descendants()
            # Started meanwhile: a launcher that restarts its workers, a shell's next command.
            late = [pid for pid in left if pid not in asked]
            launch.signal(signal.SIGTERM, late)
            asked.update(late)
    kill_until_s = time.monotonic() + GONE_WITHIN_S
    while left:
        killed.update(dict.fromkeys(launch.signal(signal.SIGKILL, left)))
        launch.poll()
        if time.monotonic() > kill_until_s:
            break
        time.sleep(POLL_EVERY_S / 3)
        left = descendants()
    if launch.pid:
        launch.wait(0 if left else REAP_TIMEOUT_S)
    return Ended(tuple(killed), tuple(left), time.monotonic() - began_s)


def can_raise(rank: Rank) -> bool:
    """Whether the rank is alive and its Python still runs."""
    silent_s = (steady_clock.now_ns() - rank.heartbeat_ns) / 1e9
    return rank.process.alive and rank.process.state not in ("T", "t") and silent_s < SILENT_S
