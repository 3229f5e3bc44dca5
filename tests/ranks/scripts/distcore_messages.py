"""The worker of distcore_worker.py that also sends and receives messages, and changes hosts."""

import ctypes
import importlib.util
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch

import distcore as dist

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""


def load_worker():
    path = Path(__file__).with_name("distcore_worker.py")
    spec = importlib.util.spec_from_file_location("distcore_worker", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


worker = load_worker()


def told(call):
    """What the call gave, and when, by the clock that all processes of the machine share."""
    try:
        answer = call()
        answer = {"kind": "", **(answer if isinstance(answer, dict) else {})}
    except dist.GroupFailed as error:
        answer = {"kind": type(error).__name__, "culprit": error.culprit, "text": str(error)}
    return {**answer, "at_s": time.monotonic()}


def content(elements, tag):
    return torch.arange(elements, dtype=torch.int64) * 7 + tag


def command_send(rank, size, dst, elements=8, tag=0):
    return told(lambda: dist.send(content(elements, tag), dst, tag=tag))


def command_receive(rank, size, src, elements=8, tag=0, late_s=0.0):
    """Whether what came is what `command_send` sends."""

    def call():
        time.sleep(late_s)
        tensor = torch.zeros(elements, dtype=torch.int64)
        dist.recv(tensor, src, tag=tag)
        return {"right": torch.equal(tensor, content(elements, tag))}

    return told(call)


def command_send_and_die(rank, size, dst, count):
    """Killed at the moment when the last message has left."""
    works = [dist.isend(content(8, tag), dst, tag=tag) for tag in range(count)]
    assert len(works) == count
    mailbox = dist.group.WORLD._session._mailbox
    while mailbox._matching._numbers < count or mailbox._senders[dst].wants_to_write:
        time.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


def command_enter(rank, size, network):
    """Move to another network, as if to another machine: to that of this file."""
    with open(network) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def command_join(rank, size, address, port, method, timeout_s=60.0):
    """As on several hosts: `method` is env or tcp."""
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    place = "env://" if method == "env" else f"tcp://{address}:{port}"
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("tcp", place, rank=rank, world_size=size, timeout=timeout)
    worker.GROUPS[:] = [(list(range(size)), dist.group.WORLD)]
    endpoints = dist.group.WORLD._session._rendezvous._endpoints
    return {"endpoint": [endpoints[rank].address, endpoints[rank].port]}


def command_exchange(rank, size, elements):
    """Every kind of way between ranks; every byte is checked."""
    reduced = torch.full((elements,), float(rank + 1))
    dist.all_reduce(reduced)
    assert (reduced == size * (size + 1) / 2).all()
    for root in range(size):
        sent = content(elements, root) if rank == root else torch.zeros(elements, dtype=torch.int64)
        dist.broadcast(sent, root)
        assert torch.equal(sent, content(elements, root))
    given = torch.cat([content(elements, 100 * rank + peer) for peer in range(size)])
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given)
    parts = [content(elements, 100 * peer + rank) for peer in range(size)]
    assert torch.equal(taken, torch.cat(parts))
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        sending = dist.isend(content(elements, rank), to, tag=distance)
        taken = torch.zeros(elements, dtype=torch.int64)
        dist.recv(taken, source, tag=distance)
        assert torch.equal(taken, content(elements, source))
        sending.wait()


def command_broadcast(rank, size, elements):
    """From rank 0."""
    return told(lambda: dist.broadcast(torch.ones(elements), 0))


def command_reduce_until_error(rank, size, elements=200_000):
    return told(lambda: worker.command_all_reduces(rank, size, until_error=True, elements=elements))


for _name, _command in list(globals().items()):
    if _name.startswith("command_"):
        setattr(worker, _name, _command)
main = worker.main
