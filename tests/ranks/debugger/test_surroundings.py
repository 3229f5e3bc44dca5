"""What a program sees of its process and of torch is what it would see without distdebug.

Everything that differs all the same is listed here, with the reason; what is not listed is equal.
"""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs

SCRIPT = Path(__file__).parents[1] / "scripts" / "surroundings.py"
Seen = dict[str, dict[str, dict[str, Any]]]

DIFFER = {
    "sys.meta_path": "the layer must hear of the import of torch",
    "sys.excepthook": "the exception that ends a rank is put on record before peers react to it",
    "threading.excepthook": "the same for threads",
    "sys.unraisablehook": "what an atexit handler lets out is told there alone",
    "faulthandler": "on which line a fatal signal came is known there alone",
    "os.wait*": "a child's exit status is told to its parent alone",
    "os._exit": "a rank that leaves without cleaning up says so first",
    "sys.exit": "the line that ends a rank is known there alone",
    "warnings.showwarning": "warnings go to the rank's log as well",
}
"""Answers that may differ in any way."""
NEW_VARIABLES = "DISTDEBUG_"
"""How child processes are reached. PYTHONPATH is the other way: it has our folder in front."""
OF_A_PROMPT = {"pdb", "readline", "rlcompleter"}
"""They are loaded when a rank first stops: from Python 3.13 on pdb changes readline for all."""
NEW_MODULES = {
    "_distdebug": "the layer, under a name that no program has",
}
TORCH_MODULES = "torch."
"""Parts of torch that the layer wraps are imported with it, rather than when they are used."""
NEW_DESCRIPTORS = 3
OUR_FILE = re.compile(r"^(\d+\.txt|\S+\.flight|\.lifeline)( \(deleted\))?, inheritable: False$")
"""The flight record, the file for stacks, and the lifeline: close-on-exec, all of them."""


def _seen(path: Path, command: list[str], extra: dict[str, str]) -> Seen:
    variables = runs.environment({"OMP_NUM_THREADS": "1", **extra})
    variables.pop("PYTEST_CURRENT_TEST")  # another one in each test
    done = subprocess.run(
        [*command, sys.executable, "-W", "ignore::ResourceWarning", str(SCRIPT), str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
        cwd=path.parent,
        env=variables,
        preexec_fn=_as_in_the_foreground,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Seen = json.loads(path.read_text())
    path.unlink()
    return found


def _as_in_the_foreground() -> None:
    """Who runs the tests by `nohup` or with `&` has these ignored, and hands that on."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all, since a program sees where it is."""
    found = tmp_path_factory.mktemp("surroundings")
    (found / "same").mkdir()
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[dict[str, str]], Seen]:
    """What the program sees without us, with these variables."""
    known: dict[str, Seen] = {}

    def seen(extra: dict[str, str]) -> Seen:
        asked = json.dumps(extra)
        if asked not in known:
            known[asked] = _seen(folder / "same" / "seen.json", [], extra)
        return copy.deepcopy(known[asked])

    return seen


@pytest.mark.parametrize(
    ("flags", "variables", "level"),
    [
        ([], {}, "DebugLevel.OFF"),
        # The variable as `run` sets it, whose ranks are all on this host.
        (["--debug-level", "DETAIL"], {"DISTDEBUG_ONE_HOST": "1"}, "DebugLevel.DETAIL"),
        pytest.param(
            *([], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "DebugLevel.DETAIL"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["default", "flag", "variable"],
)
def test_a_program_sees_what_it_would_see_alone(
    tmp_path: Path,
    folder: Path,
    alone: Callable[[dict[str, str]], Seen],
    flags: list[str],
    variables: dict[str, str],
    level: str,
) -> None:
    extra = {"PYTHONPATH": f":{folder / 'one'}::{folder / 'two'}", **variables}
    expected = alone({k: v for k, v in extra.items() if not k.startswith(NEW_VARIABLES)})
    command = [str(runs.DISTDEBUG), "exec", "--run-dir", str(tmp_path / "run"), *flags, "--"]
    below = _seen(folder / "same" / "seen.json", command, extra)
    assert below["with torch"]["torch"]["debug level"] == level
    for one in (expected, below):
        for moment in one.values():
            moment.get("torch", {}).pop("debug level", None)
    differences = []
    for moment, parts in expected.items():
        for part, answers in parts.items():
            for question, answer in answers.items():
                ours = below[moment][part][question]
                wrapped = "TORCH_DISTRIBUTED_DEBUG" in variables
                rest = _unexplained(question, answer, ours, wrapped)
                if rest:
                    differences.append(f"{moment}: {question}: {rest}")
    assert not differences, "\n".join(differences)


def _unexplained(question: str, alone: Any, below: Any, wrapped: bool) -> Any:
    """What of the difference between the two answers nobody has given a reason for. `wrapped`:
    alone, torch puts its own wrapper for DETAIL around the group, which has a network of its own.
    """
    if alone == below or question in DIFFER:
        return None
    match question:
        case "environment":
            new = {name for name in below.keys() - alone.keys() if name[:10] != NEW_VARIABLES}
            lost = alone.keys() - below.keys()
            other = {name for name in alone.keys() & below.keys() if alone[name] != below[name]}
            front, _, rest = below["PYTHONPATH"].partition(":")
            if front.endswith("/hook/site") and rest == alone["PYTHONPATH"]:
                other.discard("PYTHONPATH")
            return new | lost | other
        case "sys.modules":
            new = {name for name in set(below) - set(alone) if not name.startswith(TORCH_MODULES)}
            standard = sys.stdlib_module_names
            known = NEW_MODULES.keys() | (standard - OF_A_PROMPT)
            if sys.version_info < (3, 11):  # there sysconfig needs it to say where the library lies
                new = {name for name in new if not name.startswith("_sysconfigdata_")}
            return {name for name in new if name.split(".")[0] not in known} | (
                set(alone) - set(below)
            )
        case "descriptors":
            new = Counter(below.values())
            new.subtract(Counter(alone.values()))
            ours = {text: count for text, count in new.items() if count}
            more = {text: count for text, count in ours.items() if count > 0}
            fine = all(map(OUR_FILE.search, more)) and sum(more.values()) <= NEW_DESCRIPTORS
            return None if fine and (more == ours or wrapped) else ours
        case "atexit":
            return None if alone < below <= alone + 6 else (alone, below)
        case _:
            return (alone, below)
