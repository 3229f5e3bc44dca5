"""Requests to stop: made by the supervisor, seen by the rank, taken back by either."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from distdebug.record.requests import break_requests
from distdebug.record.requests.breakpoints import FOLDER, Stop, announce, any_stop, stops, withdraw


def test_a_request(tmp_path: Path) -> None:
    assert not break_requests.is_asked(tmp_path, 7)
    assert not break_requests.any_asked(tmp_path)
    break_requests.ask(tmp_path, 7)
    break_requests.ask(tmp_path, 7)
    assert break_requests.is_asked(tmp_path, 7)
    assert not break_requests.is_asked(tmp_path, 77)
    assert break_requests.any_asked(tmp_path)
    (path,) = (tmp_path / FOLDER).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not break_requests.withdraw(tmp_path, 77)
    assert break_requests.withdraw(tmp_path, 7)
    assert not break_requests.withdraw(tmp_path, 7)
    assert not break_requests.any_asked(tmp_path)


def test_a_request_is_no_stop_and_a_stop_no_request(tmp_path: Path) -> None:
    break_requests.ask(tmp_path, os.getpid())
    assert stops(tmp_path) == []
    assert not any_stop(tmp_path)
    break_requests.withdraw(tmp_path, os.getpid())
    here = Stop(0, os.getpid(), "train.py", 1, "step", "breakpoint", "")
    announce(tmp_path, here)
    assert not break_requests.any_asked(tmp_path)
    withdraw(tmp_path, here)


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="open to other users"):
        break_requests.ask(tmp_path, 7)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(mode=0o700)
    (tmp_path / FOLDER / "break-7").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        break_requests.ask(tmp_path, 7)
    assert not (tmp_path / "elsewhere").exists()
