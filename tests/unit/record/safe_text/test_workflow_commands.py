"""No piece of text becomes a command to a CI system, however it is cut; nothing else is changed."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from distdebug.record.safe_text.workflow_commands import Defused


def written(*pieces: str) -> str:
    stream = io.StringIO()
    defused = Defused(stream)
    for piece in pieces:
        defused.write(piece)
    return stream.getvalue()


def obeyed(text: str) -> list[str]:
    """The lines that GitHub's runner takes for commands (`ActionCommand.TryParseV2`, `TryParse`),
    and Azure's and TeamCity's."""
    return [
        line
        for line in re.split("\r\n|\r|\n", text)
        if line.strip().startswith("::") or re.search(r"##(vso|teamcity)?\[", line)
    ]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["::stop-commands::x\n"], ":\\x3astop-commands::x\n"),
        (["a\n  ::error::x\n"], "a\n  :\\x3aerror::x\n"),
        ([":", ":error::x"], ":\\x3aerror::x"),
        (["50 %\r::error::x"], "50 %\r:\\x3aerror::x"),
        (["a ##[add-mask]x"], "a ##\\x5badd-mask]x"),
        (["##v", "so[task.setvariable]x"], "##vso\\x5btask.setvariable]x"),
    ],
)
def test_what_would_be_a_command(pieces: list[str], shown: str) -> None:
    assert obeyed("".join(pieces))
    assert written(*pieces) == shown


@pytest.mark.parametrize(
    "text",
    ["std::vector\n", "a ::error::x\n", "# [x]\n", ": :\n", "[rank 0] ::error::x\n", "## a [b]\n"],
)
def test_what_would_be_none_stays_as_it_is(text: str) -> None:
    assert not obeyed(text)
    assert written(text) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(st.text(st.sampled_from(":# \n\r\t[vsox\u2028\xa0"), max_size=70), max_size=8))
@example([" " * 200, "::x"])
def test_however_it_is_cut(pieces: list[str]) -> None:
    assert not obeyed(written(*pieces))
    assert written(*pieces) == written("".join(pieces))
