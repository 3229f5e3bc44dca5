"""How the command and the ranks tell each other how far an install is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distdebug.record.requests import late_install
from distdebug.record.requests.late_install import HOOKED, RECORDING, Answer


def test_answers_are_read_as_they_were_given(tmp_path: Path) -> None:
    assert not late_install.is_wanted(tmp_path)
    late_install.want(tmp_path)
    assert late_install.is_wanted(tmp_path)
    told = Answer(11, HOOKED, 0, 2, "", {"0": 41, "tp": 3}, {"0": (0, 1), "tp": (0,)}, 0.4)
    other = Answer(12, HOOKED, 1, 2, "", {"0": 44}, {"0": (0, 1)}, 1.5)
    for one in (told, other):
        late_install.answer(tmp_path, one)
    assert late_install.answers(tmp_path) == {11: told, 12: other}
    assert late_install.started(tmp_path) is None
    after = late_install.first_common(late_install.answers(tmp_path))
    assert after == {"0": 44, "tp": 3}
    late_install.start(tmp_path, after)
    assert late_install.started(tmp_path) == after
    late_install.answer(tmp_path, Answer(11, RECORDING, 0, 2))
    assert late_install.answers(tmp_path)[11].state == RECORDING
    late_install.give_up(tmp_path)
    late_install.give_up(tmp_path)
    assert not late_install.is_wanted(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "won"},
        {"rank": 1 << 40},
        {"world_size": -3},
        {"seen": {"0": 1 << 70}},
        {"seen": 3},
        {"members": {"0": [None]}},
    ],
)
def test_what_is_no_answer_is_left_aside(tmp_path: Path, change: dict[str, object]) -> None:
    late_install.want(tmp_path)
    late_install.answer(tmp_path, Answer(11, HOOKED, 0, 2, seen={"0": 1}))
    path = late_install.folder(tmp_path) / "11.json"
    assert late_install.answers(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert late_install.answers(tmp_path) == {}
    path.write_text("[")
    assert late_install.answers(tmp_path) == {}
