"""Every command block of the README, and of the pages that it links, works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distdebug
from distdebug.commands import load
from distdebug.record.runs.artefact import SUFFIX
from tests.support import runs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HOME = "https://github.com/distdebug/distdebug"
"""Links of the first page are absolute, since it is also shown where the other pages are not."""
FILES = re.compile(
    r"https://(?:github\.com/distdebug/distdebug/blob|raw\.githubusercontent\.com/distdebug/distdebug)"
    r"/main/([^#]+)(?:#.*)?"
)
LINKED = re.compile(r"\]\(((?!https?:)[^)#]+\.md)\)")


def _pages(first: Path) -> list[Path]:
    """The page, and every page of the repository that can be reached from it by links."""
    found = [first]
    for page in found:
        text = page.read_text().replace(f"{HOME}/blob/main/", f"{ROOT}/")
        linked = [(page.parent / link).resolve() for link in LINKED.findall(text)]
        found += [link for link in dict.fromkeys(linked) if link not in found]
    return found


PAGES = _pages(ROOT / "README.md")
TEXT = "\n".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"^ *- run: (distdebug .*)$", TEXT, re.MULTILINE)
LINES = [*(line for block in BLOCKS for line in block.splitlines() if line), *STEPS]
COMMANDS = [re.split(r"\s# ", line)[0].strip() for line in LINES]
EXPECTED_CODES = {
    "distdebug demo": 91,
    "distdebug run -n 4 --inject ": 94,
    "distdebug run -n 4 --netns ": 1 if os.geteuid() == 0 else 2,
    "distdebug run ": 91,
    "distdebug plan -n 64 ": 91,
}


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900
    assert len((ROOT / "debugger" / "ARCHITECTURE.md").read_text().split()) <= 1300


def test_the_first_page_looks_the_same_on_a_package_index() -> None:
    """Every link and picture of it is absolute, and leads to a file that there is."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    for link in links:
        found = FILES.fullmatch(link)
        assert found is not None, link
        assert (ROOT / found[1]).is_file(), link


def test_the_project_has_one_address() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(url.startswith(HOME) for url in urls.values())
    page = urls["Changelog"].removeprefix(f"{HOME}/blob/main/")
    assert f"## {distdebug.__version__}" in (ROOT / page).read_text()


def test_the_workflow_keeps_what_a_run_leaves() -> None:
    assert [step for step in STEPS if " --ci " in step]
    assert f"*{SUFFIX}" in TEXT


def test_make_targets_exist() -> None:
    targets = [command for command in COMMANDS if command.startswith("make ")]
    assert {"make demo", "make test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "-n", *target.split()[1:]], cwd=ROOT, check=True, timeout=30)


SLOW = (
    "distdebug demo",
    "distdebug run -n 4 -",
    "distdebug run --",
    "distdebug exec ",
    "distdebug bench ",
)
"""Commands that start ranks again, after the first which does; what they show has short tests of
its own, so that of these only the words are read in `make test`."""


def test_words_of_slow_commands_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    slow = [command for command in COMMANDS if command.startswith(SLOW)]
    assert len(slow) >= 5
    for command in slow:
        _, name, *words = shlex.split(command, comments=True)
        asked = load(name)
        asked.parse(asked.parser(), words)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", ["few", pytest.param("all", marks=pytest.mark.long)])
def test_commands_run_in_order(which: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "fixtures" / "demo.py", tmp_path / "train.py")
    shutil.copy(ROOT / "fixtures/scripts/real/spawn_train.py", tmp_path / "train_spawn.py")
    path = f"{runs.DISTDEBUG.parent}{os.pathsep}{os.environ['PATH']}"
    for command in COMMANDS:
        if command.startswith(("make ", "pip install ")) or (
            which == "few" and command.startswith(SLOW)
        ):
            continue
        assert command.startswith("distdebug "), f"how is this to be tested: {command}"
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=runs.environment({"PATH": path}),
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        expected = next(
            (code for start, code in EXPECTED_CODES.items() if command.startswith(start)), 0
        )
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
