"""Widgets that draw, without an app: widths, cuts, cursors, and marks beside every colour."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.style import Style

from distdebug.record.layout import CallState
from distdebug.record.signature import Signature
from distdebug.record.snapshot import Call, CallSite
from distdebug.tui import text
from distdebug.tui.app import TerminalApp
from distdebug.tui.picture import Picture, Problem, Progress, RankRow, Source, Stage, State, Usage
from distdebug.tui.screens import collectives
from distdebug.tui.screens.columns import RankTable
from distdebug.tui.screens.rank import timeline_lines
from distdebug.tui.text import plain
from distdebug.tui.widgets import heat
from distdebug.tui.widgets.header import banner_lines, bar_lines, header_lines, missed_text
from distdebug.tui.widgets.sheet import palette_of, strip_of

PALETTE = {tone: Style() for tone in text.TONES}


def call(seq: int, issued_ms: int, took_ms: int | None, state: CallState) -> Call:
    return Call(
        number=seq,
        group=("0", 0),
        seq=seq,
        signature=Signature("all_reduce", (("float32", (4,)),), reduce_op="sum"),
        site=CallSite("/home/user/train.py", 7, "step"),
        thread=1,
        state=state,
        issued_ns=issued_ms * 10**6,
        completed_ns=(issued_ms + took_ms) * 10**6 if took_ms is not None else 0,
    )


@pytest.mark.parametrize("given", ["", "ab", "abcdef", "日本語です", "e\u0301a", "x" * 50])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 6, 10])
def test_fit_takes_exactly_its_cells(given: str, width: int) -> None:
    assert cell_len(text.fit(given, width)) == width
    assert cell_len(text.fit(given, width, right=True)) == width


@pytest.mark.parametrize("width", [20, 33, 80])
def test_wrap_keeps_every_word_within_the_width(width: int) -> None:
    sentence = "rank 2 calls broadcast(src=0, float32[1024]) " + "x" * 100 + " 日本語日本語日本語"
    rows = text.wrap(sentence, width)
    assert all(cell_len(row) <= width for row in rows)
    assert "".join("".join(rows).split()) == "".join(sentence.split())
    assert all(row.startswith("   ") for row in text.wrap("   " + sentence, width))


def test_wrap_of_nothing() -> None:
    assert text.wrap("", 10) == [""]


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [
        (-5, "0.0 ms"),
        (1_500_000, "1.5 ms"),
        (85_000_000, "85 ms"),
        (999_000_000, "999 ms"),
        (14_000_000_000, "14.0 s"),
        (187_000_000_000, "3m07"),
        (7_500_000_000_000, "2h05"),
        (273_600_000_000_000, "3d04h"),
    ],
)
def test_durations(time_ns: int, shown: str) -> None:
    assert text.duration(time_ns) == shown


@pytest.mark.parametrize("exponent", range(20))
def test_durations_and_sizes_stay_short(exponent: int) -> None:
    for factor in (1, 3, 9.99, 9.999999):
        assert len(text.duration(int(factor * 10**exponent))) <= 6 or exponent > 17
        assert len(text.size(factor * 10 ** min(exponent, 14))) <= 6


def test_clip_cuts_within_a_piece() -> None:
    row = text.line("abc", ("defgh", "bad"))
    assert text.clip(row, 6) == (("abc", ""), ("de…", "bad"))
    assert text.clip(row, 8) == row


def test_a_strip_is_as_wide_as_asked() -> None:
    for width in (1, 5, 40):
        strip = strip_of(text.line("日本語", ("abc", "bad")), PALETTE, Style(), width)
        assert strip.cell_length == width


def test_markup_is_text() -> None:
    strip = strip_of(text.line("[bold]x[/bold] :smile:"), PALETTE, Style(), 30)
    assert strip.text.rstrip() == "[bold]x[/bold] :smile:"


def test_every_state_has_a_letter_of_its_own() -> None:
    assert set(heat.LETTERS) == set(heat.TONE) == set(State)
    assert len(set(heat.LETTERS.values())) == len(State)
    assert len({symbol for symbol, _, _ in collectives.SYMBOLS.values()}) == len(
        collectives.SYMBOLS
    )


def test_the_heat_map() -> None:
    states = dict.fromkeys(range(130), State.COMPUTING)
    states[70] = State.DEAD
    lines = heat.heat_lines(states, 80, {70}, 3)
    assert [plain(row)[:7] for row in lines] == ["     0 ", "    64 ", "   128 "]
    assert plain(lines[1])[heat.LABEL + 6] == "X"
    assert ("X", "mark") in lines[1]
    assert ("·", "cursor") in lines[0]
    assert len(plain(lines[2])) == heat.LABEL + 2
    assert plain(heat.legend(states)) == "X dead 1  · computing 129"


@pytest.mark.parametrize(("width", "count"), [(10, 8), (70, 32), (80, 64), (250, 128)])
def test_ranks_in_a_row_of_the_map(width: int, count: int) -> None:
    assert heat.per_row(width) == count


def test_the_timeline() -> None:
    calls = [
        call(0, 0, 10, CallState.COMPLETED),
        call(1, 50, 10, CallState.FAILED),
        call(2, 90, None, CallState.STARTED),
    ]
    newest, failed, first = timeline_lines(calls, 100 * 10**6, 60, ended=False)
    assert plain(first).split()[:4] == ["#0", "10", "ms", "█·········"]
    assert plain(failed).split()[:4] == ["#1", "!", "10", "ms"]
    assert plain(newest).split()[:5] == ["#2", "…", "10", "ms", "·········█"]
    assert "no end" in plain(timeline_lines(calls, 10**12, 60, ended=True)[0])
    assert plain(timeline_lines([], 0, 60, ended=False)[0]) == "no calls on record"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["one", "other"], ["one", "other"]),
        (["pair", "world", "pair"], ["pair (1)", "world", "pair (2)"]),
        (["pair", "pair (1)", "pair"], ["pair (2)", "pair (1)", "pair (3)"]),
        (["tensor_parallel_1", "tensor_parallel_2"], ["tensor…lel_1", "tensor…lel_2"]),
        (["stage_1_of_pipes", "stage_2_of_pipes"], ["stag…pes (1)", "stag…pes (2)"]),
        (["日本語日本語です", "日本語日本語です"], ["日本 …す (1)", "日本 …す (2)"]),
        ([], []),
    ],
)
def test_no_two_names_look_alike(names: list[str], shown: list[str]) -> None:
    assert text.apart(names, 12) == shown
    assert all(cell_len(one) <= 12 for one in shown)


def test_many_groups_of_one_name() -> None:
    assert len(set(text.apart(["a_mesh_dimension"] * 1000, 12))) == 1000


def test_the_timeline_tells_groups_of_one_description_apart() -> None:
    calls = [
        replace(call(number, number, 1, CallState.COMPLETED), group=(str(number), 0))
        for number in range(3)
    ]
    groups = {("0", 0): "default_pg", ("1", 0): "pair", ("2", 0): "pair"}
    lines = timeline_lines(calls, 10**9, 80, ended=False, groups=groups)
    assert [plain(row).split("#")[0].strip() for row in lines] == [
        "pair (2)",
        "pair (1)",
        "default_pg",
    ]
    # The same group in many calls is one group.
    again = [replace(one, group=("1", 0)) for one in calls]
    lines = timeline_lines(again, 10**9, 80, ended=False, groups={("1", 0): "pair"})
    assert [plain(row).split("#")[0].strip() for row in lines] == ["pair"] * 3


@pytest.mark.parametrize(
    ("width", "shown"),
    [(19, "train.py:88 in step"), (18, "train.py:88"), (11, "train.py:88"), (8, "…n.py:88")],
)
def test_a_place_keeps_its_line_number(width: int, shown: str) -> None:
    assert text.place("train.py:88 in step", width) == shown


def test_the_header_says_what_colour_says() -> None:
    picture = Picture(directory=None, stage=Stage.KILLED, command="train.py", outcome="nan")  # type: ignore[arg-type]
    first, second, tabs = header_lines(
        picture, [("o", "Overview")], "Overview", missed_text(picture, picture, 3), 80
    )
    assert plain(first) == " KILLED  PAUSED, 3 newer  train.py"
    assert plain(second).split() == ["no", "report", "NAN"]
    assert plain(tabs) == " o Overview "


def test_a_frozen_screen_says_what_has_come_of_the_run() -> None:
    shown = Picture(directory=None, stage=Stage.LIVE)  # type: ignore[arg-type]
    verdict = Problem("op_mismatch", "error", "ranks disagree", (2,))
    found = replace(shown, found=(verdict,))
    ended = replace(found, stage=Stage.ENDED)
    assert missed_text(shown, ended, None) == ""
    assert missed_text(shown, shown, 0) == "PAUSED, 0 newer"
    assert missed_text(shown, found, 7) == "PAUSED, 7 newer; now MISMATCH"
    assert missed_text(shown, ended, 9) == "PAUSED, 9 newer; now ENDED MISMATCH"
    assert missed_text(found, ended, 9) == "PAUSED, 9 newer; now ENDED"


def test_the_banner_names_the_verdict_first_and_counts_the_rest() -> None:
    found = (
        Problem("straggler", "warning", "rank 3 is slow", (3,)),
        Problem("op_mismatch", "error", "ranks disagree " * 60, (2,)),
        Problem("rank_died", "error", "rank 1 died", (1,)),
    )
    picture = Picture(directory=None, found=found, faults=("0.flight: is cut", "x"))  # type: ignore[arg-type]
    rows = [plain(row) for row in banner_lines(picture, 60)]
    assert rows[0] == " MISMATCH   ▸ rank 2"
    assert rows[4].endswith("…")
    assert rows[-2:] == ["  and 1 more error and 1 warning", "! 0.flight: is cut (and 1 more)"]


def row(rank: int, call: str, culprit: bool = False, state: State = State.IN_CALL) -> RankRow:
    return RankRow(rank, state, state.value, call, site="train.py:7", culprit=culprit)


def test_the_verdicts_line_and_where_most_others_are_stand_below_it() -> None:
    verdict = Problem("op_mismatch", "error", "ranks disagree", (2,))
    rows = {0: row(0, "wait()"), 1: row(1, "a()"), 2: row(2, "b()", True), 3: row(3, "a()")}
    picture = Picture(directory=None, found=(verdict,), rows=rows)  # type: ignore[arg-type]
    assert [plain(one) for one in banner_lines(picture, 60)][1:] == [
        "  rank 2     b()  train.py:7  <- look here",
        "  ranks 1,3  a()  train.py:7",
    ]
    # Ranks that do what the culprit does are not blamed with it.
    alike = replace(picture, rows={**rows, 1: row(1, "b()"), 3: row(3, "b()")})
    assert [plain(one).split()[1] for one in banner_lines(alike, 60)[1:]] == ["2", "1,3"]
    # Where culprits differ, it is not known at which of them to look.
    two = replace(picture, found=(replace(verdict, culprits=(1, 2)),))
    assert len(banner_lines(two, 60)) == 1


def test_who_is_late_is_in_no_call() -> None:
    late = row(0, "a()", state=State.LATE)
    assert late.stood.doing == "late, last call a()"
    assert row(0, "a()").stood.doing == "a()"


def test_columns_stay_where_they_are() -> None:
    bare = RankRow(0, State.STARTING, "not seen yet")
    full = RankRow(
        0,
        State.IN_CALL,
        "in a call",
        call="all_reduce(sum)",
        seq=3,
        usage=Usage(12.0, 1 << 20, 3, 50.0, 1 << 30),
        progress=Progress("12", "0.5"),
    )
    picture = Picture(directory=None, rows={0: bare})  # type: ignore[arg-type]
    for width in (79, 119, 159):
        before, after = (RankTable(replace(picture, rows={0: one}), width) for one in (bare, full))
        assert before.head("rank", "↑") == after.head("rank", "↑")
        assert text.width_of(before.row(bare)) == text.width_of(after.row(full)) == width
    on_gpus = plain(RankTable(replace(picture, has_gpus=True), 159).head("rank", "↑"))
    assert on_gpus.split()[-4:] == ["cpu", "memory", "gpu", "gpumem"]
    plan = plain(RankTable(replace(picture, source=Source.PLAN), 159).head("rank", "↑"))
    assert plan.split()[-1] == "line"


def test_the_bar_knows_where_its_keys_are() -> None:
    keys = [("?", "help"), ("q", "quit"), ("X", "stop run")]
    (bar,), places = bar_lines(keys, 20)
    assert plain(bar) == " ? help  q quit "
    assert [plain(bar)[start:end].strip() for _, start, end, _ in places] == ["? help", "q quit"]
    bars, places = bar_lines(keys, 20, 2)
    assert [plain(one) for one in bars] == [" ? help  q quit ", " X stop run "]
    assert places[2] == (1, 0, 11, 2)


def test_keys_that_can_do_nothing_are_grey() -> None:
    ((help_key, help_word, stop_key, stop_word),), _ = bar_lines(
        [("?", "help"), ("X", "stop run")], 40, 1, {"X"}
    )
    assert (help_key[1], help_word[1]) == ("key", "")
    assert (stop_key[1], stop_word[1]) == ("dim", "dim")


def test_every_theme_has_every_tone_and_one_bar_for_the_cursor() -> None:
    row = tuple((tone or "plain", tone) for tone in text.TONES)
    for theme in TerminalApp(path=None).available_themes.values():  # type: ignore[arg-type]
        palette = palette_of(theme)
        assert set(palette) == set(text.TONES)
        strip = strip_of(row, palette, Style(color="red"), 90, cursor=True)
        (style,) = {segment.style for segment in strip}
        assert style is not None
        assert style.bgcolor != style.color
        assert not style.dim


def test_without_colours_nothing_is_grey_on_grey() -> None:
    for theme in TerminalApp(path=None).available_themes.values():  # type: ignore[arg-type]
        palette = palette_of(theme, colourless=True)
        assert set(palette) == set(text.TONES)
        assert all(style.color is None for style in palette.values())
        assert palette["bad"].bold
        assert palette["mark"].reverse
