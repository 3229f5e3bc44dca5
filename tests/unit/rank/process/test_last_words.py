"""A rank that lets any process of the user read its stacks, where that is asked for."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.rank.process import last_words

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
ASKING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from distdebug.rank.process import last_words
print(last_words.open_to_all())
"""


class Kernel:
    """Notes what the process says to it."""

    def __init__(self, answer: int) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._answer = answer

    def prctl(self, option: int, value: ctypes.c_ulong, *rest: int) -> int:
        self.said.append((option, value.value, *rest))
        return self._answer


@pytest.mark.parametrize(("answer", "expected"), [(0, True), (-1, False)])
def test_it_says_so_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, answer: int, expected: bool
) -> None:
    kernel = Kernel(answer)
    monkeypatch.setenv(last_words.VARIABLE, "1")
    assert last_words.open_to_all(SimpleNamespace(prctl=kernel.prctl)) is expected  # type: ignore[arg-type]
    all_ones = ctypes.c_ulong(-1).value
    assert kernel.said == [(int.from_bytes(b"Yama", "big"), all_ones, 0, 0, 0)]


@pytest.mark.parametrize("value", ["", None])
def test_it_says_nothing_otherwise(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    kernel = Kernel(0)
    if value is None:
        monkeypatch.delenv(last_words.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(last_words.VARIABLE, value)
    assert not last_words.open_to_all(SimpleNamespace(prctl=kernel.prctl))  # type: ignore[arg-type]
    assert kernel.said == []


def test_the_kernel_of_this_machine_takes_it_where_it_restricts_anything() -> None:
    root = str(Path(__file__).resolve().parents[4])
    done = subprocess.run(
        [sys.executable, "-c", ASKING, root],
        capture_output=True,
        text=True,
        check=True,
        env={last_words.VARIABLE: "1"},
    )
    assert done.stdout.strip() == str(YAMA.exists())
