"""A forked program ends as Python has it end, also where a signal comes as its error is printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from tests.support.in_fork import forked


def test_a_signal_as_the_error_is_printed_hides_neither(tmp_path: Path) -> None:
    """Its handler may raise at the first line of `sys.excepthook`, whoever has set that."""
    path = tmp_path / "stderr"
    came = []

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not came:
            came.append(error)
            raise ValueError("the handler's")
        sys.__excepthook__(kind, error, traceback)

    def body() -> None:
        with open(path, "w") as file:
            os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(os.dup(2), "w")
        sys.excepthook = hook
        raise KeyError("the program's")

    pid = forked(body)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    said = path.read_text()
    assert 'KeyError: "the program\'s"' in said
    assert "ValueError: the handler's" in said
