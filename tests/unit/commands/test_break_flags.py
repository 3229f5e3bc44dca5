"""`--break` before the start: what can be known to be wrong is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.commands.options import places
from distdebug.errors import UsageError


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nstep = 1\n")
    return ["torchrun", str(script)]


def test_a_file_is_looked_for_beside_the_script(command: list[str]) -> None:
    assert places(["train.py:3@1", "all_reduce#2"], command, 2) == (
        f"{Path(command[1]).resolve()}:3@1",
        "all_reduce#2",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train.py:3@2", "there is no rank 2; ranks count from 0 to 1"),
        ("all_reduce#2@17", "there is no rank 17; ranks count from 0 to 1"),
        ("all_reduse#2", "there is no operation all_reduse; did you mean all_reduce?"),
        ("trian.py:3", "there is no file trian.py"),
        ("train.py:2", "line 2 has no code at which to stop; line 3 has"),
    ],
)
def test_what_cannot_be(command: list[str], text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"--break {text}: .*{says[:20]}") as refused:
        places([text], command, 2)
    assert says in str(refused.value)


def test_a_rank_of_a_world_whose_size_is_not_known(command: list[str]) -> None:
    assert places(["all_reduce#2@17"], command) == ("all_reduce#2@17",)
