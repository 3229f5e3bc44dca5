"""Whose code a file holds."""

from __future__ import annotations

import os

import pytest
import torch
import typing_extensions

from debugger.rank.record import call_site


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
