"""The Rank screen, drawn without an app: its log, filters, and what is known of the process."""

from __future__ import annotations

from pathlib import Path

from tests.unit.diagnosis.builder import Run
from tui.picture import LogLine, Picture, RankDetail, Stage, State
from tui.screens.base import Chosen
from tui.screens.rank import RankView
from tui.text import Line, plain

LINES = (
    LogLine("[n:0] 12:00:00.000 trace   call", "trace"),
    LogLine("[n:0] 12:00:00.000 info    step step=1", "info"),
    LogLine(
        "[n:0] 12:00:01.000 error   exception", "error", ("    Traceback", "    ValueError: x")
    ),
    LogLine("[n:0] 12:00:02.000 fatal   the end", "fatal"),
)


def drawn(view: RankView, part: str, **fields: object) -> list[str]:
    detail = RankDetail(0, logs={"log": LINES, "stdout": (), "stderr": ()}, **fields)  # type: ignore[arg-type]
    view.part, view.source = part, "log"
    picture = Picture(
        Path("run"),
        stage=Stage.LIVE,
        states={0: State.COMPUTING},
        ranks={0: Run(1).ranks[0].frozen()},
        detail=detail,
    )
    lines: list[Line] = list(view.body(picture, 80, 24).lines)
    return [plain(one) for one in lines]


def test_a_record_keeps_what_stands_below_it() -> None:
    view = RankView(Chosen())
    assert drawn(view, "log")[2:] == [
        "[n:0] 12:00:01.000 error   exception",
        "    Traceback",
        "    ValueError: x",
        "[n:0] 12:00:02.000 fatal   the end",
    ]
    view.filter = "valueerror"
    assert drawn(view, "log")[0] == LINES[2].text
    assert len(drawn(view, "log")) == 3
    view.filter = ""
    for level, count in (("debug", 5), ("info", 5), ("warning", 4), ("error", 4)):
        view.level = level
        assert len(drawn(view, "log")) == count


def test_the_environment() -> None:
    environment = {"MASTER_ADDR": "no\x1bde", "TORCH_A_NAME_THAT_IS_LONGER_THAN_ITS_COLUMN": "7"}
    rows = drawn(RankView(Chosen()), "about", environment=environment)
    assert f"{'$MASTER_ADDR':<21}no\\x1bde" in rows
    at = rows.index("$TORCH_A_NAME_THAT_IS_LONGER_THAN_ITS_COLUMN")
    assert rows[at + 1] == f"{'':<21}7"
