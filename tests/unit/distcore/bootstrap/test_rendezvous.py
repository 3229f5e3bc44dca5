"""Ranks find each other through a store, connect, and hear of whatever stands in the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from distcore.base.linux import Host
from distcore.bootstrap import addresses, listener
from distcore.bootstrap import join as join_module
from distcore.bootstrap.join import StoreMember
from distcore.bootstrap.rendezvous import Rendezvous
from distcore.errors import (
    Aborted,
    DeadlineExceeded,
    PeerLost,
    RendezvousError,
    StoreFailed,
)
from tests.support import system_threads
from tests.support.waiting import until

LIMIT_S = 20.0
SOON_S = LIMIT_S / 2
"""For what takes no time to speak of: far from the limit, and enough on a crowded machine."""
NAME = "gang \x1b[2J/../x"
PREFIX = f"dc/{hashlib.sha256(NAME.encode()).hexdigest()[:16]}"
HERE = Path(__file__).parent
ROOT = HERE.parents[3]

StoreMaker = Callable[[], Any]
"""Each call gives one rank's client of one store."""


def hash_stores(tmp_path: Path) -> StoreMaker:
    store = HashStore()
    return lambda: store


def file_stores(tmp_path: Path) -> StoreMaker:
    return lambda: FileStore(str(tmp_path / "store"), 4)


def tcp_stores(tmp_path: Path) -> StoreMaker:
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    server = TCPStore(
        "127.0.0.1",
        port,
        None,
        True,
        wait_for_workers=False,
        master_listen_fd=held.detach(),
        use_libuv=True,
    )

    def make() -> Any:
        # The closure keeps the server.
        assert server.port == port
        client = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
        return PrefixStore("a/", PrefixStore("b", client))

    return make


