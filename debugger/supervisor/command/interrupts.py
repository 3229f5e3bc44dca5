"""The signals by which a run is asked to end, how much time its command gets then, and those that
are the command's own business."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from ..limits import INTERRUPT_GRACE_S, TERMINATE_GRACE_S, TERMINATE_MARGIN_S

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that torchrun handles, too."""
_IGNORED_BEHIND_AMPERSAND = (signal.SIGINT, signal.SIGQUIT)
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that programs give a meaning of their own: a scheduler says so that the time is nearly
up."""


class Interrupts:
    """The interrupts that came so far. Ctrl-C and the like end the run in good order; Ctrl-C after
    that ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first that came; it may be set where a signal is as good as there."""
        self.asked_to_stop = False
        """True where no signal came, but a request over the control socket."""
        self.at_once = False
        self._for_command: list[int] = []

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Take the signals as long as this lasts. What runs under `nohup`, where SIGHUP is ignored,
        outlives its terminal. A shell has SIGINT and SIGQUIT ignored in all that it starts behind a
        `&`, which may be sent them all the same."""
        wanted = {
            **dict.fromkeys(_ENDING, self._take),
            **dict.fromkeys(_HANDED_ON, lambda number, _frame: self._for_command.append(number)),
        }
        kept: Mapping[int, Any] = {
            number: signal.signal(number, handler)
            for number, handler in wanted.items()
            if number in _IGNORED_BEHIND_AMPERSAND or signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _take(self, number: int, _frame: Any) -> None:
        if self.signal is not None and number == signal.SIGINT and not self.asked_to_stop:
            self.at_once = True
        self.signal = self.signal or number
        self.asked_to_stop = False

    def for_command(self) -> list[int]:
        """Returns the signals that came for the command since the last call; they end nothing
        here."""
        came, self._for_command = self._for_command, []
        return came

    def stop(self) -> None:
        """End the run as after Ctrl-C."""
        if self.signal is None:
            self.asked_to_stop, self.signal = True, signal.SIGINT

    @property
    def name(self) -> str:
        return signal.Signals(self.signal or 0).name

    @property
    def grace_s(self) -> float:
        """The seconds that the command may take to end: after SIGTERM as long as torchrun would
        wait for its ranks, which may have a checkpoint to write."""
        if self.signal != signal.SIGTERM:
            return INTERRUPT_GRACE_S
        try:
            given_s = float(os.environ.get("TORCHELASTIC_SHUTDOWN_TIMEOUT", ""))
        except ValueError:
            given_s = TERMINATE_GRACE_S
        if not 0 <= given_s < math.inf:
            given_s = TERMINATE_GRACE_S
        return given_s + TERMINATE_MARGIN_S
