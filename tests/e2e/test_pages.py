"""Pages for users: each kind of finding has one, whose program prints what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from distdebug.commands.explain import PAGES, page
from distdebug.record.kinds import KINDS
from tests.support.zygote import Zygote

HOWTO = PAGES.parent / "howto"
REFERENCE = {"changelog", "formats"}
TEXTS = [path for path in sorted(PAGES.parent.rglob("*.md")) if path.stem not in REFERENCE]
MOST_WORDS = 700
NO_PROGRAM = {
    "node_lost": "takes two nodes: tests/e2e/test_nodes.py",
    "tool_error": "no program has it: tests/e2e/test_own_faults.py",
}
SHORT = {"op_mismatch", "deadlock", "unwaited_work", "nan"}
"""Each of another form: sides, a cycle, a warning, a check."""
WITH_PROGRAM = [
    pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long])
    for name in KINDS
    if name not in NO_PROGRAM
]
CHANGING = [
    (r"\n {4,}", " "),  # where a sentence is broken depends on the width
    (r"\(pid \d+\)", "(pid N)"),
    (r"\d+(\.\d+)? (ms|s)\b", "TIME"),
    (r"\d+(\.\d+)?(%| times)", "MANY"),
    (r"\d+ of \d+ collectives|\(message #\d+\)", "MANY"),
    (r"evidence: \S+", ""),
    (r"\S*/train\.py", "train.py"),
]


def told(report: str) -> tuple[str, set[str]]:
    """Returns the verdict's sentence, without what is another one at each run, and the ranks that
    are marked. In which state ranks are by then is a question of the moment."""
    for pattern, stands_for in CHANGING:
        report = re.sub(pattern, stands_for, report)
    sentence, *rows = re.split(r"\n {2}(?=\S)", report.strip())
    marked = {" ".join(row.split()[:2]) for row in rows if "<- look here" in row}
    warnings = [row for row in rows if row.startswith("warning: ")]
    return " ".join([sentence, *warnings]), marked


def test_every_kind_has_a_page_and_every_page_a_kind() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(KINDS)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_page_is_short_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    assert len(text.split()) <= MOST_WORDS
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (path.parent / link).is_file(), link


@pytest.mark.parametrize("name", KINDS)
def test_the_page_of_a_kind_says_what_to_do(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {name}: ")
    code = KINDS[name].exit_code
    assert f"Exit code {code}." in text if code else "does not change the exit code" in text
    assert "## Usual causes, and how to mend them" in text
    assert "## What it is not" in text
    assert ("```python" in text) is (name not in NO_PROGRAM)


@pytest.mark.parametrize("name", WITH_PROGRAM)
def test_the_program_of_a_page_prints_what_the_page_says(
    name: str, tmp_path: Path, zygote: Zygote
) -> None:
    _run_as_shown(page(name), KINDS[name].exit_code, tmp_path, zygote)


def test_the_program_that_hangs_prints_what_the_page_says(tmp_path: Path, zygote: Zygote) -> None:
    _run_as_shown((HOWTO / "hangs.md").read_text(), 91, tmp_path, zygote)


def _run_as_shown(text: str, exit_code: int, tmp_path: Path, zygote: Zygote) -> None:
    program, shown = re.findall(r"```(?:python|console)\n(.*?)```", text, re.DOTALL)
    command, _, report = shown.partition("\n")
    words = shlex.split(command.removeprefix("$ distdebug run -n "))
    script = tmp_path / "train.py"
    script.write_text(program)
    done = zygote.run(int(words[0]), [str(script)], tmp_path, words[1:-1])
    assert done.exit_code == exit_code, done.explain()
    assert told((done.directory / "report.txt").read_text()) == told(report)
