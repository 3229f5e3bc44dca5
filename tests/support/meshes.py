"""Groups whose ranks are threads of one process, over real sockets."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from distcore.transports.lane import LANE_BYTES, Lane
from distcore.transports.mesh import Mesh
from distcore.transports.peer_memory import PeerMemory
from distcore.transports.shared_memory import new_bells

T = TypeVar("T")
LIMIT_S = 200.0


class Wires:
    """A socket pair for every two ranks; `kind` is "tcp" or "shm" (Unix sockets)."""

    def __init__(self, size: int, kind: str) -> None:
        self.size = size
        self.kind = kind
        self._ends: dict[tuple[int, int], socket.socket] = {}
        self._meshes: list[Mesh] = []
        for low in range(size):
            for high in range(low + 1, size):
                one, other = _tcp_pair() if kind == "tcp" else socket.socketpair()
                self._ends[low, high], self._ends[high, low] = one, other

    def end(self, rank: int, peer: int) -> socket.socket:
        """The socket of `rank` to `peer`."""
        return self._ends[rank, peer]

    def mesh(self, rank: int, **options: bool) -> Mesh:
        """The rank's mesh; all ranks must make theirs at the same time."""
        ranks = [10 * one for one in range(self.size)]  # global ranks: not the group's
        mesh = Mesh("g", ranks, rank, lambda peer, _deadline: self.end(rank, peer), **options)
        self.add(mesh)
        return mesh

    def add(self, mesh: Mesh) -> None:
        """Close this mesh as well at the end."""
        self._meshes.append(mesh)

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *_exception: object) -> None:
        for mesh in self._meshes:
            mesh.close()
        for end in self._ends.values():
            end.close()


@contextmanager
def lanes(size: int, in_place: bool = False) -> Iterator[list[dict[str, Any]]]:
    """For each rank of a group in this process, the options `lanes` and `bells` of its mailbox.
    `in_place`: long messages are read where they lie."""
    bells = [new_bells() for _ in range(size)]
    pairs = itertools.permutations(range(size), 2)
    memories = {ends: mmap.mmap(-1, LANE_BYTES + 8) for ends in pairs}

    def lane(rank: int, peer: int) -> Lane:
        one, other = map(os.dup, bells[peer])
        both = memories[rank, peer], memories[peer, rank]
        words = [memoryview(memory)[LANE_BYTES:] for memory in both]
        peer_memory = PeerMemory(words[0], words[1], os.getpid() if in_place else None, in_place)
        return Lane(both, 0, (one, other), peer_memory)

    made = [
        {
            "bells": bells[rank],
            "lanes": {peer: lane(rank, peer) for peer in range(size) if peer != rank},
        }
        for rank in range(size)
    ]
    yield made
    for one in made:
        for each in one["lanes"].values():
            each.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _address = listener.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def together(size: int, body: Callable[[int], T]) -> list[T | BaseException]:
    """Run `body(rank)` in a thread for each rank; what each returned or raised."""

    def guarded(rank: int) -> T | BaseException:
        try:
            return body(rank)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(size)]
        return [future.result(LIMIT_S) for future in futures]


def on_meshes(
    size: int, kind: str, body: Callable[[Mesh], T], **options: bool
) -> list[T | BaseException]:
    """Run `body(mesh)` on every rank of a group; a rank whose body raises fails its mesh, as the
    process group does; meshes are closed when all bodies are through."""
    through = threading.Barrier(size)

    def run(rank: int) -> T:
        mesh = wires.mesh(rank, **options)
        try:
            return body(mesh)
        except BaseException as error:
            mesh.fail(error)
            raise
        finally:
            through.wait(LIMIT_S)

    with Wires(size, kind) as wires:
        return together(size, run)
