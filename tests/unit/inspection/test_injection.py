"""A running interpreter is made to run a few lines: at its next bytecode, and in no other place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.inspection import injection
from distdebug.inspection.injection import NotInstallable, of_our_python
from distdebug.system.proc import read_stat
from tests.support.waiting import until

LIMIT_S = 60.0
AT_WORK = """
import pathlib, sys, threading
here = pathlib.Path(sys.argv[1])
(here / "up").touch()
turns, pairs = 0, []
while not (here / "end").exists():
    turns += 1
    pairs.append([turns] * 50)  # malloc and free, all the time
    del pairs[:-100]
before = set(globals())
print(turns > 0, sorted(set(globals()) - before - {"before"}), "told" in sys.modules)
"""
IN_C = """
import pathlib, sys
here = pathlib.Path(sys.argv[1])
(here / "up").touch()
sys.stdin.buffer.read(1)  # within C until somebody writes
while not (here / "came").exists():
    pass
"""
COMES = """
import os
def come(run):
    import threading
    with open(os.path.join(run, "came"), "w") as file:
        file.write(threading.main_thread().name)
"""

pytestmark = pytest.mark.usefixtures("working_gdb")


@pytest.fixture(autouse=True)
def _crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """gdb may be given no core for long: that it is called off then is no matter here."""
    monkeypatch.setattr(injection, "TOOL_S", LIMIT_S)
    monkeypatch.setattr(injection, "ANSWER_S", LIMIT_S)


@contextmanager
def python(text: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", text, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until((folder / "up").exists)
        yield running
    finally:
        running.kill()
        running.communicate()


def test_the_code_runs_and_leaves_nothing(tmp_path: Path) -> None:
    bootstrap = tmp_path / "with a blank" / "comes.py"
    bootstrap.parent.mkdir()
    bootstrap.write_text(COMES)
    with python(AT_WORK, tmp_path) as running:
        done = injection.inject(
            of_our_python(running.pid), injection.code(bootstrap, tmp_path), tmp_path
        )
        # Its looks may miss the stop, where this process gets no core meanwhile.
        assert done.stopped_ms < injection.ANSWER_S * 1000
        until((tmp_path / "came").exists)
        stat = read_stat(running.pid)
        assert stat is not None
        assert stat.state in "RS"
        (tmp_path / "end").touch()
        assert running.communicate(timeout=LIMIT_S)[0] == "True [] False\n"
        assert running.returncode == 0


def test_an_error_of_the_code_is_none_of_the_program(tmp_path: Path) -> None:
    bootstrap = tmp_path / "comes.py"
    bootstrap.write_text("raise SystemExit(3)")
    with python(AT_WORK, tmp_path) as running:
        for text in (
            injection.code(bootstrap, tmp_path),
            injection.code(tmp_path / "no", tmp_path),
        ):
            injection.inject(of_our_python(running.pid), text, tmp_path)
        (tmp_path / "end").touch()
        assert running.communicate(timeout=LIMIT_S)[0] == "True [] False\n"
        assert running.returncode == 0


def test_who_is_within_c_is_left_alone_until_it_comes_back(tmp_path: Path) -> None:
    bootstrap = tmp_path / "comes.py"
    bootstrap.write_text(COMES)
    with python(IN_C, tmp_path) as running:
        injection.inject(of_our_python(running.pid), injection.code(bootstrap, tmp_path), tmp_path)
        assert not (tmp_path / "came").exists()
        assert running.stdin is not None
        running.stdin.write("x")
        running.stdin.flush()
        until((tmp_path / "came").exists)
        assert running.wait(LIMIT_S) == 0


def test_gdb_says_why_it_cannot(tmp_path: Path) -> None:
    with python(AT_WORK, tmp_path) as running:
        target = of_our_python(running.pid)
        running.kill()
        running.wait()
        with pytest.raises(NotInstallable, match="gdb could not queue a call in it"):
            injection.inject(target, "pass", tmp_path)
