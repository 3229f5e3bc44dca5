"""Messages between the ranks of a group, and everything that can end a wait for one."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import threading
import time

import pytest

from distcore import errors
from distcore.transports.base import SEGMENT_BYTES, Receive, Send
from distcore.transports.frames import DATA, FIRST, HEADER, MAGIC, control
from distcore.transports.link import ready
from distcore.transports.mesh import Mesh
from distcore.transports.peer_memory import PeerMemory
from tests.support.meshes import Wires, on_meshes, together

KINDS = ("tcp", "shm")
SIZES = (0, 1, 7, 4096, 20_000, 64 * 1024, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 8, 9_000_000)


def pattern(size: int, seed: int) -> bytearray:
    block = bytes((seed * 37 + i * 11) % 251 for i in range(1009))
    return bytearray((block * (size // 1009 + 1))[:size])


def soon() -> float:
    return time.monotonic() + 30


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("at_rest", [False, True])
def test_every_size_arrives_whole(kind: str, checked: bool, at_rest: bool) -> None:
    def body(mesh: Mesh) -> None:
        peers = [peer for peer in range(mesh.size) if peer != mesh.rank]
        for size in SIZES:
            into = {peer: bytearray(size) for peer in peers}
            mesh.begin(f"all_to_all({size})", soon())
            mesh.exchange(
                [
                    Send(peer, memoryview(pattern(size, mesh.rank * 3 + peer)), at_rest)
                    for peer in peers
                ],
                [Receive(peer, memoryview(into[peer])) for peer in peers],
            )
            mesh.end()
            for peer in peers:
                assert into[peer] == pattern(size, peer * 3 + mesh.rank)

    assert on_meshes(3, kind, body, checked=checked) == [None] * 3


@pytest.mark.parametrize(
    ("kind", "at_rest", "may"),
    [("tcp", False, True), ("shm", False, True), ("shm", True, True), ("shm", True, False)],
)
def test_consumed_messages_come_in_segments(
    kind: str, at_rest: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may:  # what was allowed at first
        monkeypatch.setattr(PeerMemory, "read", lambda *_what: False)

    def body(mesh: Mesh) -> None:
        for size in SIZES:
            pieces: list[tuple[int, bytes]] = []
            mesh.begin(f"all_reduce({size})", soon())
            mesh.exchange(
                [Send(1 - mesh.rank, memoryview(pattern(size, mesh.rank)), at_rest)],
                [
                    Receive(
                        1 - mesh.rank,
                        memoryview(bytearray(size)),
                        lambda piece, offset, to=pieces: to.append((offset, bytes(piece))),
                    )
                ],
            )
            mesh.end()
            assert b"".join(piece for _offset, piece in pieces) == pattern(size, 1 - mesh.rank)
            assert [offset for offset, _piece in pieces] == list(range(0, size, SEGMENT_BYTES))

    assert on_meshes(2, kind, body) == [None, None]


@pytest.mark.parametrize("size", [8, 40_000, 150_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_ahead_is_not_lost(kind: str, size: int) -> None:
    """Two broadcasts: the root has sent both, and said goodbye, before anybody has read one."""
    gone = threading.Event()

    def body(rank: int) -> None:
        mesh = wires.mesh(rank)
        for _ in range(2):
            mesh.begin("broadcast(src=0)", soon())
            if rank == 0:
                mesh.exchange([Send(1, memoryview(pattern(size, 1)))], [])
            else:
                assert gone.wait(10)
                into = bytearray(size)
                mesh.exchange([], [Receive(0, memoryview(into))])
                assert into == pattern(size, 1)
            mesh.end()
        mesh.close()
        gone.set()

    with Wires(2, kind) as wires:
        assert together(2, body) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_in_different_calls(kind: str) -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()" if mesh.rank else "all_reduce(sum, float32[2])", soon())
        mesh.exchange(
            [Send(1 - mesh.rank, memoryview(b"1234"))],
            [Receive(1 - mesh.rank, memoryview(bytearray(4)))],
        )

    first, second = on_meshes(2, kind, body)
    assert isinstance(first, errors.CallMismatch)
    assert isinstance(second, errors.CallMismatch)
    for error in (first, second):  # found here, or told by the other one
        assert "rank 0 is in all_reduce(sum, float32[2]) #0" in str(error)
        assert "rank 10 is in barrier() #0" in str(error)


def test_ranks_with_different_lengths() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("all_to_all_single(float32)", soon())
        mesh.exchange(
            [Send(1 - mesh.rank, memoryview(bytes(4)))],
            [Receive(1 - mesh.rank, memoryview(bytearray(4 + 4 * mesh.rank)))],
        )

    _first, second = on_meshes(2, "tcp", body)
    assert isinstance(second, errors.CallMismatch)
    assert "rank 0 sent 4 bytes where rank 10 expects 8" in str(second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_peer_is_named_by_all_within_a_second(kind: str) -> None:
    """Rank 2 dies half way through a long message; 0 and 1 wait for it, 3 waits for 1 only."""
    waits_for = {0: 2, 1: 2, 3: 1}
    started = [0.0] * 4

    def body(rank: int) -> None:
        mesh = wires.mesh(rank)
        mesh.begin("all_reduce(sum, float32[9])", soon())
        started[rank] = time.monotonic()
        if rank == 2:
            header = HEADER.pack(
                MAGIC, DATA, FIRST, 0, 0, mesh._number, 0, 0, 0, mesh._call.fingerprint, 64, 0, 64
            )
            for peer in (0, 1):
                wires.end(2, peer).sendall(header + b"half of it")
            for peer in (0, 1, 3):
                wires.end(2, peer).close()
            return
        try:
            mesh.exchange([], [Receive(waits_for[rank], memoryview(bytearray(64)))])
        except errors.GroupFailed as error:
            mesh.fail(error)
            raise
        finally:
            started[rank] = time.monotonic() - started[rank]

    with Wires(4, kind) as wires:
        found = together(4, body)
    for rank in (0, 1, 3):
        error = found[rank]
        assert isinstance(error, errors.PeerLost), error
        assert error.culprit == 20
        assert "rank 20 was lost in all_reduce(sum, float32[9]) #0, step 0" in str(error)
        assert started[rank] < 20  # far from the deadline, however crowded the machine is
    assert "rank 20 sent 10 of 64 bytes" in str(found[0])


def test_a_failed_rank_tells_the_others_why() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()", soon())
        if mesh.rank == 1:
            raise KeyboardInterrupt
        mesh.exchange([], [Receive(1 - mesh.rank, memoryview(bytearray(1)))])

    told, _raised = on_meshes(2, "tcp", body)
    assert isinstance(told, errors.GroupFailed)
    assert told.culprit == 10
    assert "rank 10 left barrier() #0: KeyboardInterrupt" in str(told)


@pytest.mark.parametrize("kind", KINDS)
def test_news_of_a_failure_do_not_cut_off_a_step_whose_data_is_there(kind: str) -> None:
    """The call was complete before, for all: the failure is one of a later step."""
    data = bytes(range(8))

    def body(mesh: Mesh) -> None:
        mesh.begin("two_steps()", soon())
        if mesh.rank == 0:
            mesh.exchange([Send(2, memoryview(data))], [])
        elif mesh.rank == 1:
            raise RuntimeError("out of luck")
        else:
            for peer in (0, 1):
                assert ready([mesh._links[peer].descriptor], select.POLLIN, 30)
            into = bytearray(8)
            mesh.exchange([], [Receive(0, memoryview(into))])
            assert into == data
            mesh.exchange([], [Receive(0, memoryview(into))])

    first, _second, third = on_meshes(3, kind, body)
    assert first is None
    assert isinstance(third, errors.GroupFailed), third
    assert "out of luck" in str(third)


def test_the_deadline() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()", time.monotonic() + (0.2 if mesh.rank == 0 else 30))
        if mesh.rank == 0:
            mesh.exchange([], [Receive(1, memoryview(bytearray(8)))])

    late, _other = on_meshes(2, "tcp", body)
    assert isinstance(late, errors.DeadlineExceeded)
    assert isinstance(late, TimeoutError)
    assert "the timeout of barrier() #0 ran out in step 0, waiting for rank 10" in str(late)


def test_abort_from_another_thread() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()", soon())
        if mesh.rank == 0:
            threading.Timer(0.1, mesh.abort, ["the group was aborted"]).start()
        mesh.exchange([], [Receive(1 - mesh.rank, memoryview(bytearray(8)))])

    first, second = on_meshes(2, "tcp", body)
    assert isinstance(first, errors.Aborted)
    assert isinstance(second, errors.Aborted)
    assert "the group was aborted; it was in barrier() #0" in str(second)


def test_what_a_failed_rank_had_offered_is_not_read() -> None:
    """It has its memory back, and writes there."""
    failed = threading.Event()
    data = bytearray(1_000_000)

    def body(mesh: Mesh) -> None:
        mesh.begin("all_to_all_single()", soon())
        into = memoryview(bytearray(len(data)))
        if mesh.rank:
            assert failed.wait(20)
            mesh.exchange([Send(0, into)], [Receive(0, into)])
            return
        mesh.abort("enough")
        try:
            mesh.exchange([Send(1, memoryview(data), at_rest=True)], [Receive(1, into)])
        except errors.Aborted as error:
            mesh.fail(error)
            data[:] = b"x" * len(data)
            failed.set()
            raise

    first, second = on_meshes(2, "shm", body)
    assert isinstance(first, errors.Aborted)
    assert isinstance(second, errors.Aborted)


def test_a_failed_group_says_so() -> None:
    def body(mesh: Mesh) -> str:
        mesh.fail(errors.PeerLost("rank 7 was lost", 7))
        with pytest.raises(errors.GroupFailed, match=r"cannot be used any more.*rank 7 was lost"):
            mesh.begin("barrier()")
        return repr(mesh)

    assert on_meshes(2, "tcp", body) == [f"<Mesh 'g' rank {r} of 2: failed>" for r in range(2)]


BAD = {
    "garbage": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" + bytes(64),
    "an oversize control frame": HEADER.pack(MAGIC, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 30),
    "an unknown kind": control(99),
    "a slot that was never used": control(3, slot=2),
    "an unreadable failure": control(2, payload=b"{"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_frames_name_the_connection(what: str) -> None:

    def body(rank: int) -> None:
        mesh = wires.mesh(rank)
        if rank == 1:
            wires.end(1, 0).sendall(BAD[what])
            return
        mesh.begin("barrier()", soon())
        mesh.exchange([], [Receive(1, memoryview(bytearray(8)))])

    with Wires(2, "tcp") as wires:
        found, _sender = together(2, body)
    assert isinstance(found, errors.CorruptFrame)
    assert found.culprit == 10
    assert "on the connection from rank 10, in barrier() #0, step 0" in str(found)


def test_a_corrupted_frame_is_found_by_its_checksum() -> None:

    def body(rank: int) -> None:
        mesh = wires.mesh(rank, checked=True)
        mesh.begin("broadcast(src=10)", soon())
        if rank == 1:
            link = mesh._links[0].outgoing
            link._connection = Flipping(link._connection)
            mesh.exchange([Send(0, memoryview(pattern(5000, 1)))], [])
        else:
            mesh.exchange([], [Receive(1, memoryview(bytearray(5000)))])

    with Wires(2, "tcp") as wires:
        found, _sender = together(2, body)
    assert isinstance(found, errors.CorruptFrame)
    assert "checksum is wrong" in str(found)


class Flipping:
    """A socket on which one bit of every payload flips."""

    def __init__(self, connection: object) -> None:
        self._connection = connection

    def sendmsg(self, parts: list[memoryview]) -> int:
        payload = bytearray(parts[-1])
        payload[len(payload) // 2] ^= 1
        return self._connection.sendmsg([*parts[:-1], memoryview(payload)])  # type: ignore[attr-defined]


def test_a_waiting_rank_sleeps() -> None:
    used = []

    def body(mesh: Mesh) -> None:
        before = time.thread_time()
        mesh.begin("barrier()", time.monotonic() + 1.0)
        try:
            mesh.exchange([], [Receive(1 - mesh.rank, memoryview(bytearray(8)))])
        finally:
            used.append(time.thread_time() - before)

    on_meshes(2, "tcp", body)
    assert len(used) == 2
    assert max(used) < 0.5


def test_descriptors_are_given_back() -> None:
    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()", soon())
        mesh.end()

    on_meshes(2, "shm", body)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        on_meshes(3, "shm", body)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptors_above_1024() -> None:
    """Which a process with hundreds of groups has, and `select.select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this process may only have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))

    def body(mesh: Mesh) -> None:
        mesh.begin("barrier()", soon())
        if mesh.rank == 1:
            raise RuntimeError("out of luck")
        mesh.exchange([], [Receive(1, memoryview(bytearray(8)))])

    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1030):
            held.callback(os.close, os.dup(0))
        first, _second, third = on_meshes(3, "shm", body)
    for error in (first, third):
        assert isinstance(error, errors.GroupFailed), error
        assert "out of luck" in str(error)
