"""Whose code a file holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import typing_extensions

from distdebug.rank.record import call_site


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (torch.__file__, call_site.OWN),
        (typing_extensions.__file__, call_site.OWN),  # torch deprecates its functions with it
        (os.__file__, call_site.OWN),
        (pytest.__file__, call_site.LIBRARY),
        ("/home/user/train.py", call_site.USER),
    ],
)
def test_whose_code_it_is(file: str, kind: int) -> None:
    assert call_site.frame_kind(file) == kind


@pytest.mark.parametrize("installed", [True, False])
def test_a_folder_into_which_pip_has_installed(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target`; and one on the path that holds the user's own modules."""
    (tmp_path / ("accelerate-1.15.0.dist-info" if installed else "accelerate")).mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    file = str(tmp_path / "accelerate" / "state.py")
    assert call_site.frame_kind(file) == (call_site.LIBRARY if installed else call_site.USER)
    assert call_site.through(file, 412).endswith("state.py:412")
    assert call_site.through(file, 412).startswith("accelerate/") == installed


def test_what_lies_beside_the_script_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(call_site, "_script", lambda: str(tmp_path / "train.py"))
    assert call_site.frame_kind(str(tmp_path / "model.py")) == call_site.USER
