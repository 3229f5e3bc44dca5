"""What each rank did over the last 30 s, of made-up ranks; and the strips that are drawn of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.record.layout import Activity
from distdebug.record.snapshot import Process
from distdebug.tui.feed import Feed
from distdebug.tui.picture import Focus, RankRow, State, Timeline, Track
from distdebug.tui.screens import overview
from distdebug.tui.text import plain, width_of
from distdebug.tui.tracks import AXES_S, BINS, MOST_TRACKS, Tracks
from fixtures import recorded
from tests.unit.diagnosis.builder import Run, all_reduce, broadcast, recv, send

from .driver import a_year_later

S = 1_000_000_000
MS = 1_000_000


class Clocked(Run):
    """A run that knows when it began."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.started_ns = self.now_ns


def shown(run: Clocked, tracks: Tracks | None = None, over: bool = False) -> Timeline:
    """The strips of the run as it is now."""
    ranks = {
        number: replace(rank, started_ns=rank.started_ns or run.started_ns)
        for number, rank in run.snapshot().ranks.items()
    }
    found = (tracks or Tracks()).look(ranks, run.now_ns, over)
    assert found is not None
    assert all(len(track.letters) == BINS for track in found.tracks.values())
    return found


def short(track: Track) -> str:
    """The letters, each run of equal ones as one."""
    letters = track.letters
    return "".join(
        one for at, one in enumerate(letters) if not at or letters[at - 1] != one
    ).strip()


def at(track: Track, timeline: Timeline, ago_s: float) -> str:
    """What it did so long ago."""
    return track.letters[BINS - 1 - int(ago_s * 1e9 * BINS / timeline.span_ns)]


def test_all_wait_for_the_one_that_computes() -> None:
    run = Clocked(4)
    run.each(all_reduce(8))
    run.passes(2)
    run[0, 1, 3].calls(all_reduce(8), waits=True)
    run.passes(8)
    found = shown(run)
    assert found.span_ns == 15 * S
    assert {number: short(one) for number, one in found.tracks.items()} == {
        0: ".w",
        1: ".w",
        2: ".",
        3: ".w",
    }
    assert found.tracks[0].waits == pytest.approx(0.8, abs=0.02)
    assert found.tracks[2].waits == 0


def test_a_call_that_all_are_in_is_no_wait() -> None:
    run = Clocked(2)
    run[0].calls(all_reduce(8), waits=True)
    run.passes(4)
    run[1].calls(all_reduce(8), waits=True)
    run.passes(4)
    found = shown(run)
    assert [short(found.tracks[n]) for n in (0, 1)] == ["wc", ".c"]
    # The same afterwards, when both calls are over.
    for number in (0, 1):
        run[number].goes_on()
    run.passes(2)
    again = shown(run)
    assert [short(again.tracks[n]) for n in (0, 1)] == ["wc.", ".c."]


def test_looks_add_up_to_what_one_look_finds() -> None:
    run, tracks = Clocked(3), Tracks()
    for step in range(40):
        slow = step % 3
        run[tuple(n for n in range(3) if n != slow)].calls(all_reduce(8), waits=True)
        shown(run, tracks)
        run.passes(0.4)
        run[slow].calls(all_reduce(8), waits=True)
        run.passes(0.1)
        shown(run, tracks)
        for number in range(3):
            run[number].goes_on()
        run.passes(0.2)
    shown(run, tracks)
    step_by_step, at_once = shown(run, tracks), shown(run)
    assert step_by_step.span_ns == at_once.span_ns == 30 * S
    for number in range(3):
        one, other = step_by_step.tracks[number], at_once.tracks[number]
        assert one.waits == pytest.approx(other.waits, abs=0.01)
        differ = sum(a != b for a, b in zip(one.letters, other.letters, strict=True))
        assert differ <= BINS // 20


def test_what_a_fast_ring_has_lost_was_seen_before() -> None:
    run, tracks = Clocked(2), Tracks()
    run[0].calls(all_reduce(8), waits=True)
    run.passes(10)
    shown(run, tracks)
    run[1].calls(all_reduce(8))
    run[0].goes_on()
    shown(run, tracks)
    run.passes(2)
    shown(run, tracks)
    for number in (0, 1):
        run[number].history.forgotten = 1
    assert short(shown(run, tracks).tracks[0]) == "w."
    # Who comes only now knows nothing of it.
    assert short(shown(run).tracks[0]) in ("", ".")


def test_a_call_in_the_background_is_no_call_to_be_in() -> None:
    run, tracks = Clocked(2), Tracks()
    run[0, 1].calls(all_reduce(8), is_async=True)
    run.passes(4)
    found = shown(run, tracks)
    assert [short(one) for one in found.tracks.values()] == ["=", "="]
    # Now it is waited for: all are there, so nobody waits for anybody.
    call = run[0].history.calls[0]
    run[0].waits_in(call)
    run.passes(4)
    shown(run, tracks)
    assert short(shown(run, tracks).tracks[0]) == "=c"
    run[0].goes_on()
    run.passes(2)
    # The record says nothing of a wait that is over; who has seen it remembers.
    assert short(shown(run, tracks).tracks[0]) == "=c."


