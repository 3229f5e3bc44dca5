"""A thread that reads a run directory, again and again, and posts one frozen picture each time.

It takes at most a fifth of a core, however large the run: the next look waits at least four times
as long as the last one took. A run that is over is read and judged again only when its files
change.
"""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnosis.facts.last_heartbeat import as_it_was, standing_still
from ..diagnosis.facts.slips import Slips
from ..diagnosis.facts.waits import Waits, waits
from ..diagnosis.facts.world import World
from ..diagnosis.findings import Finding
from ..diagnosis.limits import Limits
from ..diagnosis.rules.misaligned import parting_of
from ..record import steady_clock
from ..record.exits import ExitLog
from ..record.layout import RING
from ..record.limits import MOST_RANKS
from ..record.reading.records import Records, newest_ranks
from ..record.requests.supervision import is_live
from ..record.runs.job_view import JobView
from ..record.runs.run_directory import RunDirectory, RunDirectoryError, read_object
from ..record.safe_files import mark_of
from ..record.snapshot import GroupKey, Process, Snapshot
from ..system.proc import DEAD_STATES, read_stat
from . import files, rows
from .files import source_of, told_in_report
from .limits import EVERY_S, FAR_ALIVE_NS, LATE_AFTER_NS, NOTICE_NS, OVER_EVERY_S, SMALL_S
from .picture import Focus, Picture, Problem, Progress, RankRow, Source, Stage, Usage
from .text import safe
from .tracks import Tracks

if TYPE_CHECKING:
    from .judging import LiveJudge


class Processes:
    """Answers for one run; asked only while the run lives on this host."""

    def __init__(self, exits: Path, steady: bool = False) -> None:
        self.exits = ExitLog(exits, steady)
        self._ended_ns: dict[tuple[int, int], int] = {}

    def observe(self, pid: int, start_ticks: int = 0) -> Process:
        """Returns what is known of the process that began at these clock ticks after boot."""
        stat = read_stat(pid)
        alive = (
            stat is not None
            and stat.state not in DEAD_STATES
            and start_ticks in (0, stat.start_ticks)  # else the pid was given to another process
        )
        if stat is not None and alive:
            return Process(alive=True, state=stat.state)
        seen_ns = self._ended_ns.setdefault((pid, start_ticks), steady_clock.now_ns())
        return self.gone(pid, seen_ns)

    def gone(self, pid: int, ended_ns: int | None = None, started_ns: int = 0) -> Process:
        """A process that is no more, with its exit status where its parent has told it."""
        status = self.exits.find(pid, started_ns)
        if status is None:
            return Process(alive=False, ended_ns=ended_ns)
        times = [one for one in (status.time_ns, ended_ns) if one]
        return Process(
            alive=False,
            exit_code=status.code,
            signal=status.signal,
            ended_ns=min(times) if times else None,
        )


SHARE = 4
"""A look is followed by a rest of so many times its own length."""
OVER = (Stage.ENDED, Stage.KILLED)
MOST_COMMAND = 2000
MOST_BRIEF = 4000
"""More calls are not read for the first screen, but for the second one, which follows at once."""

Post = Callable[[Picture], object]
Marks = tuple[object, ...]
"""Marks that change when the files of a run do."""


