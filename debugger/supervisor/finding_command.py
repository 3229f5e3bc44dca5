"""The command of `--on-finding-run`, which a pager, a chat or `scancel` hangs on: it runs once for
each finding, beside the run, and is never in its way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..diagnosis.findings import Finding
from ..reports import document
from ..reports.stored import Document
from .limits import FINDING_COMMAND_S

SCHEMA = "distdebug.finding/1"
OUTPUT = "on-finding-run.txt"
"""What the command prints, in the run directory."""


class FindingCommand:
    """Runs `words` for each finding that it is told of. No shell reads them, and nothing of the
    finding is among them: a rank's text is in the JSON on standard input alone. One that takes
    longer than `FINDING_COMMAND_S` is killed with all that it has started in its session."""

    def __init__(self, words: Sequence[str], run_dir: Path, say: Callable[[str], None]) -> None:
        self._words = words
        self._run_dir = run_dir
        self._say = say
        self._told: set[tuple[Any, ...]] = set()
        self._running: list[threading.Thread] = []

    def tell(self, findings: Sequence[Finding]) -> None:
        """Starts the command for each of these that it was not started for yet."""
        for finding in findings if self._words else ():
            if finding.identity in self._told:
                continue
            self._told.add(finding.identity)
            heard: Document = {
                "schema": SCHEMA,
                "run_dir": str(self._run_dir),
                "finding": document.of_finding(finding, None, {}),
            }
            thread = threading.Thread(target=self._run, args=(json.dumps(heard),), daemon=True)
            thread.start()
            self._running.append(thread)

    def finish(self) -> None:
        """Waits for those that still run, which is no longer than each may take."""
        until_s = time.monotonic() + FINDING_COMMAND_S
        for thread in self._running:
            thread.join(max(0.0, until_s - time.monotonic()) + 1.0)

    def _run(self, heard: str) -> None:
        output = self._run_dir / OUTPUT
        try:
            # Appended to: several findings may come at once.
            with open(output, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                process = subprocess.Popen(
                    self._words,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                try:
                    process.communicate(heard.encode(), FINDING_COMMAND_S)
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(OSError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    why = f"took longer than {FINDING_COMMAND_S:g} s, and was killed"
                else:
                    why = f"ended with {process.returncode}" if process.returncode else ""
        except OSError as error:
            why = f"cannot be started: {error.strerror or error}"
        if why:
            self._say(f"--on-finding-run: {self._words[0]} {why} (what it said: {output})")
