"""The table of faults in the reference is the table of actions."""

from __future__ import annotations

import re
from pathlib import Path

from distdebug.faults.actions import ACTIONS
from distdebug.faults.spec import usage

PAGE = Path(__file__).resolve().parents[3] / "debugger" / "docs" / "reference" / "faults.md"


def test_it_has_every_action_as_it_is() -> None:
    table = PAGE.read_text().split("| fault | what happens |\n|---|---|\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", table, re.MULTILINE)
    assert [(call.replace("\\|", "|"), words) for call, words in rows] == [
        (usage(action), action.help) for action in ACTIONS.values()
    ]
