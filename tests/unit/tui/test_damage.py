"""Documents of a run that somebody has damaged: every screen is still drawn, with what is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdebug.tui.feed import Feed
from distdebug.tui.keys import VIEWS
from distdebug.tui.picture import Focus, Picture, Stage, State
from distdebug.tui.screens.base import Chosen
from distdebug.tui.screens.dialogs import finding_lines
from distdebug.tui.screens.rank import PARTS, RankView
from distdebug.tui.text import Line, plain
from distdebug.tui.widgets.header import banner_lines, header_lines
from fixtures import recorded

from .driver import a_year_later

HUGE = 10**400
ODD: dict[str, Any] = {
    "infinite": float("inf"),
    "not a number": float("nan"),
    "huge": HUGE,
    "negative": -HUGE,
    "text": "\x1b[31m[red]x\n宽",
    "list": [1, ["a"], None],
    "object": {"a": {"b": 1}},
    "true": True,
    "nothing": None,
}


def _with_values(value: Any, odd: Any) -> Any:
    """The document with the value in the place of every leaf."""
    if isinstance(value, dict):
        return {key: _with_values(one, odd) for key, one in value.items() if key != "schema"} | (
            {"schema": value["schema"]} if "schema" in value else {}
        )
    return [_with_values(one, odd) for one in value] if isinstance(value, list) else odd


def _with_odd_fields(value: Any, odd: Any) -> Any:
    """The document with the value in the place of every field at its top, and of rank numbers."""
    return {key: one if key == "schema" else odd for key, one in value.items()} | {
        "ranks": {"9" * 5000: {"state": odd}, "-1": odd, "x": odd, "٣": {}}
    }


def _damage(path: Path, change: Callable[[Any], Any]) -> None:
    rows = [one for one in path.read_text().splitlines() if one]
    if path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    else:
        path.write_text("".join(json.dumps(change(json.loads(one))) + "\n" for one in rows))


def _every_screen(path: Path) -> tuple[Picture, str]:
    """Each screen, each part of the rank's, drawn at the smallest size; the text of all of it."""
    feed = Feed(path, lambda _: None, a_year_later)
    chosen = Chosen()
    drawn: list[Line] = []
    for kind in VIEWS:
        view = kind(chosen)
        for part in PARTS if isinstance(view, RankView) else ("",):
            if isinstance(view, RankView):
                view.part = part
            for _ in range(2):  # the second with the rank that the first has chosen
                picture = feed.look(view.focus())
                body = view.body(picture, 80, 24)
            drawn += [*body.top, *body.lines, *body.below]
    drawn += header_lines(picture, [], "", "", 80) + banner_lines(picture, 80)
    drawn += finding_lines(picture, 80)
    return picture, "\n".join(map(plain, drawn))


@pytest.mark.parametrize("name", ["run.json", "report.json", "host.jsonl", "exits.jsonl"])
@pytest.mark.parametrize("change", [_with_values, _with_odd_fields])
@pytest.mark.parametrize("odd", ODD)
def test_a_document_with_odd_values(
    tmp_path: Path, name: str, change: Callable[[Any, Any], Any], odd: str
) -> None:
    run = recorded.unpack("died", tmp_path / "run").path
    _damage(run / name, lambda value: change(value, ODD[odd]))
    picture, text = _every_screen(run)
    assert "cannot be read" not in picture.problem
    assert "\x1b" not in text
    assert picture.calls == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": "distdebug.report/9", "outcome": "ok"}', "another version"),
        ('{"schema": 3}', "damaged"),
        ("{", "damaged"),
        ("", "damaged"),
    ],
)
def test_a_report_that_is_of_no_use(tmp_path: Path, text: str, why: str) -> None:
    run = recorded.unpack("died", tmp_path / "run").path
    (run / "report.json").write_text(text)
    picture, shown = _every_screen(run)
    assert picture.stage is Stage.ENDED  # nobody has killed distdebug: it has left a report
    assert why in shown
    assert picture.verdict is not None
    assert picture.verdict.kind == "rank_died"
    assert picture.outcome == ""


def test_a_rank_whose_record_cannot_be_read_is_not_starting(tmp_path: Path) -> None:
    run = recorded.unpack("died", tmp_path / "run").path
    before = _every_screen(run)[0].states
    (run / "ranks" / "0.flight").write_bytes(b"nothing of ours")
    states = _every_screen(run)[0].states
    assert states[0] is State.UNSEEN
    assert {**states, 0: before[0]} == before
    assert State.UNSEEN not in before.values()


def test_a_path_that_nobody_may_look_at(tmp_path: Path) -> None:
    picture = Feed(tmp_path / ("x" * 300), print, a_year_later).look(Focus())
    assert "cannot be read: file name too long" in picture.problem


def test_the_same_run_undamaged(tmp_path: Path) -> None:
    run = recorded.unpack("died", tmp_path / "run").path
    picture, _ = _every_screen(run)
    assert (picture.stage, picture.problem, picture.calls) == (Stage.ENDED, "", 5)


@pytest.mark.parametrize("odd", ODD)
def test_stacks_with_odd_values(tmp_path: Path, odd: str) -> None:
    run = recorded.unpack("mismatch", tmp_path / "run").path
    frame = {"threads": [{"name": "a", "ranks": [2], "tree": [{"ranks": [2], "frames": ODD[odd]}]}]}
    (run / "stacks" / "stacks.json").write_text(json.dumps(frame))
    picture, _ = _every_screen(run)
    assert "cannot be read" not in picture.problem
