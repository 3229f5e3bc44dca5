"""`--debugger debugpy`, with a module of that name that says what is done to it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from debugger.rank.breakpoints.stops import editors


class FakeDebugpy(ModuleType):
    """An editor connects at the second look, and leaves when `gone` is set."""

    def __init__(self) -> None:
        super().__init__("debugpy")
        self.looks = 0
        self.gone = threading.Event()
        self.stopped_while: list[str] = []

    def listen(self, address: tuple[str, int]) -> tuple[str, int]:
        assert address == ("127.0.0.1", 0)
        return address[0], 5678

    def is_client_connected(self) -> bool:
        self.looks += 1
        return self.looks > 2 and not self.gone.is_set()

    def breakpoint(self) -> None:
        self.stopped_while += paused


paused: list[str] = []


@contextmanager
def announced(address: str) -> Iterator[None]:
    paused.append(address)
    try:
        yield
    finally:
        paused.remove(address)


def test_the_rank_is_paused_until_the_editor_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    debugpy = FakeDebugpy()
    monkeypatch.setitem(sys.modules, "debugpy", debugpy)
    monkeypatch.setattr(editors, "_address", "")
    editors.stop(announced, lambda: None)
    assert debugpy.stopped_while == ["127.0.0.1:5678"]
    assert paused
    debugpy.gone.set()
    for thread in threading.enumerate():
        if thread.name == "distdebug-editor":
            thread.join(30)
    assert not paused


def test_without_debugpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(ImportError):
        editors.stop(announced, lambda: None)
    assert editors.MISSING == "debugpy is not installed; install it with: pip install debugpy"
