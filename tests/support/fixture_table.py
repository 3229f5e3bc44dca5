"""The fixtures as those see them who run them all: names, what is expected, patient scripts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
BUGGY = ("buggy/",)
CORRECT = ("correct/", "real/")
Expected: TypeAlias = dict[str, Any]
"""One file of `fixtures/expected`."""
GIVES_UP = re.compile(r"\b(seconds=|timeout=|sleep\(|alarm\()([56][05])\b")
"""After so many seconds a fixture ends by itself; on a busy host that is before anybody has looked,
and here it is ten times as many."""


def expected(name: str) -> Expected:
    """What `fixtures/expected` has of it."""
    found: Expected = json.loads((FIXTURES / "expected" / f"{name}.json").read_text())
    return found


def names(folders: Sequence[str]) -> list[str]:
    """The fixtures whose script lies in one of these folders."""
    every = (path.stem for path in sorted((FIXTURES / "expected").glob("*.json")))
    return [name for name in every if expected(name)["script"].startswith(tuple(folders))]


def patient_scripts(folder: Path) -> Path:
    """All scripts, copied into this folder, with the patience to be looked at."""
    shutil.copytree(FIXTURES / "scripts", folder, dirs_exist_ok=True)
    for script in folder.rglob("*.py"):
        script.write_text(GIVES_UP.sub(r"\g<1>\g<2>0", script.read_text()))
    return folder
