"""`--debugger debugpy`, with a module of that name that says what is done to it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

import pytest

from distdebug.rank.breakpoints import editors
from distdebug.rank.breakpoints.editors import OwnersSocket


class FakeDebugpy(ModuleType):
    """An editor connects at the second look, and leaves when `gone` is set."""

    def __init__(self) -> None:
        super().__init__("debugpy")
        self.looks = 0
        self.gone = threading.Event()
        self.stopped_while: list[str] = []

    def listen(self, address: tuple[str, int], in_process_debug_adapter: bool) -> None:
        assert address == ("127.0.0.1", 0)
        assert in_process_debug_adapter
        self.listener = sys.modules["pydevd"].create_server_socket(*address)

    def is_client_connected(self) -> bool:
        self.looks += 1
        return self.looks > 2 and not self.gone.is_set()

    def settrace(self, *, suspend: bool, stop_at_frame: FrameType, **_: bool) -> None:
        assert suspend
        assert stop_at_frame.f_code.co_filename == __file__
        self.stopped_while += paused


paused: list[str] = []


@contextmanager
def announced(address: str) -> Iterator[None]:
    paused.append(address)
    try:
        yield
    finally:
        paused.remove(address)


def planted(monkeypatch: pytest.MonkeyPatch, debugpy: FakeDebugpy, **pydevd: object) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", debugpy)
    monkeypatch.setitem(sys.modules, "debugpy.server", ModuleType("debugpy.server"))
    monkeypatch.setitem(sys.modules, "debugpy.server.api", ModuleType("debugpy.server.api"))
    made = ModuleType("pydevd")
    vars(made).update(pydevd, settrace=debugpy.settrace)
    monkeypatch.setitem(sys.modules, "pydevd", made)


def test_the_rank_is_paused_until_the_editor_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    debugpy = FakeDebugpy()
    planted(monkeypatch, debugpy, create_server_socket=lambda host, port: None)
    editors.Editors().stop(announced, lambda: None, sys._getframe())
    assert isinstance(debugpy.listener, OwnersSocket)
    with debugpy.listener as listener:
        assert debugpy.stopped_while == ["127.0.0.1:{1}".format(*listener.getsockname())]
    assert paused
    debugpy.gone.set()
    for thread in threading.enumerate():
        if thread.name == "distdebug-editor":
            thread.join(30)
    assert not paused


@pytest.mark.parametrize("has", [{}, {"create_server_socket": lambda host, port: None}])
def test_a_release_whose_listener_cannot_be_replaced_is_refused(
    has: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    debugpy = FakeDebugpy()
    planted(monkeypatch, debugpy, **has)
    monkeypatch.setattr(editors, "EDITOR_S", 0.01)
    monkeypatch.setattr(debugpy, "listen", lambda *_, **__: None)  # it listens by another way
    made = editors.Editors()
    with pytest.raises(RuntimeError, match="leave out --debugger debugpy"):
        made.stop(announced, lambda: None, sys._getframe())
    assert made.address == ""


def test_without_debugpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(ImportError):
        editors.Editors().stop(announced, lambda: None, sys._getframe())
    assert editors.MISSING == "debugpy is not installed; install it with: pip install debugpy"
