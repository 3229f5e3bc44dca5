"""What a rank leaves in the run directory at a breakpoint, and whom its socket lets in."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from distdebug.record.requests import breakpoints, supervision
from distdebug.record.requests.breakpoints import (
    BreakAt,
    Line,
    Stop,
    announce,
    connect,
    lines_with_code,
    listen,
    parse_break,
    stops,
    withdraw,
)
from distdebug.record.requests.supervision import FOLDER, any_stop


def here(rank: int | None = 2, pid: int | None = None) -> Stop:
    return Stop(rank, pid or os.getpid(), "/home/me/train.py", 42, "step", "breakpoint", "")


def test_a_stop_is_seen_until_it_is_withdrawn(tmp_path: Path) -> None:
    assert stops(tmp_path) == []
    assert not supervision.any_stop(tmp_path)
    announce(tmp_path, here(None))
    announce(tmp_path, here(2))
    assert stops(tmp_path) == [here(2), here(None)]
    assert supervision.any_stop(tmp_path)
    withdraw(tmp_path, here(2))
    withdraw(tmp_path, here(None))
    assert stops(tmp_path) == []
    assert not supervision.any_stop(tmp_path)


def test_what_a_dead_process_has_left_is_no_stop(tmp_path: Path) -> None:
    announce(tmp_path, here(2, pid=2**22 + 1))  # above the highest pid there can be
    assert stops(tmp_path) == []
    assert not supervision.any_stop(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": 1}', '{"file": "a", "line": "b"}'])
def test_a_damaged_file_is_no_stop(tmp_path: Path, text: str) -> None:
    announce(tmp_path, here(2))
    (tmp_path / "breakpoints" / f"2-{os.getpid()}.json").write_text(text)
    assert stops(tmp_path) == []


def test_notice() -> None:
    said = "rank 2 is at a breakpoint (train.py:42 in step); attach with: distdebug attach --rank 2"
    assert here().notice("") == said
    assert here().notice("runs/7").endswith("distdebug attach runs/7 --rank 2")
    editor = Stop(None, 7, "train.py", 1, "f\x1b[2J", "breakpoint", "127.0.0.1:5678")
    said = "process 7 is at a breakpoint (train.py:1 in f\\x1b[2J); "
    assert editor.notice("") == said + "connect an editor's debugger to 127.0.0.1:5678"


def test_a_socket_in_a_deep_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["deeper" * 5] * 6)
    directory.mkdir(parents=True)
    assert len(str(directory)) > 108  # what a socket's path may have
    with listen(directory, here()) as listener, connect(directory, here()) as connection:
        accepted, _ = listener.accept()
        with accepted:
            assert breakpoints.same_user(accepted)
            assert breakpoints.same_user(connection)
        folder = directory / "breakpoints"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "breakpoints").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="open to other users"):
        listen(tmp_path, here())
    with pytest.raises(PermissionError, match="open to other users"):
        breakpoints.ask_to_stop(tmp_path, 7)


def test_another_user_is_no_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert breakpoints.same_user(one)
        monkeypatch.setattr(os, "geteuid", lambda: 123_456)
        assert not breakpoints.same_user(one)


def test_messages() -> None:
    one, other = socket.socketpair()
    with one, other:
        line = Line(other)
        one.sendall(b'{"line": "p x"}\n{"li')
        assert line.receive() == [{"line": "p x"}]
        one.sendall(b'ne": "c"}\n')
        assert line.receive() == [{"line": "c"}]
        one.sendall(b"[1]\n")
        assert line.receive() is None
        one.close()
        assert line.receive() is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train.py:42", BreakAt(file="train.py", line=42)),
        ("a:b/train.py:42@2", BreakAt(file="a:b/train.py", line=42, rank=2)),
        ("all_reduce#12@2", BreakAt(op="all_reduce", seq=12, rank=2)),
        ("send#0", BreakAt(op="send", seq=0)),
    ],
)
def test_places(text: str, place: BreakAt) -> None:
    assert parse_break(text) == place
    assert str(place) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("train.py", "write FILE:LINE or OP#SEQ"),
        ("train.py:x", "write FILE:LINE or OP#SEQ"),
        ("train.py:0", "lines count from 1"),
        ("train.py:3@-1", "write FILE:LINE or OP#SEQ"),
        ("allreduce#3", "did you mean all_reduce?"),
    ],
)
def test_what_is_no_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="--break") as caught:
        parse_break(text)
    assert reason in str(caught.value)


def test_lines_with_code() -> None:
    source = "import os\n\n# words\ndef f(x):\n    return (\n        x\n    )\n"
    assert lines_with_code(source, "train.py") == {1, 4, 5, 6}


def test_a_request(tmp_path: Path) -> None:
    assert not supervision.is_asked(tmp_path, 7)
    assert not supervision.any_asked(tmp_path)
    breakpoints.ask_to_stop(tmp_path, 7)
    breakpoints.ask_to_stop(tmp_path, 7)
    assert supervision.is_asked(tmp_path, 7)
    assert not supervision.is_asked(tmp_path, 77)
    assert supervision.any_asked(tmp_path)
    (path,) = (tmp_path / FOLDER).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not supervision.withdraw_request(tmp_path, 77)
    assert supervision.withdraw_request(tmp_path, 7)
    assert not supervision.withdraw_request(tmp_path, 7)
    assert not supervision.any_asked(tmp_path)


def test_a_request_is_no_stop_and_a_stop_no_request(tmp_path: Path) -> None:
    breakpoints.ask_to_stop(tmp_path, os.getpid())
    assert stops(tmp_path) == []
    assert not any_stop(tmp_path)
    supervision.withdraw_request(tmp_path, os.getpid())
    here = Stop(0, os.getpid(), "train.py", 1, "step", "breakpoint", "")
    announce(tmp_path, here)
    assert not supervision.any_asked(tmp_path)
    withdraw(tmp_path, here)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o700)
    (tmp_path / FOLDER / "break-7").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        breakpoints.ask_to_stop(tmp_path, 7)
    assert not (tmp_path / "elsewhere").exists()
