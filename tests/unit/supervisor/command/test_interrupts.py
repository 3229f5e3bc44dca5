"""The signals that end a run in good order, as they end one of torchrun."""

from __future__ import annotations

import signal

import pytest

from distdebug.supervisor.command.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_it_is_taken_while_signals_are_heard(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        interrupts = Interrupts()
        with interrupts.heard():
            assert signal.getsignal(number) == interrupts._take
            signal.raise_signal(number)
        assert (interrupts.signal, interrupts.name) == (number, number.name)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_what_a_shell_has_ignored_behind_an_ampersand_is_taken(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        with interrupts.heard():
            assert signal.getsignal(number) == interrupts._take
            signal.raise_signal(number)
        assert interrupts.signal == number
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
