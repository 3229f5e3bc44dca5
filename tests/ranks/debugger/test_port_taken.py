"""The port of the rendezvous belongs to somebody else: rank 0 is blamed, and the holder named."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.torch_loaded import TorchLoaded
from tests.support.worlds import Worlds

SCRIPT = Path(__file__).parents[1] / "scripts" / "joins.py"
LINE = 6
HANG_S = 30.0


@pytest.fixture
def worlds(torch_loaded: TorchLoaded) -> Worlds:
    return Worlds(torch_loaded)


def test_a_port_that_another_process_holds(worlds: Worlds, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        where = {"MASTER_PORT": str(port)}
        run = worlds.run(tmp_path / "run", 2, SCRIPT, where, hang_timeout_s=HANG_S)
    found = run.verdict
    assert found is not None, run.explain()
    named = (found.kind, found.culprits, found.cause)
    assert named == ("join_timeout", (0,), "port"), run.explain()
    assert found.victims in ((1,), ()), run.explain()  # rank 1 may not have come to wait yet
    assert (found.exit_code, found.proven) == (93, True)
    site = found.ranks[0].location
    assert site is not None
    assert (Path(site.file), site.line) == (SCRIPT, LINE)
    assert found.details[0].startswith(f"127.0.0.1:{port} is held by process {os.getpid()} (")
    assert found.data["holder"] in found.details[0]


def test_a_port_that_was_given_back(worlds: Worlds, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        where = {"MASTER_PORT": str(holder.getsockname()[1])}
    run = worlds.run(tmp_path / "run", 2, SCRIPT, where, hang_timeout_s=HANG_S)
    assert (run.verdict, list(run.findings), run.codes) == (None, [], {0: 0, 1: 0}), run.explain()
