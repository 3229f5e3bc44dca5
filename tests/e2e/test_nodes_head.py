"""Nodes that have no store in common to meet in, and were told where: `distdebug exec --head`."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.nodes import Command, Node, Nodes
from tests.support.on_nodes import Job, check_nothing_is_left, directory_on, needs_one_verdict

pytestmark = [pytest.mark.root, pytest.mark.timeout(240), needs_one_verdict]
PORT = 29_600
PROGRAM = """
import sys
import torch
import torch.distributed as dist

rank, file, wrong = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
for number in range(20):
    if rank == wrong and number == 10:
        raise ValueError("a bad sample")
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
"""The ranks meet in a file, and no variable says that there are two."""


def key_on(node: Node, text: str) -> Path:
    path = node.directory / "job.key"
    path.write_text(text)
    path.chmod(0o600)
    return path


def start(nodes: Nodes, number: int, key: str, wrong: int = -1, program: str = PROGRAM) -> Command:
    script = nodes.directory / "train.py"
    script.write_text(program)
    node = nodes[number]
    flags = ["--head", f"node0:{PORT}", "--job-key", str(key_on(node, key))]
    flags += ["--run-dir", str(directory_on(node)), "--hang-timeout", "30"]
    command = [sys.executable, str(script), str(number), str(nodes.directory / "store"), str(wrong)]
    variables = {"OMP_NUM_THREADS": "1", "TMPDIR": "/tmp", "GLOO_SOCKET_IFNAME": "net0"}
    words = [str(runs.DISTDEBUG), "exec", *flags, "--", *command]
    return node.start(words, runs.environment(variables))


def finish(nodes: Nodes, commands: Sequence[Command]) -> list[runs.Run]:
    return Job(commands, [directory_on(node) for node in nodes]).finish()


@pytest.mark.parametrize("wrong", [1, -1], ids=["a rank fails", "twin"])
def test_one_verdict(make_nodes: Callable[[int], Nodes], wrong: int) -> None:
    """Of a rank that is not the head's; the head has both ranks, and their hosts."""
    nodes, key = make_nodes(2), secrets.token_hex(32)
    ended = finish(nodes, [start(nodes, number, key, wrong) for number in (0, 1)])
    for done in ended:
        if wrong < 0:
            assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
            assert done.report["findings"] == [], done.explain()
        else:
            assert (done.report["outcome"], done.exit_code) == ("rank_exception", 1), done.explain()
            assert done.errors[0]["culprits"] == [wrong], done.explain()
        assert key not in done.stdout + done.stderr
    hosts = {rank: one["host"] for rank, one in ended[0].report["ranks"].items()}
    assert hosts == {"0": "node0", "1": "node1"}, ended[0].explain()
    for node in nodes:
        left = [path for path in directory_on(node).rglob("*") if path.is_file()]
        assert not any(key.encode() in path.read_bytes() for path in left)
    check_nothing_is_left(nodes)


def test_nodes_with_different_keys(make_nodes: Callable[[int], Nodes]) -> None:
    """Each says so, and judges what it sees; the program is none the worse for it."""
    nodes = make_nodes(2)
    ended = finish(nodes, [start(nodes, number, secrets.token_hex(32)) for number in (0, 1)])
    for done in ended:
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert "or it was made with another key" in ended[0].stderr, ended[0].explain()
    assert "is no head of distdebug, or has another job key" in ended[1].stderr, ended[1].explain()
    check_nothing_is_left(nodes)


@pytest.mark.long
def test_a_head_that_never_comes(make_nodes: Callable[[int], Nodes]) -> None:
    """The fault of the node itself is found all the same."""
    nodes = make_nodes(2)
    command = start(nodes, 1, secrets.token_hex(32), program="raise ValueError('a bad sample')\n")
    (done,) = Job([command], [directory_on(nodes[1])]).finish()
    assert done.exit_code == 1, done.explain()
    assert "does not answer yet" in done.stderr, done.explain()
    assert "does not answer within 30 s: from here on this node is judged" in done.stderr
    check_nothing_is_left([nodes[1]])
