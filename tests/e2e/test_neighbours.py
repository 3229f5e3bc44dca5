"""What a neighbour on the network reaches of a run on one host: nothing. 127.0.0.2 stands for the
network: a listener on every interface answers there, one on 127.0.0.1 does not."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.ports import unclaimed_port
from tests.support.runs import LIMIT_S, environment, finish, start

PROGRAM = """
import os, sys
import torch, torch.distributed as dist

backend, met, go = sys.argv[1:]
seen = {name: one for name, one in os.environ.items() if name.startswith(("GLOO_", "MASTER_ADDR"))}
dist.init_process_group(backend)
own = None
if dist.get_rank() == 0:
    own = dist.TCPStore("localhost", 0, 1, True, wait_for_workers=False)
dist.all_reduce(torch.ones(2))
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(2), group=pair)
dist.barrier()
if own is not None:
    assert dist.TCPStore("127.0.0.1", own.port, is_master=False).add("key", 2) == 2
    assert all(os.environ[name] == one for name, one in seen.items())
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    open(met, "w").close()
    open(go).read()
dist.barrier()
dist.destroy_process_group()
"""


def listeners(process: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    """Address and port of whatever the process and all below it listen at."""
    top = psutil.Process(process.pid)
    for one in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            for connection in one.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.ip, connection.laddr.port


def reached(found: set[tuple[str, int]]) -> set[int]:
    """The ports at which a neighbour gets an answer."""
    answered = set()
    for _, port in found:
        with socket.socket() as neighbour:
            neighbour.settimeout(5.0)
            if neighbour.connect_ex(("127.0.0.2", port)) == 0:
                answered.add(port)
    return answered


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    os.mkfifo(tmp_path / "met")
    os.mkfifo(tmp_path / "go")
    return tmp_path / "train.py"


def while_it_runs(process: subprocess.Popen[str], tmp_path: Path) -> set[tuple[str, int]]:
    """What is listened at when all groups are made; then the program may end."""
    with open(tmp_path / "met"):  # returns when rank 0 opens its end
        found = set(listeners(process))
    with open(tmp_path / "go", "w"):
        return found


@pytest.mark.parametrize(
    ("backend", "flags"),
    [
        ("gloo", ("--debug-level", "DETAIL")),
        pytest.param(  # the other way to have a store
            *("tcp", ("--debug-level", "INFO", "--standalone")), marks=pytest.mark.long
        ),
    ],
)
def test_nothing_listens_beyond_loopback(
    backend: str, flags: tuple[str, ...], program: Path, tmp_path: Path
) -> None:
    arguments = [
        *flags,
        "-n",
        "2",
        str(program),
        backend,
        *map(str, (tmp_path / "met", tmp_path / "go")),
    ]
    process = start("run", arguments, tmp_path / "run", tmp_path)
    found = while_it_runs(process, tmp_path)
    done = finish(process, tmp_path / "run")
    assert done.exit_code == 0, done.explain()
    assert len(found) >= 4  # torchrun's store, the program's own, and at least one of each rank
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in found), found
    assert reached(found) == set()
    assert (tmp_path / "run" / "group.key").exists()  # whose it is, and what for: test_job_key


def test_who_listens_at_every_interface_is_found_and_answers() -> None:
    """So the test above can fail."""
    words = "import socket; open_one = socket.create_server(('', 0)); print(flush=True); input()"
    command = [sys.executable, "-c", words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "\n"
        found = set(listeners(process))
        assert reached(found) == {port for _, port in found} != set()
        process.communicate("\n")


@pytest.mark.long
def test_without_the_tool_a_neighbour_gets_an_answer(program: Path, tmp_path: Path) -> None:
    """torchrun's store and the program's answer to everybody."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"),
            *("--master-port", str(unclaimed_port()), "--nproc-per-node", "2"),
            *(str(program), "gloo", str(tmp_path / "met"), str(tmp_path / "go")),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    answered: set[int] = set()
    with open(tmp_path / "met"):
        answered = reached(set(listeners(process)))
    with open(tmp_path / "go", "w"):
        pass
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed
    assert len(answered) >= 2
