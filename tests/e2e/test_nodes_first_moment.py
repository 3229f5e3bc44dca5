"""A node that is lost in its first moment: it has joined, and nothing is known of its ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.nodes import Nodes
from tests.support.on_nodes import (
    Job,
    Launch,
    Layout,
    check_nothing_is_left,
    directory_on,
    needs_one_verdict,
)
from tests.support.waiting import until

from .test_nodes import check_lost

pytestmark = [
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(480),
    needs_one_verdict,
]
LAYOUT = Layout((1, 1, 1))
LIMIT_S = 180.0
PROGRAM = """
import os, sys, time

here, last, rank = sys.argv[1], sys.argv[2].split(","), os.environ["RANK"]
open(f"{here}/{rank}", "w").close()
while rank in last:
    time.sleep(0.1)
import torch.distributed as dist

dist.init_process_group("gloo")
"""


@pytest.mark.parametrize("nnodes", ["3", "1:3"])
@pytest.mark.parametrize("lost", [{2}, {1, 2}])
def test_it_is_lost_with_its_ranks(
    make_nodes: Callable[[int], Nodes], nnodes: str, lost: set[int]
) -> None:
    """Who is unseen when all others have told is on it, or on both."""
    nodes = make_nodes(3)
    here = nodes.directory / "here"
    here.mkdir()
    script = nodes.directory / "train.py"
    script.write_text(PROGRAM)
    launch = Launch(LAYOUT, ("--hang-timeout", "60"), nnodes=nnodes)
    job = launch.start(nodes, [str(script), str(here), ",".join(map(str, lost))])
    for rank in range(LAYOUT.size):
        job.wait_for(here / str(rank))
    stay = sorted({0, 1, 2} - lost)
    head = directory_on(nodes[0]) / "ranks"  # that of the node which serves the store
    until(lambda: all(any(head.glob(f"*{rank}.flight")) for rank in stay), job.said, LIMIT_S)
    for number in lost:
        nodes[number].power_off()
    directories = [directory_on(nodes[number]) for number in stay]
    ended = Job([job.commands[number] for number in stay], directories).finish(LIMIT_S)
    for done in ended:
        for number in lost:
            check_lost(done, lost, f"node{number}")
        assert "not watched" not in done.stderr, done.explain()
    check_nothing_is_left([nodes[number] for number in stay])
