"""How nodes come to know of each other where no flag says it plainly: a name that stands for
loopback on one of them, a launcher in a shell script, ranks that were started by hand."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.nodes import Nodes
from tests.support.on_nodes import (
    PORT,
    TORCHRUN,
    Job,
    check_nothing_is_left,
    directory_on,
    needs_one_verdict,
)

pytestmark = [pytest.mark.root, pytest.mark.long, pytest.mark.timeout(240), needs_one_verdict]
GOING_ON = str(Path(__file__).parents[1] / "ranks" / "scripts" / "going_on.py")
WRONG, RIGHT = ("--wrong", "1"), ("--steps", "20")
BY_HAND = """
import sys
import torch.distributed as dist, torch.multiprocessing as mp
import torch

def main(_local, node, wrong):
    dist.init_process_group("gloo", init_method="tcp://node0:PORT", rank=node, world_size=2)
    for number in range(40):
        if number == 20 and node == 1 and wrong:
            dist.broadcast(torch.ones(4), 1)
        else:
            dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, args=(int(sys.argv[1]), "--wrong" in sys.argv), nprocs=1)
""".replace("PORT", str(PORT))


def run(
    nodes: Nodes,
    words: Callable[[int], Sequence[str]],
    hang_timeout_s: int = 20,
    variables: Callable[[int], Mapping[str, str]] = lambda _number: {},
) -> list[runs.Run]:
    """On each node `distdebug` with these words."""
    given = {"OMP_NUM_THREADS": "1", "TMPDIR": "/tmp", "GLOO_SOCKET_IFNAME": "net0"}
    commands = []
    for node in nodes:
        how, *rest = words(node.number)
        flags = ["--run-dir", str(directory_on(node)), f"--hang-timeout={hang_timeout_s}"]
        words_here = [str(runs.DISTDEBUG), how, *flags, *rest]
        commands.append(
            node.start(words_here, runs.environment({**given, **variables(node.number)}))
        )
    return Job(commands, [directory_on(node) for node in nodes]).finish()


def torchrun(endpoint: str, program: Sequence[str]) -> list[str]:
    flags = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    return [*flags, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", *program]


def check(nodes: Nodes, ended: Sequence[runs.Run], how: Sequence[str]) -> None:
    """One verdict, or nothing said."""
    for done in ended:
        if how == WRONG:
            assert (done.report["outcome"], done.exit_code) == ("op_mismatch", 91), done.explain()
            assert done.errors[0]["culprits"] == [0, 1], done.explain()
        else:
            assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
            assert done.report["findings"] == [], done.explain()
        hosts = {rank: one["host"] for rank, one in done.report["ranks"].items()}
        assert hosts == {"0": "node0", "1": "node1"}, done.explain()
        assert "not watched" not in done.stderr, done.explain()
    said = [done.stderr.count("the run of all nodes is kept on ") for done in ended]
    assert sorted(said) == [0, 1], "of two nodes one is the head"
    check_nothing_is_left(nodes)


@pytest.mark.parametrize("how", [WRONG, RIGHT], ids=["wrong", "twin"])
def test_the_name_of_the_stores_host_is_loopback_there(
    make_nodes: Callable[[int], Nodes], how: Sequence[str]
) -> None:
    """As Debian's installer writes /etc/hosts; and the endpoint has no port."""
    nodes = make_nodes(2)
    table = nodes[0].directory / "etc" / "hosts"
    table.write_text(table.read_text().replace(f"{nodes[0].address} node0", "127.0.1.1 node0"))
    ended = run(nodes, lambda _: ["run", *torchrun("node0", [GOING_ON, *how])])
    check(nodes, ended, how)


@pytest.mark.parametrize("how", [WRONG, RIGHT], ids=["wrong", "twin"])
def test_a_script_that_starts_torchrun(
    make_nodes: Callable[[int], Nodes], how: Sequence[str]
) -> None:
    nodes = make_nodes(2)
    line = shlex.join([str(TORCHRUN), *torchrun(f"node0:{PORT}", [GOING_ON, *how])])
    check(nodes, run(nodes, lambda _: ["exec", "--", "sh", "-c", line]), how)


@pytest.mark.parametrize("how", [WRONG, RIGHT], ids=["wrong", "twin"])
def test_ranks_that_are_started_by_hand(
    make_nodes: Callable[[int], Nodes], how: Sequence[str]
) -> None:
    """No variable says that there are two nodes: the address of their store does."""
    nodes = make_nodes(2)
    script = nodes.directory / "by_hand.py"
    script.write_text(BY_HAND)
    command = ["exec", "--", sys.executable, str(script)]
    check(nodes, run(nodes, lambda number: [*command, str(number), *how]), how)


BEFORE_TORCH = """
import os, sys
if os.environ["RANK"] == "1":
    if "--wrong" in sys.argv:
        raise RuntimeError("there is no such data set")
    sys.exit(0)
import torch.distributed as dist
if "--wrong" in sys.argv:
    dist.init_process_group("gloo")
"""


@pytest.mark.parametrize("how", [WRONG, RIGHT], ids=["wrong", "twin"])
def test_a_rank_that_ends_before_it_imports_torch(
    make_nodes: Callable[[int], Nodes], how: Sequence[str]
) -> None:
    """It has been to no store, so its node meets nobody by it, and rank 0 waits for it. The twin
    ends in good order, and nobody is waited for."""
    nodes = make_nodes(2)
    script = nodes.directory / "before_torch.py"
    script.write_text(BEFORE_TORCH)
    command = ["exec", "--", sys.executable, str(script), *how]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": str(PORT)}
    ended = run(nodes, lambda _: command, 90, lambda number: {"RANK": str(number), **place})
    said = "\n".join(done.explain() for done in ended)
    for done in ended:
        if how == WRONG:
            assert (done.report["outcome"], done.exit_code) == ("rank_exception", 1), said
            assert done.errors[0]["culprits"] == [1], done.explain()
            assert "no such data set" in done.errors[0]["message"], done.explain()
        else:
            assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
            assert "before they met" not in done.stderr, done.explain()
    check_nothing_is_left(nodes)
