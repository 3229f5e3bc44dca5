"""Nodes whose wall clocks are seconds apart: no verdict changes, and nothing is told too late."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import fixture_table, runs
from tests.support.nodes import Nodes, Unavailable
from tests.support.on_nodes import (
    FIXTURES,
    Job,
    Launch,
    Layout,
    check_nothing_is_left,
    check_who_was_where,
    directory_on,
    needs_one_verdict,
)

from .test_fixtures import check_verdict

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(240)]
APART_S = 5.0
PROGRAMS = {
    "ddp_transformer": "of a correct program nothing is said",
    "died_sigkill": "when a process ended is what its node tells",
    "exception_train_step": "the first exception is the verdict, whatever the clocks say",
    "exit_one_step_fewer": "who left, and who waits since then",
    "missing_sleep": "how long ranks wait",
    "op_rank0_broadcast": "what is proven is proven at once",
}
ASK = "import time; print(time.time(), time.monotonic())"


def wrong_clock(nodes: Nodes, offset_s: float) -> dict[str, str]:
    try:
        return nodes.wrong_clock(offset_s)
    except Unavailable as reason:
        pytest.skip(f"needs a clock of its own: {reason}")


@pytest.mark.parametrize("offset_s", [APART_S, -APART_S])
def test_the_clock_is_wrong(make_nodes: Callable[[int], Nodes], offset_s: float) -> None:
    """The wall clock is, the monotonic one is not."""
    nodes = make_nodes(1)
    began_s = time.time()
    extra = wrong_clock(nodes, offset_s)
    command = nodes[0].start(["python3", "-c", ASK], runs.environment(extra))
    assert command.wait() == 0, command.said()
    wall_s, monotonic_s = map(float, command.said().split())
    assert 0 <= wall_s - offset_s - began_s <= time.time() - began_s
    assert abs(monotonic_s - nodes[0].up_before_s - time.monotonic()) < 60


@needs_one_verdict
@pytest.mark.parametrize("offset_s", [APART_S, -APART_S])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_verdict_changes(make_nodes: Callable[[int], Nodes], name: str, offset_s: float) -> None:
    """Node 1's clock is wrong, on which is the rank that goes wrong, or the one that suffers."""
    nodes, expected = make_nodes(2), fixture_table.expected(name)
    layout = Layout.over(2, expected["nproc"])
    launch = Launch(layout, tuple(expected["args"]))
    wrong = replace(launch, extra=tuple(wrong_clock(nodes, offset_s).items()))
    program = [str(FIXTURES / "scripts" / expected["script"]), *expected["script_args"]]
    commands = [launch.start_on(nodes, 0, program), wrong.start_on(nodes, 1, program)]
    ended = Job(commands, [directory_on(node) for node in nodes]).finish()
    for done in ended:
        check_verdict(expected, done)
        for finding in done.errors:
            assert finding["detected_after_s"] >= 0, done.explain()
    check_who_was_where(layout, ended)
    check_nothing_is_left(nodes)
