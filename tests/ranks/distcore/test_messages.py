"""Messages between ranks of which one is killed: who is named, how soon, and what still arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.crew import Crew
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "distcore_messages.py"
BOUND_S = 20.0
"""For what should be known within a tenth of a second, on a machine that is busy."""
SHORT, LONG = 2_000, 300_000
"""Elements: sent at once, but not buffered; and not sent before the receive is posted."""


@pytest.fixture(params=["tcp", "auto"])
def crew(
    request: pytest.FixtureRequest, tmp_path: Path, torch_loaded: TorchLoaded
) -> Iterator[Crew]:
    with Crew(torch_loaded, tmp_path, 4, {"DISTCORE_TRANSPORT": request.param}, SCRIPT) as made:
        made.everyone("init", path=str(tmp_path / "store"))
        yield made


def kill(crew: Crew, rank: int) -> float:
    """When."""
    crew.until_it_waits()
    crew.signal(rank, signal.SIGKILL)
    return time.monotonic()


def connect(crew: Crew, source: int, dst: int) -> None:
    """By a message."""
    crew.tell([source], "send", dst=dst)
    assert crew.ask([dst], "receive", src=source)[0]["right"]
    assert crew.answer(source)["kind"] == ""


def check_loss(found: Any, victim: int, what: str, killed_s: float) -> None:
    assert found["kind"] == "PeerLost", found
    assert found["culprit"] == victim
    lost = f"rank {victim} was lost in {what}"
    gone = f"{what}: group '0': rank {victim} (pid "  # killed before the first message reached it
    assert lost in found["text"] or found["text"].startswith(gone), found
    assert found["at_s"] - killed_s < BOUND_S


def test_the_partner_of_a_receive_is_killed(crew: Crew) -> None:
    """Whether it has ever sent something or not; the others can go on."""
    for rank in (0, 1):
        connect(crew, 3, rank)
    for victim in (2, 3):
        crew.tell([0, 1], "receive", src=victim)
        killed_s = kill(crew, victim)
        for rank in (0, 1):
            what = f"recv(src={victim}, int64[8], tag=0)"
            check_loss(crew.answer(rank), victim, what, killed_s)
    connect(crew, 0, 1)


def test_the_partner_of_a_send_is_killed(crew: Crew) -> None:
    """A send that was buffered before is over; one to a rank that is dead is lost, though small."""
    for rank in (0, 1):
        crew.tell([rank], "send", dst=2)
        assert crew.answer(rank)["kind"] == ""
    for victim, elements in ((2, SHORT), (3, LONG)):
        crew.tell([0, 1], "send", dst=victim, elements=elements)
        killed_s = kill(crew, victim)
        for rank in (0, 1):
            what = f"send(dst={victim}, int64[{elements}], tag=0)"
            check_loss(crew.answer(rank), victim, what, killed_s)
            [found] = crew.ask([rank], "send", dst=victim)
            check_loss(found, victim, f"send(dst={victim}, int64[8], tag=0)", found["at_s"])


def test_what_a_killed_rank_has_sent_arrives(crew: Crew) -> None:
    """Also over a connection that was dialled just before."""
    count = 20
    for victim in (3, 2, 1):
        if victim > 1:
            crew.tell([0], "receive", src=victim, tag=0)
        crew.tell([victim], "send_and_die", dst=0, count=count)
        crew.wait_for_end(victim)
        if victim > 1:
            assert crew.answer(0)["right"]
        for tag in range(victim > 1, count):
            [found] = crew.ask([0], "receive", src=victim, tag=tag)
            assert found["kind"] == "", found
            assert found["right"]
        [found] = crew.ask([0], "receive", src=victim, tag=count)
        assert found["kind"] == "PeerLost"
        assert found["culprit"] == victim


@pytest.mark.parametrize("connected", [False, True])
def test_the_first_of_a_chain_is_named(crew: Crew, connected: bool) -> None:
    """Each waits for the one before it, and ends when it is told."""
    if connected:
        for rank in (1, 2, 3):
            connect(crew, rank - 1, rank)
    for rank in (1, 2, 3):
        crew.tell([rank], "receive", src=rank - 1)
    kill(crew, 0)
    for rank in (1, 2, 3):
        found = crew.answer(rank)
        assert found["kind"] == "PeerLost", found
        assert found["culprit"] == 0, found
        assert "rank 0 was lost in recv(src=0" in found["text"]
        crew.tell([rank], "exit")


def test_the_first_of_a_chain_is_named_to_one_that_was_not_run(crew: Crew) -> None:
    """It hears of the failure behind which the one that it waits for has left."""
    crew.signal(2, signal.SIGSTOP)
    for rank in (1, 2):
        crew.tell([rank], "receive", src=rank - 1)
    kill(crew, 0)
    assert crew.answer(1)["culprit"] == 0
    crew.tell([1], "exit")
    time.sleep(1.0)  # for so long it is given no core
    crew.signal(2, signal.SIGCONT)
    found = crew.answer(2)
    assert (found["kind"], found["culprit"]) == ("PeerLost", 0), found


def test_one_that_left_rightly_is_not_named(crew: Crew) -> None:
    """The twin: rank 0 is through, rank 1 fails later and by itself."""
    connect(crew, 0, 2)
    crew.tell([0], "exit")
    crew.wait_for_end(0)
    crew.tell([2], "receive", src=1)
    kill(crew, 1)
    found = crew.answer(2)
    assert (found["kind"], found["culprit"]) == ("PeerLost", 1), found


def test_a_message_from_a_rank_whose_collective_has_failed(crew: Crew) -> None:
    """It lives on, and will never send: who waits is told at once, and why."""
    connect(crew, 1, 2)
    crew.tell([1, 3], "all_reduces")
    crew.tell([2], "receive", src=1)
    killed_s = kill(crew, 0)
    found = crew.answer(2)
    assert (found["kind"], found["culprit"]) == ("PeerLost", 0), found
    assert "rank 0 was lost in all_reduce" in found["text"]
    assert found["at_s"] - killed_s < 1 + BOUND_S


@pytest.mark.long  # minutes: of what a message leaves behind there must be much to be seen
@pytest.mark.timeout(3600)
def test_a_million_messages_leave_nothing_behind(tmp_path: Path) -> None:
    script = SCRIPT.with_name("many_messages.py")
    words = [sys.executable, "-X", "dev", str(script)]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "store"), "1000000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[3])},
        )
        for rank in range(2)
    ]
    for rank in ranks:
        printed, said = rank.communicate()
        assert rank.returncode == 0, said
        assert "ResourceWarning" not in said
        early, late = json.loads(printed)
        assert late["blocks"] - early["blocks"] < 2_000
        assert late["bytes"] - early["bytes"] < 8_000_000
        assert late["descriptors"] == early["descriptors"]
        assert late["threads"] == early["threads"]
        assert early["in_dev_shm"] == late["in_dev_shm"] == []
