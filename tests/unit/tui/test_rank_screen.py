"""The Rank screen, drawn without an app: its log, filters, and what is known of the process."""

from __future__ import annotations

from pathlib import Path

from distdebug.tui.picture import (
    LogLine,
    Picture,
    Progress,
    RankDetail,
    RankRow,
    Stage,
    State,
    Usage,
)
from distdebug.tui.rows import first_used, groups_of
from distdebug.tui.screens.base import Chosen
from distdebug.tui.screens.rank import RankView, about_lines
from distdebug.tui.text import Line, called_at, plain
from tests.unit.diagnosis.builder import WORLD, Run, all_reduce

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


def test_the_line_number_is_never_cut() -> None:
    call, site = "all_reduce(sum, float32[64,32,16])", "a_program_of_mine.py:1234 in step"
    assert called_at(call, site, 80) == f"  {call}  {site}"
    assert called_at(call, site, 66) == f"  {call}  a_program_of_mine.py:1234"
    assert called_at(call, site, 55) == f"  {call}  …_of_mine.py:1234"
    for width in range(20, 80):
        shown = called_at(call, site, width)
        assert ":1234" in shown
        assert len(shown) <= width
    assert called_at("", site, 66) == f"  {site}"
    assert called_at(call, "", 12) == "  all_reduc…"


def test_a_group_without_a_description_has_torchs_name() -> None:
    run = Run(2)
    run.ranks[0].has_group("7", [0, 1], desc="undefined")
    picture = Picture(Path("run"), states={0: State.COMPUTING}, ranks={0: run.ranks[0].frozen()})
    rows = [plain(one) for one in about_lines(picture, RankDetail(0), 80)]
    assert [one for one in rows if one.startswith("group 7 ")]
    assert not [one for one in rows if "undefined" in one]


def test_groups_of_one_description_have_numbers() -> None:
    run = Run(2)
    for name in ("7", "8"):
        run.ranks[0].has_group(name, [0, 1], desc="pair")
    run.ranks[0].has_group("9", [0, 1], desc="alone")
    ranks = {0: run.ranks[0].frozen()}
    groups = groups_of(ranks)
    assert [name for (name, _), _ in groups if name in "789"] == ["7", "8", "9"]
    assert [name for _, name in groups][-3:] == ["pair (1)", "pair (2)", "alone"]
    picture = Picture(Path("run"), states={0: State.COMPUTING}, ranks=ranks, groups=tuple(groups))
    rows = [plain(one) for one in about_lines(picture, RankDetail(0), 80)]
    for name in ("pair (1)", "pair (2)", "alone"):
        assert len([one for one in rows if one.startswith(f"group {name} ")]) == 1


def test_the_collectives_open_at_a_group_that_has_some() -> None:
    """All calls of a program with a device mesh are in the groups of its axes."""
    run = Run(2)
    for rank in run.ranks.values():
        rank.has_group("7", [0, 1], desc="mesh_dp")
    ranks = {number: rank.frozen() for number, rank in run.ranks.items()}
    keys = [key for key, _ in groups_of(ranks)]
    assert first_used(keys, ranks) == (WORLD, 0)
    run[1].calls(all_reduce(8), group="7")
    ranks = {number: rank.frozen() for number, rank in run.ranks.items()}
    assert first_used(keys, ranks) == ("7", 0)


def test_what_a_small_overview_has_no_column_for() -> None:
    usage = Usage(12.4, 3 << 30, 9, 77.0, 5 << 30)
    row = RankRow(0, State.COMPUTING, "", usage=usage, progress=Progress("41", "0.25"))
    picture = Picture(
        Path("run"),
        states={0: State.COMPUTING},
        ranks={0: Run(1).ranks[0].frozen()},
        rows={0: row},
    )
    rows = [plain(one).split() for one in about_lines(picture, RankDetail(0), 80)]
    for wanted in ("step 41", "loss 0.25", "cpu 12%", "memory 3.0G", "gpu 77%", "gpumem 5.0G"):
        assert wanted.split() in rows
