"""Faults of links under `distdebug run --inject`, on tcp: what breaks a connection is named with
both of its ends, what only slows it down or heals is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

SCRIPT = Path(__file__).parents[1] / "ranks" / "scripts" / "linked.py"
PAIR = [0, 1]
TIMEOUT_S = 6
"""Of the group under test: long enough for a rank that has to wait for a processor."""


def run(directory: Path, size: int, faults: list[str], *arguments: str, **flags: str) -> runs.Run:
    given = [part for fault in faults for part in ("--inject", fault)]
    given += [part for name, value in flags.items() for part in (f"--{name}", value)]
    options = [*given, "-n", str(size), str(SCRIPT), *arguments]
    return runs.run("run", options, directory)


def fault_of(done: runs.Run) -> dict[str, Any]:
    [found] = done.report["injected"]
    return found


def finding_of(done: runs.Run) -> dict[str, Any]:
    assert len(done.errors) == 1, done.explain()
    return done.errors[0]


BREAKING = {
    "reset": "the connection between ranks 0,1 broke",
    "truncate": "the connection between ranks 0,1 broke",
    "corrupt": "the connection from rank 0 to rank 1 does not bring what was sent",
    "duplicate": "the connection from rank 0 to rank 1 does not bring what was sent",
    "drop": "the connection from rank 0 to rank 1 does not bring what was sent",
}
SHORT_BREAKING = {("reset", 2), ("corrupt", 4)}


def sized(names: Any, short: set[tuple[str, int]]) -> list[Any]:
    return [
        pytest.param(name, size, marks=[] if (name, size) in short else [pytest.mark.long])
        for name in names
        for size in (2, 4)
    ]


@pytest.mark.long
@pytest.mark.parametrize(("what", "size"), sized(BREAKING, SHORT_BREAKING))
def test_a_connection_that_breaks(what: str, size: int, tmp_path: Path) -> None:
    fault = f"link(0->1, {what}) @ frame 10"
    done = run(tmp_path, size, [fault])
    assert done.exit_code == 1, done.explain()
    found = finding_of(done)
    assert (found["kind"], found["culprits"]) == ("rank_exception", PAIR), done.explain()
    assert BREAKING[what] in found["message"]
    assert found["injected"] == fault
    assert fault_of(done)["times"] == 1
    assert f"{what} of frame 10 from rank 0 to rank 1" in fault_of(done)["where"]


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_a_message_whose_connection_breaks(size: int, tmp_path: Path) -> None:
    done = run(tmp_path, size, ["link(0->1, reset) @ frame 6"], "--calls", "2", "--messages", "20")
    found = finding_of(done)
    assert (found["kind"], found["culprits"]) == ("rank_exception", PAIR), done.explain()


SLOW = {
    "delay": "link(0->1, delay=5ms) @ frame 0..60",
    "rate": "link(0->1, rate=1M) @ frame 0..60",
    "partition": "partition({0}|{1}) @ 1s for 3s",
    "blackhole": "link(1->0, blackhole) @ 1s for 3s",
}
SHORT_SLOW = {("partition", 2), ("delay", 4)}


@pytest.mark.long
@pytest.mark.parametrize(("what", "size"), sized(SLOW, SHORT_SLOW))
def test_a_link_that_is_slow_or_heals(what: str, size: int, tmp_path: Path) -> None:
    """The twin of all the others, but for what happened: nothing is found."""
    arguments = ["--seconds", "4"] if "s for" in SLOW[what] else []
    done = run(tmp_path, size, [SLOW[what]], *arguments, "--messages", "5")
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert fault_of(done)["fired"], done.explain()


LASTING = {
    "blackhole": ("link(0->1, blackhole) @ frame 10..", ["--calls", "30"]),
    "partition": ("partition({0}|{1}) @ 1s", ["--seconds", "100"]),
    "message": ("link(0->1, blackhole) @ frame 6..", ["--calls", "2", "--messages", "30"]),
}
SHORT_LASTING = {("partition", 2)}


@pytest.mark.long
@pytest.mark.parametrize(("what", "size"), sized(LASTING, SHORT_LASTING))
def test_a_link_that_carries_nothing_more(what: str, size: int, tmp_path: Path) -> None:
    """Ends at the group's own timeout; both ends wait, and are named, not only one of them."""
    fault, arguments = LASTING[what]
    done = run(tmp_path, size, [fault], *arguments, "--timeout-s", str(TIMEOUT_S))
    assert done.exit_code == 93, done.explain()
    found = finding_of(done)
    assert (found["kind"], found["cause"]) == ("missing_rank", "unknown"), done.explain()
    assert found["culprits"] == PAIR, done.explain()
    assert not found["proven"]
    assert "nothing comes through between ranks 0 and 1" in found["message"]
    assert found["injected"] == fault


@pytest.mark.long
def test_a_partition_between_two_halves(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        4,
        ["partition({0,1}|{2,3}) @ 1s"],
        "--seconds",
        "100",
        "--timeout-s",
        str(TIMEOUT_S),
    )
    assert done.exit_code == 93, done.explain()
    found = finding_of(done)
    assert (found["kind"], found["cause"]) == ("missing_rank", "unknown"), done.explain()
    culprits = set(found["culprits"])
    assert culprits & {0, 1}, done.explain()
    assert culprits & {2, 3}, done.explain()


@pytest.mark.long
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 4])
def test_the_hang_timeout_ends_a_partition(size: int, tmp_path: Path) -> None:
    """Before the program's own timeout."""
    low, high = ("0", "1") if size == 2 else ("0,1", "2,3")
    partition = f"partition({{{low}}}|{{{high}}}) @ 1s"
    flags = {"hang-timeout": str(TIMEOUT_S)}
    done = run(tmp_path, size, [partition], "--seconds", "100", **flags)
    assert done.exit_code == 93, done.explain()
    found = finding_of(done)
    assert (found["kind"], found["cause"]) == ("missing_rank", "unknown"), done.explain()
    assert found["culprits"] == list(range(size)), done.explain()
    assert f"though all {size} ranks have entered it" in found["message"]


def test_another_backend_is_refused(tmp_path: Path, zygote: Zygote) -> None:
    flags = ["--inject", "link(0->1, reset) @ frame 10"]
    done = zygote.run(2, [str(SCRIPT), "--backend", "gloo"], tmp_path, flags)
    assert done.exit_code == 2, done.explain()
    assert "faults of links need the backend tcp" in done.stderr
    assert "the default group is on gloo" in done.stderr


@pytest.mark.long
def test_a_fault_that_never_happens_is_no_success(tmp_path: Path) -> None:
    done = run(tmp_path, 2, ["link(0->1, reset) @ frame 100000"])
    assert done.exit_code == 2, done.explain()
    assert not fault_of(done)["fired"]


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_the_program_without_faults(size: int, tmp_path: Path) -> None:
    """The twin."""
    done = run(tmp_path, size, [], "--messages", "20")
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
