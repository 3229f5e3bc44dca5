"""The drain is started by every run, beside the ranks: it imports no more than it uses."""

from __future__ import annotations

import subprocess
import sys

from distdebug.hook import loading

DEAR = ("typing", "dataclasses", "inspect", "asyncio", "subprocess", "logging")


def test_nothing_dear_is_imported() -> None:
    code = (
        f"import sys; names = {{'__name__': 'loading', '__file__': {loading.__file__!r}}}; "
        f"exec(open({loading.__file__!r}).read(), names); "
        f"names['load']('supervisor.output.drain'); "
        f"print(*set({DEAR}) & sys.modules.keys(), 'socket' in sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"], done.stderr
