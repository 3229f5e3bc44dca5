"""Which flags of Python keep the hook out, and which only look like it."""

from __future__ import annotations

import pytest

from debugger.supervisor.reach import _isolating_flag


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("-I train.py", "-I"),
        ("-uE train.py", "-E"),
        ("-X dev -S -m train", "-S"),
        ("-Wignore -I -c pass", "-I"),
        ("--check-hash-based-pycs always -I train.py", "-I"),
        ("train.py -I", None),
        ("-m train -E", None),
        ("-c pass -S", None),
        ("-u -W ignore train.py", None),
        ("-XIS train.py", None),
        ("-", None),
        ("", None),
    ],
)
def test_flags(words: str, flag: str | None) -> None:
    assert _isolating_flag(("python", *words.split())) == flag