def test_a_receive_waits_until_it_is_sent() -> None:
    run = Clocked(2)
    run[1].calls(recv(0), waits=True)
    run.passes(6)
    assert short(shown(run).tracks[1]) == "w"
    run[0].calls(send(1), waits=True)
    run.passes(6)
    found = shown(run)
    assert short(found.tracks[1]) == "wc"
    assert short(found.tracks[0]) == ".c"


def test_a_wait_that_was_broken_off_was_a_wait_to_its_end() -> None:
    run = Clocked(3)
    run[0, 1].calls(broadcast(8), waits=True)
    run.passes(9)
    for number in (0, 1):
        run[number].goes_on()  # the verdict was raised there
    assert short(shown(run).tracks[0]) == "w"


def test_breakpoints_and_the_making_of_groups() -> None:
    run, tracks = Clocked(2), Tracks()
    run[0].waits_in(Activity.PAUSED)
    run[1].waits_in(Activity.NEW_GROUP)
    run.passes(4)
    shown(run, tracks)
    run[0].goes_on()
    run[1].goes_on()
    run.passes(4)
    found = shown(run, tracks)
    assert [short(found.tracks[n]) for n in (0, 1)] == ["b.", "w."]


def test_a_rank_that_has_ended_does_nothing() -> None:
    run = Clocked(2)
    run.each(all_reduce(8))
    run.passes(2)
    run[1].process = Process(alive=False, exit_code=0, ended_ns=run.now_ns)
    run.passes(2)
    found = shown(run)
    assert short(found.tracks[1]) == "."
    assert at(found.tracks[1], found, 0.5) == " "
    assert at(found.tracks[0], found, 0.5) == "."
    # Of a run that is over the axis ends with its last process.
    run[0].process = Process(alive=False, exit_code=0, ended_ns=run.now_ns)
    run.passes(3600)
    assert at(shown(run, over=True).tracks[0], found, 0.1) == "."


def test_more_calls_than_are_read_are_more_of_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdebug.tui.tracks.MOST_CALLS", 128)
    run, tracks = Clocked(2), Tracks()
    for _ in range(3):
        for _ in range(200):
            run[0].calls(all_reduce(8), waits=True)
            run.passes(0.02)
            run[1].calls(all_reduce(8))
            run[0].goes_on()
        shown(run, tracks)
    found = shown(run, tracks)
    assert "w" in found.tracks[0].letters
    assert set(found.tracks[0].letters.strip()) <= {"w"}
    assert set(found.tracks[1].letters.strip()) <= {"."}


def test_a_world_without_rows_has_no_strips() -> None:
    run = Clocked(MOST_TRACKS + 1)
    assert Tracks().look(run.snapshot().ranks, run.now_ns, False) is None
    assert Tracks().look({}, run.now_ns, False) is None


def test_each_axis_is_a_multiple_of_the_last() -> None:
    assert all(longer % shorter == 0 for shorter, longer in itertools.pairwise(AXES_S))


@pytest.mark.parametrize(("name", "culprit"), [("straggler", 2), ("missing", 0)])
def test_of_a_recorded_run_the_culprit_alone_never_waits(
    name: str, culprit: int, tmp_path: Path
) -> None:
    run = recorded.unpack(name, tmp_path / "run")
    timeline = Feed(run.path, lambda _: None, a_year_later).look(Focus()).timeline
    assert timeline is not None
    waits = {number: track.waits for number, track in timeline.tracks.items()}
    assert waits.pop(culprit) < 0.05
    assert min(waits.values()) > 0.6


def test_a_strip_is_drawn_within_its_width() -> None:
    letters = "." * 60 + "w" * 60 + "=" * 60 + "c" * 60
    timeline = Timeline(30 * S, {0: Track(letters, 0.25, 0.25)})
    rows = [RankRow(0, State.WAITING, "waiting", culprit=True), RankRow(1, State.STARTING, "")]
    for width in (40, 79, 160):
        lines = [
            overview.legend(width, timeline.tracks.values()),
            *overview.strip_lines(timeline, rows, width, None),
            overview.axis(timeline, width),
        ]
        assert all(width_of(row) <= width for row in lines)
    # What took as long as another is shown in a fixed order: a wait first, blanks last.
    half = Timeline(30 * S, {0: Track(" ." * 120, 0.0, 0.0)})
    assert set(plain(overview.strip_lines(half, rows, 139, None)[0])[6:126]) == {"─"}
    drawn, unseen = map(plain, overview.strip_lines(timeline, rows, 79, None))
    assert drawn.split()[0] == "▸0"
    assert drawn.endswith(" 25% waiting")
    assert drawn.split()[1].lstrip("─").lstrip("▒").lstrip("═").strip("█") == ""
    assert unseen.split() == ["1", "nothing", "on", "record"]
    assert plain(overview.axis(timeline, 79)).split() == [
        "│-30",
        "s",
        "│-20",
        "s",
        "│-10",
        "s",
        "now",
    ]
    assert plain(overview.axis(timeline, 79, over=True)).endswith("end")
