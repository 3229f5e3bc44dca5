"""Reads inputs with everything that reads a run, in a process of its own, and bounds it.

    python -m tests.fuzz.reading       a request a line on stdin, an answer on stdout

An answer is a JSON object: `fault` ("" where all went as it must), the most memory that this
process had in use since the last answer, and the time of a core that it took.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT_S = 5.0
"""Of a core: what else the machine does counts for nothing."""
STUCK_S = 20 * LIMIT_S
LIMIT_BYTES = 300 << 20
START_S = 60.0
"""For the imports, on a machine that has other things to do."""
_HARD_BYTES = 4 << 30
"""Nothing here may take the machine's memory while it fails."""


class Reader:
    """The process, seen from outside."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.most_bytes = 0
        self.most_s = self.last_s = 0.0
        self.started = 0

    def read(self, path: Path, form: str, view: int) -> str:
        """What is wrong with how this run is read; "" where nothing is."""
        process = self._started()
        request = json.dumps([str(path), form, view]).encode() + b"\n"
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.flush()
        answer = self._answer(process, STUCK_S)
        if answer is None:
            status = process.poll()
            self.close()
            if status is None:
                return f"not read within {STUCK_S} s"
            return f"the reader ended with {status}"
        self.last_s = answer["cpu_s"]
        self.most_s = max(self.most_s, self.last_s)
        self.most_bytes = max(self.most_bytes, answer["bytes"])
        if answer["fault"]:
            return str(answer["fault"])
        if self.last_s > LIMIT_S:
            return f"read in {self.last_s:.1f} s of a core"
        if answer["bytes"] > LIMIT_BYTES:
            self.close()
            return f"{answer['bytes'] >> 20} MiB were in use"
        return ""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.reading"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "DISTDEBUG_RAISE_OWN_FAULTS": "1"},
            )
            self.started += 1
            assert self._answer(self._process, START_S) is not None
        return self._process

    @staticmethod
    def _answer(process: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any] | None:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], limit_s)[0]:
            return None
        line = process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _peak_bytes() -> int:
    """The most memory in use since the last call."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.split()[1]) << 10


def _read(path: str, form: str, view: int) -> str:
    from distdebug import cli
    from distdebug.record.runs.artefact import opened
    from distdebug.record.runs.run_directory import RunDirectoryError

    kept: list[str] = []

    def keep(error: Exception) -> str:
        kept.append("".join(traceback.format_exception(error)))
        return ""

    cli._keep_traceback = keep  # type: ignore[assignment]
    command = [form, path] if not form.startswith("-") else ["report", path, form]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(command)
    if kept or code == cli.EXIT_TOOL_FAILED:
        return f"{command}: {''.join(kept)}"
    if not out.getvalue() and form not in ("logs",) and err.getvalue().count("\n") != 1:
        return f"{command}: {code}: neither a report nor one sentence: {err.getvalue()!r}"
    for text in (out.getvalue(), err.getvalue()):
        if "\x1b" in text:
            return f"{command}: an escape sequence reached the terminal"
    try:
        with opened(path) as directory:
            return _shown(directory.path, view)
    except RunDirectoryError:
        return ""


def _shown(path: Path, number: int) -> str:
    from distdebug.tui.feed import Feed
    from distdebug.tui.keys import VIEWS
    from distdebug.tui.screens.base import Chosen
    from distdebug.tui.text import plain
    from distdebug.tui.widgets.header import banner_lines, header_lines

    feed = Feed(path, lambda _: None)
    view = VIEWS[number](Chosen())
    lines = []
    for _ in range(2):  # the second with the rank that the first has chosen
        picture = feed.look(view.focus())
        body = view.body(picture, 80, 24)
        lines += [*body.top, *body.lines, *body.below]
    lines += header_lines(picture, [], "", "", 80) + banner_lines(picture, 80)
    if "\x1b" in "".join(map(plain, lines)):
        return "an escape sequence reached the screen"
    if (
        "cannot be read (" in picture.problem
    ):  # the app says so and goes on; here we want to know why
        assert feed._run is not None
        feed._run.look(view.focus(), False)
        return picture.problem
    failed = [fault for fault in picture.faults if "a bug of distdebug's" in fault]
    return failed[0] if failed else ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_HARD_BYTES, _HARD_BYTES))
    answers = sys.stdout
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import distdebug.tui.keys  # noqa: F401 - before the first input is timed
    from distdebug.supervisor import on_the_spot  # noqa: F401

    print(json.dumps({"fault": ""}), file=answers, flush=True)
    _peak_bytes()
    for line in sys.stdin:
        path, form, view = json.loads(line)
        began_s = time.process_time()
        try:
            fault = _read(path, form, view)
        except BaseException as error:
            fault = "".join(traceback.format_exception(error))
        cpu_s = time.process_time() - began_s
        answer = {"fault": fault, "bytes": _peak_bytes(), "cpu_s": cpu_s}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
