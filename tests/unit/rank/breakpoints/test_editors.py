"""`--debugger debugpy`, with a module of that name that says what is done to it."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the other user of these tests may not read where it lies
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

import pytest

from distdebug.rank.breakpoints import editors
from distdebug.rank.breakpoints.editors import PROTOCOL, OwnersSocket
from distdebug.system import sockets
from distdebug.system.sockets import owner_of_peer


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


ATTACK = PROTOCOL + b" 119\r\n\r\n"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def listener() -> Iterator[OwnersSocket]:
    with OwnersSocket.bound() as made:
        made.listen(8)
        yield made


@contextmanager
def as_nobody() -> Iterator[None]:
    """The kernel gives a socket to the user that its process is when it makes it."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def editor(listener: socket.socket) -> socket.socket:
    made = socket.create_connection(listener.getsockname(), 10)
    made.sendall(ATTACK)
    return made


def shut_out(connection: socket.socket) -> bool:
    """Whether the other end has closed it without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def first_accepted(listener: OwnersSocket) -> bytes:
    """What the first one says that is let in: the one that came last, in these tests."""
    with editor(listener) as mine:
        mine.sendall(b"mine")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getpeername() == mine.getsockname()
            assert accepted.gettimeout() is None
            return accepted.recv(100)


def test_this_users_editor(listener: OwnersSocket) -> None:
    assert first_accepted(listener).startswith(ATTACK)


@pytest.mark.root
@needs_root
def test_another_user_is_shut_out(listener: OwnersSocket) -> None:
    with as_nobody():
        stranger = editor(listener)
    with stranger:
        first_accepted(listener)
        assert shut_out(stranger)


@pytest.mark.root
@needs_root
def test_another_user_who_has_sent_his_commands_and_gone(listener: OwnersSocket) -> None:
    """What no process holds any more belongs to root, in the kernel's table."""
    with as_nobody():
        editor(listener).close()
    assert first_accepted(listener).startswith(ATTACK)


@pytest.mark.root
@needs_root
def test_a_plain_listener_would_have_let_him_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        with as_nobody():
            stranger = editor(plain)
        with stranger:
            accepted, _ = plain.accept()
            with accepted:
                assert accepted.recv(100) == ATTACK
                assert owner_of_peer(accepted) == NOBODY


def test_a_page_in_this_users_browser(listener: OwnersSocket) -> None:
    with socket.create_connection(listener.getsockname(), 10) as browser:
        browser.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n" + ATTACK)
        first_accepted(listener)
        assert shut_out(browser)


def test_one_that_says_nothing_is_not_waited_for(
    listener: OwnersSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editors, "EDITOR_S", 0.05)
    with socket.create_connection(listener.getsockname(), 10) as silent:
        first_accepted(listener)
        assert shut_out(silent)


def test_where_the_kernel_does_not_say_nobody_gets_in(
    listener: OwnersSocket, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    proc = sockets.PROC
    monkeypatch.setattr(sockets, "PROC", type(proc)(tmp_path))
    with editor(listener) as mine:
        let_in: list[socket.socket] = []
        thread = threading.Thread(target=lambda: let_in.append(listener.accept()[0]), daemon=True)
        thread.start()
        assert shut_out(mine)
        monkeypatch.setattr(sockets, "PROC", proc)
        with editor(listener):
            thread.join(10)
            assert not thread.is_alive()
            let_in.pop().close()