@pytest.fixture(params=[hash_stores, file_stores, tcp_stores], ids=["hash", "file", "tcp"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreMaker:
    maker: StoreMaker = request.param(tmp_path)
    return maker


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    """Runs functions in threads; whatever they do is over at the test's end."""
    with ThreadPoolExecutor(5) as pool:
        yield pool.submit


@pytest.fixture
def join(start: Callable[..., Future[Any]]) -> Iterator[Callable[..., list[Any]]]:
    """`join(stores, **arguments)`: one Rendezvous, or error, a rank; closed in the end."""
    joined: list[Rendezvous] = []

    def one(store: Any, rank: int, size: int, arguments: dict[str, Any]) -> Any:
        mine = {name: values[rank] for name, values in arguments.items() if name in PER_RANK}
        try:
            rendezvous = Rendezvous(
                store,
                NAME,
                **{"ranks": range(size), "rank": rank, "timeout_s": LIMIT_S, **arguments, **mine},
            )
        except Exception as error:
            return error
        joined.append(rendezvous)
        return rendezvous

    def all_of(stores: Sequence[Any], only: Sequence[int] | None = None, **arguments: Any) -> Any:
        size = len(stores)
        running = [start(one, stores[rank], rank, size, arguments) for rank in only or range(size)]
        return [future.result(3 * LIMIT_S) for future in running]

    yield all_of
    for rendezvous in joined:
        rendezvous.close()
    assert system_threads.gone("distcore listen")


class ClockOfThePresent:
    """The clock of ranks that join: it runs on when all that come have put down that they are here,
    which a crowded machine may let one do long after another."""

    def __init__(self, store: Any, ranks: Sequence[int]) -> None:
        self._store = store
        self._keys = [f"{PREFIX}/rank/{rank}" for rank in ranks]
        self._began = time.monotonic()
        self._stood_s: float | None = None

    def monotonic(self) -> float:
        now = time.monotonic()
        if self._stood_s is None:
            if not self._store.check(self._keys):
                return self._began
            self._stood_s = now - self._began
        return now - self._stood_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


PER_RANK = ("host", "ranks", "transport", "algorithms")


def soon(seconds: float = LIMIT_S) -> float:
    return time.monotonic() + seconds


def test_every_pair_connects_on_every_lane(
    make_store: StoreMaker, join: Any, start: Callable[..., Future[Any]]
) -> None:
    group = join([make_store() for _ in range(4)])

    def connect_all(rendezvous: Rendezvous) -> dict[tuple[int, int], socket.socket]:
        return {
            (peer, lane): rendezvous.connect(peer, lane, soon())
            for peer in range(4)
            for lane in (0, 1)
            if peer != rendezvous.rank
        }

    ends = [each.result(LIMIT_S) for each in [start(connect_all, r) for r in group]]
    for rank, connections in enumerate(ends):
        for (peer, lane), connection in connections.items():
            assert connection.family == socket.AF_UNIX
            connection.send(bytes([rank, peer, lane]))
    for rank, connections in enumerate(ends):
        for (peer, lane), connection in connections.items():
            connection.settimeout(LIMIT_S)
            assert connection.recv(16) == bytes([peer, rank, lane])
            connection.close()


@pytest.mark.parametrize(
    ("transports", "family"),
    [
        (("auto", "auto"), socket.AF_UNIX),
        (("shm", "auto"), socket.AF_UNIX),
        (("tcp", "tcp"), socket.AF_INET),
        (("tcp", "auto"), socket.AF_INET),
        (("auto", "tcp"), socket.AF_INET),
    ],
)
def test_the_transport_decides_how_a_host_talks_to_itself(
    join: Any, transports: tuple[str, str], family: int
) -> None:
    low, high = join([HashStore()] * 2, transport=transports)
    with low.connect(1, 0, soon()) as dialled, high.connect(0, 0, soon()) as taken:
        assert (dialled.family, taken.family) == (family, family)
        assert not taken.getblocking()
        assert not dialled.getblocking()


def test_loopback_is_all_that_listens_on_one_host(join: Any) -> None:
    group = join([HashStore()] * 2)
    assert {endpoint.address for endpoint in group[0]._endpoints} == {"127.0.0.1"}


def test_a_group_of_one_opens_nothing() -> None:
    rendezvous = Rendezvous(HashStore(), NAME, [0], 0, 0.0)
    assert listener._process.listener is None
    rendezvous.close()


def test_a_transport_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="transport 'udp' is none of 'auto', 'tcp', 'shm'"):
        Rendezvous(HashStore(), NAME, [0, 1], 0, 1.0, transport="udp")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DISTCORE_TCP_USER_TIMEOUT_S", "-1", "is not a number of seconds"),
        ("DISTCORE_TCP_USER_TIMEOUT_S", "soon", "is not a number of seconds"),
        ("DISTCORE_SOCKET_IFNAME", "nosuch0", "names no interface .*this machine has .*lo"),
    ],
)
def test_wrong_variables(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        Rendezvous(HashStore(), NAME, [0, 1], 0, 1.0)


class TestJoining:
    @pytest.mark.parametrize("present", [[0, 2], [1, 2]])
    def test_the_missing_are_named(
        self,
        make_store: StoreMaker,
        join: Any,
        present: list[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stores = [make_store() for _ in range(3)]
        monkeypatch.setattr(join_module, "time", ClockOfThePresent(make_store(), present))
        began = time.monotonic()
        missing = sorted({0, 1, 2} - set(present))
        for error in join(stores, only=present, timeout_s=1.5, ranks=[(4, 6, 8)] * 3):
            assert isinstance(error, RendezvousError)
            named = ", ".join(map(str, missing))
            globally = ", ".join(str(4 + 2 * rank) for rank in missing)
            assert f"{named} (global {globally}) of 3 did not come" in str(error)
            assert "not complete after 1.5 s" in str(error)
            assert "\x1b" not in str(error)
        assert 1.4 < time.monotonic() - began < SOON_S

    def test_again_and_again_on_one_store(self, make_store: StoreMaker, join: Any) -> None:
        stores = [make_store() for _ in range(3)]
        for _ in range(3):
            group = join(stores)
            # The higher rank must not be reached by the lower one's earlier self.
            with group[0].connect(2, 0, soon()) as end, group[2].connect(0, 0, soon()) as other:
                end.send(b"x")
                other.settimeout(LIMIT_S)
                assert other.recv(1) == b"x"
            for rendezvous in group:
                rendezvous.close()

    def test_what_is_left_holds_no_secret(self, join: Any) -> None:
        store = HashStore()
        join([store] * 3)
        assert store.num_keys() == 1

    @pytest.mark.parametrize("stale", [[0], [1], [0, 1], [1, 2], [0, 2]])
    def test_old_data_does_no_harm(
        self, make_store: StoreMaker, join: Any, stale: list[int]
    ) -> None:
        stores = [make_store() for _ in range(3)]
        for error in join(stores, only=stale, timeout_s=0.05):
            assert isinstance(error, RendezvousError)
        began = time.monotonic()
        assert all(isinstance(each, Rendezvous) for each in join(stores))
        assert time.monotonic() - began < SOON_S

    def test_old_data_of_a_rank_does_not_stand_for_it(
        self, join: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = HashStore()
        join([store] * 3, only=[2], timeout_s=0.05)
        monkeypatch.setattr(join_module, "time", ClockOfThePresent(store, [0, 1]))
        for error in join([store] * 3, only=[0, 1], timeout_s=1.5):
            assert "group rank 2 of 3 did not come" in str(error)

    def test_a_late_rank_replaces_its_old_data(self, join: Any, start: Any) -> None:
        store = HashStore()
        join([store] * 3, only=[2], timeout_s=0.05)
        others = start(join, [store] * 3, only=[0, 1])
        # Rank 0 has taken the old data for the rank when somebody has answered it.
        until(lambda: store.num_keys() > 4, limit_s=LIMIT_S)
        assert isinstance(join([store] * 3, only=[2])[0], Rendezvous)
        assert all(isinstance(each, Rendezvous) for each in others.result(LIMIT_S))

    @pytest.mark.parametrize(
        "sizes", [(3, 3, 3), (3, 3, 4), (3, 2)], ids=["order", "more", "less and one missing"]
    )
    def test_ranks_that_expect_another_group_all_hear_of_it_at_once(
        self, join: Any, start: Any, sizes: tuple[int, ...]
    ) -> None:
        store = HashStore()
        odd = len(sizes) - 1
        ranks = [tuple(range(0, 2 * size, 2)) for size in sizes]
        ranks[odd] = ranks[odd][::-1]
        for _ in range(2):
            began = time.monotonic()
            running = [
                start(Rendezvous, store, NAME, ranks[rank], rank, LIMIT_S)
                for rank, size in enumerate(sizes)
            ]
            for each in running:
                with pytest.raises(RendezvousError) as caught:
                    each.result(LIMIT_S)
                assert f"group rank {odd} (pid" in str(caught.value)
                assert "with other ranks than group rank 0" in str(caught.value)
            assert time.monotonic() - began < SOON_S
        # What that left does not stand in the way of the right ranks.
        assert all(isinstance(each, Rendezvous) for each in join([store] * 3))

    def test_no_two_groups_have_one_digest(self, join: Any) -> None:
        store = HashStore()
        first, second = join([store] * 2), join([store] * 2)
        assert first[0].digest == first[1].digest != second[0].digest == second[1].digest

    def test_a_rank_with_a_double_says_so(self, join: Any, start: Any) -> None:
        store = HashStore()
        first = start(join, [store] * 2, only=[1])
        until(lambda: store.check([f"{PREFIX}/rank/1"]), limit_s=LIMIT_S)
        began = time.monotonic()
        join([store] * 2, only=[1], timeout_s=5)
        [error] = first.result(LIMIT_S)
        assert "group rank 1 is claimed by two processes, pid" in str(error)
        assert time.monotonic() - began < SOON_S

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "\x80\x04cos\nsystem\n(S'true'\ntR.",
            "[" * 1000,
            "{" + '"a":{' * 150,
            "[]",
            "null",
            "x" * 5000,
            '{"version":1}',
            '{"version":true}',
            '{"version":3}',
            '{"version":2}',
            "spoilt nonce",
            "spoilt pid",
            "spoilt candidate",
            "spoilt name",
        ],
    )
    def test_other_peoples_data_is_refused_in_one_sentence(self, join: Any, value: str) -> None:
        if value.startswith("spoilt "):
            good = StoreMember("0" * 32, "0" * 32, Host("b", 1), "n", 1, None, "auto", "")
            value = json.dumps({**json.loads(good.pack()), value.removeprefix("spoilt "): "\x1b]0"})
        store = HashStore()
        store.set(f"{PREFIX}/rank/1", value)
        [error] = join([store] * 2, only=[0])
        assert isinstance(error, RendezvousError)
        assert "rank/1" in str(error)
        assert "distcore" in str(error)
        assert "\x1b" not in str(error)
        assert len(str(error).splitlines()) == 1

    def test_a_store_that_fails_is_the_cause(self, join: Any) -> None:
        class Broken(HashStore):  # type: ignore[misc]
            def check(self, keys: list[str]) -> bool:
                raise RuntimeError("Connection reset by peer")

        [error] = join([Broken()] * 2, only=[1])
        assert isinstance(error, StoreFailed)
        assert isinstance(error.__cause__, RuntimeError)
        assert "the store failed: Connection reset by peer" in str(error)

    def test_a_signal_ends_the_wait(self) -> None:
        store = HashStore()
        with pytest.raises(Interrupted), interrupted(lambda: store.check([f"{PREFIX}/rank/0"])):
            Rendezvous(store, NAME, [0, 1], 0, LIMIT_S)
        assert listener._process.listener is None


class Interrupted(Exception):
    pass


class interrupted:
    """A signal arrives as soon as that holds, and its handler raises Interrupted."""

    def __init__(self, holds: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=self._send, args=(holds,))

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._thread.start()

    def _send(self, holds: Callable[[], object]) -> None:
        until(holds, "it does not wait")
        self._sent_s = time.monotonic()
        os.kill(os.getpid(), signal.SIGUSR1)

    def _handle(self, *_: object) -> None:
        raise Interrupted

    def __exit__(self, *_: object) -> None:
        ended_s = time.monotonic()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)
        assert ended_s - self._sent_s < SOON_S


def waits_in(function: str) -> bool:
    """Whether the main thread is below this function."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return any(each.f_code.co_name == function for each, _ in traceback.walk_stack(frame))


class TestWaiting:
    """Group rank 1 waits for the call of group rank 0, which does not come."""

    def test_the_deadline_ends_it(self, join: Any) -> None:
        _, rank_1 = join([HashStore()] * 2, ranks=[(5, 7)] * 2)
        began = time.monotonic()
        # Long enough for a question whether the other one is still there; it is.
        with pytest.raises(DeadlineExceeded, match="rank 5 did not connect to rank 7 before"):
            rank_1.connect(0, 0, soon(0.5))
        assert 0.45 < time.monotonic() - began < SOON_S
        assert rank_1._listener.rejected == 0

    def test_an_abort_ends_it(self, join: Any, start: Any) -> None:
        _, rank_1 = join([HashStore()] * 2)
        waiting = start(rank_1.connect, 0, 0, soon())
        rank_1.abort("enough")
        began = time.monotonic()
        with pytest.raises(Aborted, match="enough"):
            waiting.result(LIMIT_S)
        assert time.monotonic() - began < SOON_S
        with pytest.raises(Aborted, match="enough"):
            rank_1.connect(0, 1, soon())

    def test_a_signal_ends_it_and_it_can_be_tried_again(self, join: Any) -> None:
        rank_0, rank_1 = join([HashStore()] * 2)
        with pytest.raises(Interrupted), interrupted(lambda: waits_in("_await")):
            rank_1.connect(0, 0, soon())
        with rank_0.connect(1, 0, soon()), rank_1.connect(0, 0, soon()):
            pass

    def test_that_the_other_left_ends_it(self, join: Any, start: Any) -> None:
        rank_0, rank_1 = join([HashStore()] * 2, ranks=[(5, 7)] * 2)
        waiting = start(rank_1.connect, 0, 0, soon())
        rank_0.close()
        began = time.monotonic()
        with pytest.raises(PeerLost, match=r"rank 5 .* has left the group") as caught:
            waiting.result(LIMIT_S)
        assert caught.value.culprit == 5
        assert time.monotonic() - began < SOON_S


class TestDialling:
    def test_who_left_is_lost(self, join: Any) -> None:
        rank_0, rank_1 = join([HashStore()] * 2, ranks=[(5, 7)] * 2)
        rank_1.close()
        with pytest.raises(PeerLost, match=r"rank 7 .* has left the group") as caught:
            rank_0.connect(1, 0, soon())
        assert caught.value.culprit == 7

    def test_an_abort_ends_it(self, join: Any) -> None:
        rank_0, _ = join([HashStore()] * 2)
        rank_0.abort("enough")
        with pytest.raises(Aborted, match="enough"):
            rank_0.connect(1, 0, soon())


def test_what_nobody_fetched_is_closed_in_the_end(join: Any) -> None:
    rank_0, rank_1 = join([HashStore()] * 2)
    with rank_0.connect(1, 0, soon()) as connection:
        until(lambda: bool(rank_1._arrived), limit_s=LIMIT_S)
        rank_1.close()
        connection.settimeout(LIMIT_S)
        assert connection.recv(1) == b""


@pytest.fixture
def rank_1_elsewhere(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, HERE / "rendezvous_process.py", tmp_path / "store", NAME, "1", "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    yield process
    process.kill()
    process.communicate()


def test_a_killed_rank_is_lost_to_those_who_call_and_those_who_wait(
    tmp_path: Path, join: Any, start: Any, rank_1_elsewhere: subprocess.Popen[str]
) -> None:
    assert rank_1_elsewhere.stdout is not None
    assert rank_1_elsewhere.stdout.readline() == "up\n"
    stores = [FileStore(str(tmp_path / "store"), 3) for _ in range(3)]
    rank_0, rank_2 = join(stores, only=[0, 2], timeout_s=60)
    # After this, a forked child of it has come and gone.
    assert rank_1_elsewhere.stdout.readline() == "ready\n"
    rank_0.connect(1, 0, soon()).close()
    rank_1_elsewhere.kill()
    rank_1_elsewhere.wait(LIMIT_S)
    began = time.monotonic()
    for attempt in (start(rank_0.connect, 1, 1, soon()), start(rank_2.connect, 1, 0, soon())):
        with pytest.raises(PeerLost, match=r"rank 1 .* is gone: nobody listens") as caught:
            attempt.result(LIMIT_S)
        assert caught.value.culprit == 1
    assert time.monotonic() - began < SOON_S


def test_wishes_for_other_algorithms_are_refused_on_every_rank(join: Any) -> None:
    for error in join([HashStore()] * 3, algorithms=("", "", "all_reduce:ring")):
        assert isinstance(error, RendezvousError)
        assert "rank 2 has 'all_reduce:ring', rank 0 ''" in str(error)


class TestSeveralHosts:
    HOSTS = (Host("a", 1), Host("b", 1))

    def test_ranks_of_two_hosts_talk_tcp(self, join: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DISTCORE_SOCKET_IFNAME", "lo")
        monkeypatch.setattr(addresses, "is_loopback", lambda address: False)
        rank_0, rank_1 = join([HashStore()] * 2, host=self.HOSTS)
        with rank_0.connect(1, 0, soon()) as connection, rank_1.connect(0, 0, soon()):
            assert connection.family == socket.AF_INET

    def test_shm_is_refused_on_every_rank(self, join: Any) -> None:
        for error in join([HashStore()] * 2, host=self.HOSTS, transport=("auto", "shm")):
            assert isinstance(error, RendezvousError)
            assert "rank 1 asks for transport 'shm', but rank 0 is on another host" in str(error)

    def test_loopback_alone_is_refused_on_every_rank(
        self, join: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DISTCORE_SOCKET_IFNAME", "lo")
        for error in join([HashStore()] * 2, host=self.HOSTS):
            assert isinstance(error, RendezvousError)
            assert "found no address that the other hosts reach" in str(error)
            assert "127.0.0.1, which is loopback" in str(error.__cause__)
