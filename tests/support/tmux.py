"""A real terminal for tests: tmux, whose screen can be read and whose keys can be pressed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from .runs import environment

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """One command in a terminal of its own; its exit code is shown as `CODE n` at the end."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        size: tuple[int, int] = (120, 40),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._scratch = tempfile.mkdtemp(prefix="tmux-")  # a socket's path must be short
        line = f"{shlex.join(command)}; echo CODE $?; exec cat"
        width, height = map(str, size)
        arguments = ["-d", "-x", width, "-y", height, "-c", str(cwd), "sh", "-c", line]
        self._env = {**environment(extra), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self._tmux("-f", "/dev/null", "new-session", *arguments)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", f"{self._scratch}/s", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    @property
    def text(self) -> str:
        """What the screen shows."""
        return self._tmux("capture-pane", "-p")

    def styled(self, row: int) -> str:
        """One row of the screen with its colours, as escape sequences."""
        return self._tmux("capture-pane", "-p", "-e", "-S", str(row), "-E", str(row))

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def click(self, column: int, row: int) -> None:
        """Press and let go the left button on a cell, as a terminal reports it (SGR)."""
        for end in "Mm":
            self._tmux("send-keys", "-l", f"\x1b[<0;{column + 1};{row + 1}{end}")

    def until(self, *words: str, limit_s: float = 60.0) -> str:
        """Wait until the screen shows all of these; returns it."""
        deadline = time.monotonic() + limit_s
        while True:
            text = self.text
            if all(word in text for word in words):
                return text
            assert time.monotonic() < deadline, f"not within {limit_s} s: {words}\n{text}"
            time.sleep(0.02)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._scratch, ignore_errors=True)