class Feed:
    """Reads one run directory. `look` may be called without the thread, as tests do."""

    def __init__(
        self, path: Path, post: Post, clock: Callable[[], int] = steady_clock.now_ns
    ) -> None:
        self.path = path
        self._post = post
        self._clock = clock
        self._focus = Focus()
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._run: _Run | None = None
        self._job: JobView | None = None
        self._picture = Picture(path)
        self._mark: object = None
        self.looks = 0
        """The number of pictures that the thread has posted."""

    def start(self) -> None:
        """Begin to read and post."""
        self._thread = threading.Thread(target=self._go_on, name="distdebug-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more; returns when the last look is over, or after a second."""
        self._ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
        if self._job is not None:
            self._job.close()

    def show(self, focus: Focus) -> None:
        """Tell the reader what the next pictures need; it reads at once."""
        if focus != self._focus:
            self._focus = focus
            self._wake.set()

    def _go_on(self) -> None:
        brief = True  # what the first screen can do without follows at once
        while not self._ending:
            self._wake.clear()
            began_s = time.monotonic()
            picture = (
                self.look(self._focus, brief, _marks(self.path))
                if brief
                else self.look_if_changed()
            )
            if picture is not None:
                with contextlib.suppress(RuntimeError):  # the app has just ended
                    self._post(picture)
                self.looks += 1
            took_s = time.monotonic() - began_s
            if brief:
                brief = False
                continue
            every_s = EVERY_S if self._picture.stage is Stage.LIVE else OVER_EVERY_S
            self._wake.wait(max(every_s - took_s, SHARE * took_s))

    def look_if_changed(self) -> Picture | None:
        """A picture, or None where nothing can have changed since the last one."""
        focus = self._focus  # which may change meanwhile
        over = self._picture.stage in OVER
        path = self._run.directory.path if self._run is not None else self.path
        marks = _marks(path) if over else None
        mark = (focus, marks) if over else None
        if over and mark == self._mark:
            return None
        self._mark = mark
        return self.look(focus, False, marks)

    def look(self, focus: Focus, brief: bool = False, marks: Marks | None = None) -> Picture:
        """Returns a picture of the run as it is now. Never raises: a fault is a state on the
        screen. A `brief` look at a live run makes no diagnosis of its own: that needs two looks
        anyway. `marks`, of before this look: a run that is over, and has the same ones as at the
        last look, is not read and judged again."""
        try:
            # `latest` may come to mean another run: this app stays with the one it has opened.
            if self._job is None:
                self._job = JobView(RunDirectory.open(self.path).path)
            directory = RunDirectory.open(self._job.path)
            if self._run is None or self._run.directory.path != directory.path:
                self._run = _Run(directory, self._clock)
            self._run.stale = bool(self._job.lost)
            seen = self._run.look(focus, brief, marks)
            self._picture = replace(seen, problem=seen.problem or self._job.sentence)
        except RunDirectoryError as error:
            problem = safe(error, 2000)
            if self._run is None:
                self._picture = Picture(self.path, problem=problem, now_ns=self._clock())
            else:
                gone = f"the run directory is no longer there ({problem}); this was seen last"
                self._picture = replace(self._picture, stage=Stage.GONE, problem=gone)
        except Exception as error:  # a damaged directory must not end the app
            sentence = f"the run cannot be read ({type(error).__name__}: {error})"
            self._picture = replace(self._picture, problem=safe(sentence, 2000))
        return self._picture


def _marks(path: Path) -> Marks:
    names = ("run.json", "report.json", "events.jsonl", "exits.jsonl", "host.jsonl", "ranks")
    more = ("stacks/stacks.json", "logs")
    return (is_live(path), *(mark_of(path / name) for name in (*names, *more)))


class _Run:
    """The state of a run that is kept between two looks."""

    def __init__(self, directory: RunDirectory, clock: Callable[[], int]) -> None:
        self.directory = directory
        self._clock = clock
        steady = is_live(directory.path)  # else it may have been before the host was booted
        self._own_faults: dict[str, str] = {}
        self._records = Records(directory.ranks, self._failed, steady, trusted=steady)
        self._processes = Processes(directory.exits, steady)
        self._host = files.HostSamples(directory.host)
        self._events = files.Events(directory.events)
        self._logs = files.RankLogs(directory.logs)
        self._judge: LiveJudge | None = None
        self._slips = Slips()
        self._own: tuple[list[Problem], list[str]] = ([], [])
        self._judged_s = (0.0, 0.0)
        self._documents: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._rates: list[tuple[int, int]] = []
        self._tracks = Tracks()
        self.stale = False
        """Whether it goes on, and what other nodes do is not seen any more."""
        self._kept: tuple[object, Picture, int] | None = None
        """For a run that is over, and any screen: what its files were, what they held, and when."""

    def _failed(self, part: str, error: Exception) -> None:
        """A rule, or the reading of one record, raised: the picture is made without it."""
        what = f"{type(error).__name__}: {error}"
        self._own_faults.setdefault(part, f"{part} failed, a bug of distdebug's ({what})")

    def look(self, focus: Focus, brief: bool, marks: Marks | None) -> Picture:
        """Read everything that has changed, and draw what the screen needs."""
        mark = (marks, self.stale)
        if marks is None or self._kept is None or self._kept[0] != mark:
            self._kept = (mark, *self._read(brief))
        _, picture, seen_ns = self._kept
        # The first screen does not wait for the strips where calls are many. Dumps do not say when
        # a call was over, on which strips are built.
        ranks = picture.ranks.values()
        late = brief and sum(min(rank.calls, RING) for rank in ranks) > MOST_BRIEF
        wanted = picture.source is not Source.DUMPS and not late
        if picture.timeline is None and wanted:
            over = picture.stage is not Stage.LIVE
            timeline = self._tracks.look(picture.ranks, picture.now_ns, over)
            picture = replace(picture, timeline=timeline)
        self._kept = (mark, picture, seen_ns) if picture.stage in OVER else None
        return self._draw(replace(picture, focus=focus), seen_ns)

    def _read(self, brief: bool) -> tuple[Picture, int]:
        """Reads what any screen shows, but for the strips; and the time at which the ranks were
        so."""
        run = self._document(self.directory.run_json)
        report_json = self.directory.report_json
        report, no_report = files.report_in(report_json, self._document(report_json))
        self._host.poll()
        self._events.poll()
        self._processes.exits.poll()
        self._records.look(again=bool(self._records.faults))
        now_ns = self._clock()
        limits = Limits.of_run(run)
        source = source_of(report)
        stage, snapshots = self._snapshots(run, bool(report or no_report), source, now_ns)
        # A damaged record may claim a world of two thousand million ranks.
        snapshots = [
            one if one.world_size <= MOST_RANKS else replace(one, world_size=0) for one in snapshots
        ]
        ended_ns = self._ended_ns(stage, run, report, snapshots)
        if stage is Stage.KILLED:
            now_ns = max((one.taken_ns for one in snapshots), default=now_ns)
        elif stage is Stage.ENDED:
            now_ns = ended_ns or now_ns
        if brief and stage is Stage.LIVE:
            found = list(self._events.found)
        else:
            supervised = run.get("supervised") is not False
            found = self._found(stage, snapshots, report, limits, supervised)
        # Our own notices are newer; else what the supervisor has said last.
        told = [text for at_ns, text in self._events.notices if now_ns - at_ns < NOTICE_NS]
        live = stage is Stage.LIVE
        notices = tuple(dict.fromkeys(self._own[1] or told)) if live else ()
        faults = (*no_report, *self._records.faults.values(), *self._own_faults.values())
        ranks = newest_ranks(snapshots)
        stand = stage is not Stage.ENDED or source.stands
        table = files.table_in(self.directory.traffic_text) if source is Source.PLAN else ()
        graph = waits(snapshots[-1], limits) if snapshots and stand else Waits()
        seen_ns = now_ns
        if source.stands and snapshots:
            # Of dumps whose verdict is an error nothing moves any more: who is waited for is late,
            # however soon after that the dumps were written.
            late = source is Source.DUMPS and any(one.is_error for one in found)
            seen_ns = snapshots[-1].taken_ns + (LATE_AFTER_NS if late else 0)
        return (
            Picture(
                directory=self.directory.path,
                now_ns=now_ns,
                stage=stage,
                command=safe(files.words(run.get("command")), MOST_COMMAND),
                host=safe(run.get("host", ""), 80),
                supervised=run.get("supervised") is not False,
                outcome=safe(report.get("outcome", ""), 40),
                exit_code=files.whole(report.get("exit_code")),
                started_ns=files.whole(run.get("started_ns")) or 0,
                ended_ns=ended_ns,
                world_size=max((one.world_size for one in snapshots), default=0),
                found=tuple(found),
                notices=notices,
                faults=tuple(map(safe, faults)),
                ranks=ranks,
                waits=graph,
                stood=files.stood_in_report(report),
                source=source,
                told=told_in_report(report),
                table=table,
            ),
            seen_ns,
        )

    def _document(self, path: Path) -> dict[str, Any]:
        mark = mark_of(path)
        known = self._documents.get(path)
        if known is None or known[0] != mark:
            known = self._documents[path] = (mark, read_object(path))
        return known[1]

    # -- what the records say ------------------------------------------------------------------

    def _snapshots(
        self, run: Mapping[str, Any], reported: bool, source: Source, now_ns: int
    ) -> tuple[Stage, list[Snapshot]]:
        path = self.directory.path
        if source.stands:
            now = self._records.snapshots(now_ns=now_ns)
            return Stage.ENDED, [as_it_was(one, self._processes.exits) for one in now]
        if reported:
            return Stage.ENDED, self._ended(now_ns)
        if is_live(path):
            return Stage.LIVE, self._records.snapshots(self._processes.observe, now_ns=now_ns)
        elsewhere = run.get("host") not in (None, platform.node())
        last_beat_ns = max((one.heartbeat_ns for one in self._records.readers), default=0)
        if elsewhere and now_ns - last_beat_ns < FAR_ALIVE_NS:
            return Stage.LIVE, self._records.snapshots(self._processes.observe, now_ns=now_ns)
        if run.get("supervised") is False:
            found = self._records.snapshots(self._processes.observe, now_ns=now_ns)
            if any(rank.process.alive for one in found for rank in one.ranks.values()):
                return Stage.LIVE, found
            return Stage.ENDED, self._ended(now_ns)
        now = self._records.snapshots(now_ns=now_ns)
        return Stage.KILLED, [as_it_was(one, self._processes.exits) for one in now]

    def _ended(self, now_ns: int) -> list[Snapshot]:
        """All processes are gone; how each of them ended is in exits.jsonl."""
        gone, found = self._processes.gone, []
        for one in self._records.snapshots(now_ns=now_ns, finished=True):
            ranks = {
                number: replace(
                    rank, process=gone(rank.pid, rank.process.ended_ns, rank.started_ns)
                )
                for number, rank in one.ranks.items()
            }
            found.append(replace(one, ranks=ranks))
        return found

    def _ended_ns(
        self,
        stage: Stage,
        run: Mapping[str, Any],
        report: Mapping[str, Any],
        snapshots: Sequence[Snapshot],
    ) -> int:
        started_ns = files.whole(run.get("started_ns"))
        duration_s = files.number(report.get("duration_s"))
        if started_ns and duration_s is not None:
            return started_ns + int(duration_s * 1e9)
        if stage is Stage.LIVE:
            return 0
        ranks = [rank for one in snapshots for rank in one.ranks.values()]
        return max((rank.process.ended_ns or rank.heartbeat_ns for rank in ranks), default=0)

    # -- what is wrong with it -----------------------------------------------------------------

    def _found(
        self,
        stage: Stage,
        snapshots: Sequence[Snapshot],
        report: Mapping[str, Any],
        limits: Limits,
        supervised: bool,
    ) -> list[Problem]:
        if report:
            return files.found_in_report(report)
        if self.stale:
            return list(self._events.found)
        from . import judging  # the diagnosis, whose import the first screen does not wait for

        if stage is not Stage.LIVE:
            before = [standing_still(one) for one in snapshots]
            own = judging.judge_once(snapshots, before, limits, self._failed)
            return judging.together(self._events.found, own, supervised=False)
        began_s = time.monotonic()
        at_s, took_s = self._judged_s
        if took_s < SMALL_S or began_s - at_s >= 2 * SHARE * took_s:
            self._judge = self._judge or judging.LiveJudge(self._failed)
            self._own = self._judge.look(snapshots, limits)
            self._judged_s = (began_s, time.monotonic() - began_s)
        return judging.together(self._events.found, self._own[0], supervised)

    # -- what is shown -------------------------------------------------------------------------

    def _draw(self, picture: Picture, seen_ns: int) -> Picture:
        """`seen_ns`: when the ranks stood as they do; of a plan that is the time of its model."""
        ranks, graph = picture.ranks, picture.waits
        numbers: Sequence[int] = sorted({*range(picture.world_size), *ranks})
        errors = [one for one in picture.found if one.is_error]
        over = picture.stage is not Stage.LIVE
        stopped = picture.outcome == "interrupted"
        states = {
            number: rows.state_of(ranks.get(number), graph, number, seen_ns, errors, over, stopped)
            for number in numbers
        }
        front = rows.fronts(ranks)
        lags = {number: rows.lag_of(rank, front) for number, rank in ranks.items()}
        culprits = picture.culprits
        shown: Sequence[int] = numbers
        if len(numbers) > rows.MOST_ROWS:
            shown = rows.odd_ones(states, culprits, lags)
            if picture.focus.rank is not None and picture.focus.rank in states:
                shown = list(dict.fromkeys([*shown, picture.focus.rank]))
        groups = dict(rows.groups_of(ranks))
        made: dict[int, RankRow] = {
            number: rows.row_of(
                number,
                ranks.get(number),
                states[number],
                graph,
                lags.get(number, 0),
                number in culprits,
                self._host.by_rank.get(number, Usage()),
                self._logs.progress(number) if number in ranks else Progress(),
                groups,
                picture.stood.get(number),
            )
            for number in shown
        }
        # What is not known is left out: of a plan the time, which is that of a model; of dumps the
        # number of a message, since a record that has lost its beginning does not tell how many
        # went before.
        for number, row in made.items():
            if picture.source is Source.PLAN:
                made[number] = replace(row, since_ns=0)
            elif picture.source is Source.DUMPS and row.is_message:
                made[number] = replace(row, seq=None)
        calls = sum(rank.calls for rank in ranks.values())
        backends = (group.backend for rank in ranks.values() for group in rank.groups.values())
        backend = safe(next(backends, ""), 40)
        picture = replace(
            picture,
            states=states,
            rows=made,
            groups=tuple(groups.items()),
            backend=backend,
            has_gpus=self._host.has_gpus,
            calls=calls,
            calls_per_s=self._rate(picture, calls),
        )
        focus = picture.focus
        if focus.view == "collectives" and picture.groups:
            names = dict(picture.groups)
            key = focus.group if focus.group in names else rows.first_used(names, ranks)
            assert key is not None
            first = [*sorted(picture.culprits), *picture.rows]
            parted = self._parting(Snapshot(seen_ns, picture.world_size, ranks), key)
            return replace(picture, matrix=rows.matrix_of(key, names[key], ranks, first, parted))
        if focus.view in ("rank", "stacks"):
            path = self.directory.stacks_json
            stacks = files.stacks_of(self._document(path), mark_of(path)[0])
            if focus.view == "stacks" or focus.rank is None:
                return replace(picture, stacks=stacks)
            rank = picture.ranks.get(focus.rank)
            detail = rows.detail_of(focus.rank, rank, self._logs)
            return replace(picture, stacks=stacks, detail=detail)
        return picture

    def _parting(self, snapshot: Snapshot, key: GroupKey) -> Finding | None:
        world = World(snapshot, None, Limits(), self._slips)
        try:
            found = (parting_of(world, view) for view in world.groups if view.key == key)
            return next(filter(None, found), None)
        except Exception as error:
            self._failed("where lines part", error)
            return None

    def _rate(self, picture: Picture, calls: int) -> float | None:
        """Calls per second of all ranks, over the last seconds; of a run that is over, in all."""
        if picture.stage is not Stage.LIVE:
            lasted_s = (picture.ended_ns - picture.started_ns) / 1e9
            return calls / lasted_s if picture.started_ns and lasted_s > 0 else None
        self._rates = [
            *(one for one in self._rates[-40:] if picture.now_ns - one[0] < 5_000_000_000),
            (picture.now_ns, calls),
        ]
        first_ns, first = self._rates[0]
        lasted_s = (picture.now_ns - first_ns) / 1e9
        # Of less than a second the rate would jump.
        return max(0, calls - first) / lasted_s if lasted_s >= 1.0 else None
