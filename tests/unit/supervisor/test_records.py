"""Which processes belong to one world, and ranks that ended before torch was imported."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug import hook
from distdebug.diagnosis.diagnose import diagnose
from distdebug.diagnosis.facts.world import World
from distdebug.diagnosis.limits import Limits
from distdebug.record import layout
from distdebug.record.exits import ExitLog
from distdebug.record.layout import Phase, Role
from distdebug.record.reading.records import Records, _snapshot, worlds_of
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import Process, Rank, Snapshot
from distdebug.record.writing.writer import FlightWriter
from distdebug.supervisor.machine.processes import ProcessTable
from tests.unit.diagnosis.builder import Run


def waiting_at(job: str, *ranks: int, size: int = 3, formed: bool = False) -> list[Rank]:
    """Ranks of that job which live, one after the other started."""
    run = Run(size, joined=formed)
    rows = [(run.ranks.get(rank) or run.starts(rank)).frozen() for rank in ranks]
    return [replace(row, job=job, started_ns=100 + row.rank) for row in rows]


def numbers(views: list[Rank]) -> list[list[int]]:
    return [[view.rank for view in world] for world in worlds_of(views)]


def test_parts_of_one_world_that_wait_at_different_addresses() -> None:
    views = [*waiting_at("a:1", 0, 1), *waiting_at("a:2", 2)]
    assert numbers(views) == [[0, 1, 2]]


@pytest.mark.parametrize(
    "other",
    [
        waiting_at("a:2", 1, 2),
        waiting_at("a:2", 2, size=4),
        waiting_at("a:2", 2, formed=True),
        [replace(waiting_at("a:2", 2)[0], process=Process(alive=False, exit_code=0))],
    ],
    ids=["the same rank twice", "another size", "formed", "ended"],
)
def test_worlds_apart(other: list[Rank]) -> None:
    assert len(numbers([*waiting_at("a:1", 0, 1), *other])) == 2


@pytest.mark.parametrize("order", [1, -1])
def test_a_helper_that_has_inherited_the_name_of_a_rank_is_no_rival(order: int) -> None:
    rank, other = waiting_at("here", 0, 1)
    helper = replace(rank, pid=99, joins=False, waits=())
    (snapshot,) = _snapshots([*[rank, helper][::order], other])
    assert snapshot.ranks == {0: rank, 1: other}
    assert not snapshot.rivals


def test_two_that_join_as_one_rank_are_rivals() -> None:
    rank, other = waiting_at("here", 0, 1)
    (snapshot,) = _snapshots([rank, replace(rank, pid=99), other])
    assert [rival.pid for rival in snapshot.rivals] == [rank.pid]


def test_of_two_that_join_as_one_rank_the_one_that_stays_stands_for_it() -> None:
    """A program that a rank has started took its name, and is on its way out."""
    rank, other = waiting_at("here", 0, 1)
    nested = replace(rank, pid=99, started_ns=rank.started_ns + 1, phase=Phase.EXITING)
    (snapshot,) = _snapshots([rank, nested, other])
    assert (snapshot.ranks[0], snapshot.rivals) == (rank, (nested,))


def _snapshots(views: list[Rank]) -> list[Snapshot]:
    return [_snapshot(world, [], 1, None, False) for world in worlds_of(views)]


def test_an_exception_before_torch_is_imported(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs")
    script = tmp_path / "train.py"
    script.write_text("def plugins():\n    import there_is_no_such_module\n\nplugins()\n")
    environment = hook.environment(os.environ, directory.path, "")
    environment |= {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    done = subprocess.run([sys.executable, script], env=environment, timeout=100, check=False)
    directory.close()
    assert done.returncode == 1
    records = Records(directory.ranks)
    records.look()
    (snapshot,) = records.snapshots(finished=True)
    (found,) = diagnose(snapshot).findings
    assert (found.kind, found.culprits) == ("rank_exception", (1,))
    assert found.message == (
        "rank 1 raised ModuleNotFoundError: No module named 'there_is_no_such_module' "
        "at train.py:2 in plugins"
    )


def test_a_record_that_was_listed_before_anything_was_written_in_it(tmp_path: Path) -> None:
    """Its process was not given a core for a while; no name in the directory changes later."""
    ranks, elsewhere = tmp_path / "ranks", tmp_path / "elsewhere.flight"
    ranks.mkdir()
    path = ranks / "pid-1.flight"
    path.write_bytes(bytes(layout.FILE_BYTES))
    long_ago_ns = 10**18
    os.utime(ranks, ns=(long_ago_ns, long_ago_ns))
    records = Records(ranks)
    records.look()
    assert not records.readers
    FlightWriter(elsewhere, role=Role.FORKED_CHILD)
    with open(path, "r+b") as file:
        file.write(elsewhere.read_bytes())
    assert os.stat(ranks).st_mtime_ns == long_ago_ns
    records.look()
    assert [reader.role for reader in records.readers] == [Role.FORKED_CHILD]
    assert not records.faults


class Below:
    """What a `Launch` tells of the processes below it."""

    pid = 1

    def __init__(self, *pids: int) -> None:
        self.pids = pids

    def descendants(self) -> list[int]:
        return [self.pid, *self.pids]


@pytest.mark.parametrize("left_bytes", [0, 5000])
def test_a_record_cut_before_it_was_read_is_said_of_its_rank(
    left_bytes: int, tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(3):
        writer = FlightWriter(ranks / f"pid-{rank}.flight")
        writer.claim(rank, 3, rank, 0)
        writer.take_name(ranks / f"{rank}.flight")
    os.truncate(ranks / "1.flight", left_bytes)
    for name in ("2.before-9.flight", "pid-9.flight", "7.flight"):
        (ranks / name).write_bytes(b"")
    records = Records(ranks)
    records.look()
    (found,) = records.snapshots()
    assert (sorted(found.ranks), list(found.unreadable)) == ([0, 2], [1])
    assert World(found, None, Limits()).unrecorded == {1}
    # A process that takes the rank over finds nobody in what was left.
    again = FlightWriter(ranks / "pid-4.flight")
    again.claim(1, 3, 1, 0)
    again.take_name(ranks / "1.flight")
    records.look()
    (found,) = records.snapshots()
    assert (sorted(found.ranks), list(found.unreadable)) == ([0, 1, 2], [])


def test_a_process_that_is_still_starting() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        table = ProcessTable(ExitLog(), Below(busy.pid))  # type: ignore[arg-type]
        while not table.starting(frozenset()):
            continue
        while not table.starting(frozenset()):
            continue
        assert not table.starting({busy.pid})
        busy.kill()


def test_an_idle_process_is_not_starting() -> None:
    with subprocess.Popen(["sleep", "60"]) as idle:
        table = ProcessTable(ExitLog(), Below(idle.pid))  # type: ignore[arg-type]
        table.starting(frozenset())
        while table.starting(frozenset()):
            continue
        idle.kill()


def test_a_record_that_is_being_made_is_no_fault(tmp_path: Path) -> None:
    """A look comes between the making of the file and its header; then the rank learns its number,
    and its file has another name."""
    ranks = tmp_path / "run" / "ranks"
    ranks.mkdir(parents=True)
    records = Records(ranks)
    young = ranks / "pid-1.flight"
    young.touch()
    records.look()
    assert not records.faults
    young.write_bytes(b"something else's")
    records.look()
    assert list(records.faults) == ["pid-1.flight"]
    os.rename(young, ranks / "0.flight")
    records.look()
    assert list(records.faults) == ["0.flight"]
    os.unlink(ranks / "0.flight")
    records.look(again=True)
    assert not records.faults


def test_a_record_has_a_header_as_soon_as_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "pid-1.flight", []
    write = FlightWriter._write_header
    monkeypatch.setattr(
        FlightWriter, "_write_header", lambda self: [seen.append(path.exists()), write(self)]
    )
    FlightWriter(path)
    assert seen[0] is False
    assert [one.name for one in tmp_path.iterdir()] == ["pid-1.flight"]
    assert path.read_bytes().startswith(layout.MAGIC)
