"""The pages of the reference have each flag, kind, exit code, field, variable and argument."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.commands import COMMANDS, load
from distdebug.record.kinds import KINDS
from distdebug.testing import marks, run_fixture
from tests.support import reference
from tests.unit.diagnosis.builder import Run, all_reduce, barrier
from tests.unit.reports.documents import of_run

PAGES = reference.PAGES
ROOT = PAGES.parents[2]
SOURCES = [path for room in ("debugger", "distcore", "tui") for path in (ROOT / room).rglob("*.py")]
OF_TORCHRUN = {
    "--nnodes",
    "--node-rank",
    "--nproc-per-node",
    "--master-addr",
    "--max-restarts",
    "--rdzv-backend",
    "--rdzv-endpoint",
}


@pytest.mark.parametrize("name", reference.pages())
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (PAGES / name).read_text()
    assert written == reference.pages()[name], "run: python -m tests.support.reference"


def test_each_exit_code_has_its_row() -> None:
    codes = {kind.exit_code for kind in KINDS.values()}
    for path in SOURCES:
        codes |= set(map(int, re.findall(r"^EXIT_\w+ = (\d+)$", path.read_text(), re.MULTILINE)))
    assert codes <= reference.CODES.keys()


def test_each_variable_of_the_environment_is_on_its_page() -> None:
    name = re.compile(r"\b(?:DISTDEBUG|DISTCORE)_[A-Z_]*[A-Z]\b")
    used = {one for path in SOURCES for one in name.findall(path.read_text())}
    told = set(name.findall((PAGES / "environment.md").read_text()))
    assert used == told


@pytest.mark.parametrize("path", sorted(PAGES.parent.rglob("*.md")), ids=lambda path: path.stem)
def test_each_command_on_a_page_has_the_flags_that_it_is_given(path: Path) -> None:
    text = path.read_text().partition("## 0.1.0")[0]
    for name, rest in re.findall(r"\bdistdebug (\w+)((?: [^`\n|]*)?)", text):
        if name in COMMANDS and path.stem not in ("command-line", "changelog"):
            own = re.split(r" -- | exec | \S+\.py\b|\s# ", rest)[0]
            parsers = [load(name).parser()]
            for action in parsers[0]._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
            known = OF_TORCHRUN.union(*(one._option_string_actions for one in parsers))
            assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", own)) <= known, f"{name}{rest}"


def test_each_argument_of_the_plugin_is_on_its_page() -> None:
    text = (PAGES / "pytest.md").read_text()
    takes = inspect.signature(run_fixture.RunScript.__call__).parameters
    expects = inspect.signature(run_fixture.Report.expect).parameters
    wanted = {*marks._NAMES, *takes, *expects} - {"self", "script", "arguments", "kind"}
    for name in wanted:
        assert re.search(rf"`{name}\b", text), name


def test_the_schema_has_every_field_of_a_report() -> None:
    run = Run(2)
    run[0].calls(all_reduce(8), waits=True)
    run[1].calls(barrier(), waits=True)
    reference.check(json.loads(json.dumps(of_run(run))))


def test_the_schema_is_printed() -> None:
    words = [sys.executable, "-m", "distdebug", "report", "--schema"]
    assert (
        json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        == reference.SCHEMA
    )
