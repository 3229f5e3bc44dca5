"""A pickle that is no plain data runs nothing, takes no memory, and is refused in one sentence."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from distdebug.foreign.plain_pickle import NotPlain, bounded_memory, loads


class Command:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_loaded(protocol: int) -> None:
    plain = {"a": [1, -(2**70), 1.5, None, True], "b": ("x", "y", {"c": []})}
    assert loads(pickle.dumps(plain, protocol=protocol)) == plain


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_runs(protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "ran"
    data = pickle.dumps({"entries": [Command(file)]}, protocol=protocol)
    with pytest.raises(NotPlain, match="names the global"):
        loads(data)
    assert not file.exists()
    pickle.loads(data)  # the twin: what a plain load does
    assert file.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x02" + b"(" * 1000 + b"]" * 10,
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pid\n.",
        b"\x80\x02",
        b"",
        b"\x80\x02\x8a\xff" + b"\xff" * 20,
    ],
)
def test_what_it_declares_is_not_taken(data: bytes) -> None:
    with bounded_memory(), pytest.raises(NotPlain):
        loads(data)


def test_depth_is_no_trouble() -> None:
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    found = loads(deep)
    assert isinstance(found, list)
