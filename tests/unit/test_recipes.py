"""The recipe of CONTRIBUTING.md for a new kind of finding is walked: with all of its steps the kind
is whole, and without one of them the checker names the file that lacks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import complete
from tests.support.importable import make_importable

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 4
RULE = '''"""A rule for this test alone."""

from __future__ import annotations

from ..facts.world import World
from ..findings import Finding
from ..limits import Candidate


def jokes(world: World) -> list[Candidate]:
    """One for each rank, at once."""
    found = Finding("practical_joke", "rank 0 plays a joke", (0,), observable_ns=world.now_ns)
    return [Candidate(found)]
'''
KIND = 'Kind("practical_joke", 93, Family.USE, "JOKE"),\n    Kind("not_in_group"'
STEPS = {
    "debugger/record/kinds.py": ('Kind("not_in_group"', KIND),
    "debugger/diagnosis/rules/practical_joke.py": ("", RULE),
    "debugger/diagnosis/diagnose.py": (
        "from .rules.p2p_mismatch import",
        "from .rules.practical_joke import jokes\nfrom .rules.p2p_mismatch import",
    ),
    "README.md": ("| `tool_error` |", "| `practical_joke` | a joke | 93 |\n| `tool_error` |"),
}
"""By file: what is there, and what is there instead."""
CALL = (
    "*candidates_of(endings, world),",
    "*candidates_of(endings, world),\n        *jokes(world),",
)
SEEN = """
import json
from distdebug.diagnosis.diagnose import diagnose
from distdebug.record.snapshot import Snapshot
from distdebug.reports import document, text
from pathlib import Path
found = diagnose(Snapshot(taken_ns=1, world_size=1, ranks={}, finished=True)).findings
made = document.build(
    command=[], run_dir=Path("x"), world_size=1, duration_s=1, outcome=found[0].kind,
    exit_code=found[0].exit_code, findings=[(found[0], None)], ranks={},
)
print(json.dumps([made["outcome"], made["exit_code"], text.render(made).splitlines()[0]]))
"""


def copied(target: Path, without: str = "") -> Path:
    """A copy of the checkout with all steps but one."""
    away = shutil.ignore_patterns("*.pyc.*", "benchmarks", "commands", "testing", "hook")
    shutil.copytree(ROOT / "debugger", target / "debugger", ignore=away)
    shutil.copy(ROOT / "README.md", target)
    for name, (there, instead) in STEPS.items():
        if name != without:
            path = target / name
            text = path.read_text() if path.exists() else ""
            assert there in text, f"{name} has changed: it has no {there!r}"
            text = text.replace(there, instead, 1) if there else instead
            path.write_text(text.replace(*CALL) if path.name == "diagnose.py" else text)
    return target


def test_a_kind_needs_few_files(tmp_path: Path) -> None:
    assert len(STEPS) <= MOST_FILES
    assert list(complete.of_kinds(copied(tmp_path))) == []
    make_importable(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["practical_joke", 93, "JOKE  rank 0 plays a joke"]


@pytest.mark.parametrize("without", STEPS)
def test_the_file_that_is_missing_is_named(tmp_path: Path, without: str) -> None:
    said = list(complete.of_kinds(copied(tmp_path, without)))
    where = without if not without.startswith("debugger/diagnosis/rules/") else complete.RULES
    assert any(sentence.startswith(where) for sentence in said), said


def test_a_table_of_kinds_is_found(tmp_path: Path) -> None:
    for name, text in (
        (complete.KINDS, (ROOT / complete.KINDS).read_text()),
        ("tui/colours.py", 'RED = {"deadlock": 1, "early_exit": 2, "stalled": 3}\n'),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (said,) = complete.tables_of_kinds(tmp_path)
    assert said.startswith("tui/colours.py:1: a table of kinds (deadlock, early_exit, stalled)")
