"""The drain is started by every run, beside the ranks: it imports no more than it uses."""

from __future__ import annotations

import subprocess
import sys

from debugger.supervisor.output.process import _PROGRAM

DEAR = ("typing", "dataclasses", "inspect", "asyncio", "subprocess", "logging")


def test_nothing_dear_is_imported() -> None:
    code = f"{_PROGRAM}; print(*set({DEAR}) & sys.modules.keys(), 'socket' in sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"], done.stderr
