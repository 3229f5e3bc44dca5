"""Who gets through to an editor's port: this user's editor, and nobody else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distdebug.rank.breakpoints import editors
from distdebug.rank.breakpoints.editors import PROTOCOL, OwnersSocket, owner_of_peer

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
    table = editors.TABLE
    monkeypatch.setattr(editors, "TABLE", type(table)(tmp_path) / "none")
    with editor(listener) as mine:
        let_in: list[socket.socket] = []
        thread = threading.Thread(target=lambda: let_in.append(listener.accept()[0]), daemon=True)
        thread.start()
        assert shut_out(mine)
        monkeypatch.setattr(editors, "TABLE", table)
        with editor(listener):
            thread.join(10)
            assert not thread.is_alive()
            let_in.pop().close()
