"""The handshake itself, and the listener against everybody who should not get in."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from distcore.bootstrap import handshake, listener, sockets
from distcore.bootstrap.dial import DialTimeout, Endpoint, TurnedAway, dial
from distcore.bootstrap.handshake import HandshakeRefused, Hello
from distcore.bootstrap.listener import RankListener, Registration
from tests.support import system_threads

SECRET = bytes(range(32))
GROUP = bytes(reversed(range(32)))
LIMIT_S = 30.0
ME, CALLER = 2, 1


class TestMessages:
    def test_two_who_know_the_secret_agree(self) -> None:
        hello = Hello(GROUP, 1, CALLER, ME)
        packed = hello.pack()
        answer = handshake.reply(SECRET, packed)
        handshake.verify(SECRET, packed, answer, handshake.proof(SECRET, packed, answer))
        assert (len(packed), len(answer)) == (handshake.HELLO_BYTES, handshake.REPLY_BYTES)
        assert Hello.unpack(packed) == hello

    def test_no_two_hellos_or_replies_are_equal(self) -> None:
        hello = Hello(GROUP, 0, CALLER, ME)
        packed = hello.pack()
        assert packed != hello.pack()
        assert handshake.reply(SECRET, packed) != handshake.reply(SECRET, packed)

    @pytest.mark.parametrize("byte", range(handshake.REPLY_BYTES))
    def test_no_byte_of_the_reply_can_be_changed(self, byte: int) -> None:
        packed = Hello(GROUP, 0, CALLER, ME).pack()
        answer = bytearray(handshake.reply(SECRET, packed))
        answer[byte] ^= 1
        with pytest.raises(HandshakeRefused, match="the acceptor does not know"):
            handshake.proof(SECRET, packed, bytes(answer))

    @pytest.mark.parametrize("byte", range(handshake.HELLO_BYTES))
    def test_no_byte_of_the_hello_can_be_changed(self, byte: int) -> None:
        sent = Hello(GROUP, 0, CALLER, ME).pack()
        received = bytearray(sent)
        received[byte] ^= 1
        answer = handshake.reply(SECRET, bytes(received))
        with pytest.raises(HandshakeRefused):
            handshake.proof(SECRET, sent, answer)

    def test_the_acceptors_mac_is_not_the_diallers_proof(self) -> None:
        packed = Hello(GROUP, 0, CALLER, ME).pack()
        answer = handshake.reply(SECRET, packed)
        with pytest.raises(HandshakeRefused, match="the dialler does not know"):
            handshake.verify(SECRET, packed, answer, answer[handshake.NONCE_BYTES :])

    @pytest.mark.parametrize("magic", [b"distcorf\1", b"distcore\2", b"GET / HTT"])
    def test_another_protocol_or_version_is_refused(self, magic: bytes) -> None:
        with pytest.raises(HandshakeRefused, match="not a distcore hello"):
            Hello.unpack(magic + bytes(handshake.HELLO_BYTES - len(magic)))


class House:
    """A listener with one registration, and what was delivered to it."""

    def __init__(self) -> None:
        self.listener: RankListener = listener.acquire()
        self.address = self.listener.listen(None)
        self.arrived: dict[tuple[int, int], socket.socket] = {}
        self.delivery = threading.Condition()
        self.registration = Registration(GROUP, ME, 4, SECRET, 2, 30_000, self.deliver)
        self.listener.register(self.registration)

    def deliver(self, sender: int, lane: int, connection: socket.socket) -> bool:
        with self.delivery:
            if (sender, lane) in self.arrived:
                return False
            self.arrived[sender, lane] = connection
            self.delivery.notify_all()
            return True

    def take(self, sender: int, lane: int) -> socket.socket:
        with self.delivery:
            assert self.delivery.wait_for(lambda: (sender, lane) in self.arrived, LIMIT_S)
            return self.arrived[sender, lane]

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=LIMIT_S)

    def dial(self, lane: int, secret: bytes = SECRET, over_unix: bool = False) -> socket.socket:
        return dial(
            Endpoint(*self.address, self.listener.unix_token),
            over_unix,
            Hello(GROUP, lane, CALLER, ME),
            secret,
            30_000,
            time.monotonic() + LIMIT_S,
            lambda: None,
        )

    def close(self) -> None:
        self.listener.unregister(self.registration)
        listener.release(self.listener)
        for connection in self.arrived.values():
            connection.close()


@pytest.fixture
def house() -> Iterator[House]:
    found = House()
    yield found
    found.close()
    assert system_threads.gone("distcore listen")


def dropped(connection: socket.socket) -> bool:
    """Whether the other side ends the connection without a word; waits for it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("over_unix", [False, True])
def test_a_good_peer_gets_in_and_may_talk_at_once(house: House, over_unix: bool) -> None:
    with house.dial(0, over_unix=over_unix) as connection:
        connection.send(b"first")
        taken = house.take(CALLER, 0)
        taken.setblocking(True)
        assert taken.recv(64) == b"first"
        assert connection.family == (socket.AF_UNIX if over_unix else socket.AF_INET)
        assert not taken.get_inheritable()
        assert not connection.getblocking()
    assert house.listener.rejected == 0


def test_tcp_connections_notice_a_silent_end(house: House) -> None:
    with house.dial(0) as connection:
        for each in (connection, house.take(CALLER, 0)):
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 12


def hello(group: bytes = GROUP, lane: int = 0, sender: int = CALLER, receiver: int = ME) -> bytes:
    return Hello(group, lane, sender, receiver).pack()


@pytest.mark.parametrize(
    "sent",
    [
        secrets.token_bytes(handshake.HELLO_BYTES),
        bytes(64 * 1024),
        b"\x80\x04cos\nsystem\n" * 20,
        hello(group=bytes(32)),
        hello(receiver=3),
        hello(receiver=2**32 - 1),
        hello(sender=ME),
        hello(sender=3),
        hello(sender=2**32 - 1, lane=handshake.PROBE_LANE),
        hello(sender=ME, lane=handshake.PROBE_LANE),
        hello(lane=2),
        hello(lane=254),
    ],
    ids=[
        "noise", "oversize", "pickle", "other group", "other rank", "rank beyond", "from itself",
        "from a higher rank", "probe from beyond", "probe from itself", "no such lane", "lane 254",
    ],
)  # fmt: skip
def test_a_wrong_hello_is_dropped_without_an_answer(house: House, sent: bytes) -> None:
    with house.stranger() as stranger:
        try:
            stranger.sendall(sent)
        except (ConnectionResetError, BrokenPipeError):
            # Dropped before the oversize message was through.
            pass
        assert dropped(stranger)
    assert house.listener.rejected == 1
    house.dial(0).close()
    assert house.take(CALLER, 0)


@pytest.mark.parametrize("length", [0, 1, handshake.HELLO_BYTES - 1])
def test_a_truncated_hello_is_dropped(house: House, length: int) -> None:
    with house.stranger() as stranger:
        stranger.sendall(hello()[:length])
        stranger.shutdown(socket.SHUT_WR)
        assert dropped(stranger)
    assert house.listener.rejected == 1


@pytest.mark.parametrize(
    "proof",
    [bytes(32), secrets.token_bytes(32), bytes(64 * 1024)],
    ids=["zeros", "noise", "oversize"],
)
def test_a_wrong_proof_is_dropped(house: House, proof: bytes) -> None:
    with house.stranger() as stranger:
        stranger.sendall(hello())
        answer = stranger.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)
        assert len(answer) == handshake.REPLY_BYTES
        try:
            stranger.sendall(proof)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert dropped(stranger)
    assert (house.listener.rejected, house.arrived) == (1, {})


@pytest.mark.parametrize("over_unix", [False, True])
def test_who_has_another_secret_notices_and_does_not_get_in(house: House, over_unix: bool) -> None:
    with pytest.raises(HandshakeRefused, match="the acceptor does not know"):
        house.dial(0, secret=bytes(32), over_unix=over_unix)
    # One after the other in one thread: when this one was answered, the other one was dropped.
    house.dial(1).close()
    house.take(CALLER, 1)
    assert (house.listener.rejected, set(house.arrived)) == (1, {(CALLER, 1)})


def test_a_recorded_handshake_is_worth_nothing(house: House) -> None:
    with house.stranger() as good:
        recorded = hello()
        good.sendall(recorded)
        answer = good.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)
        proof = handshake.proof(SECRET, recorded, answer)
        good.sendall(proof)
        house.take(CALLER, 0)
    house.arrived.pop((CALLER, 0)).close()
    with house.stranger() as replayed:
        replayed.sendall(recorded + proof)
        assert len(replayed.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)) == 64
        assert dropped(replayed)
    assert (house.listener.rejected, house.arrived) == (1, {})


def test_who_is_calling_is_known_until_he_is_here(house: House) -> None:
    def is_calling() -> bool:
        return house.listener.is_called_by(house.registration, CALLER, 0)

    assert not is_calling()
    for proves in (True, False):
        with house.stranger() as caller:
            said = hello()
            caller.sendall(said)
            answer = caller.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)
            assert is_calling()
            assert not house.listener.is_called_by(house.registration, CALLER, 1)
            if proves:
                caller.sendall(handshake.proof(SECRET, said, answer))
        limit = time.monotonic() + LIMIT_S
        while is_calling():
            assert time.monotonic() < limit
        assert set(house.arrived) == {(CALLER, 0)}


def test_the_second_connection_of_a_lane_is_dropped(house: House) -> None:
    with house.dial(0) as first, house.dial(0) as second:
        second.setblocking(True)
        second.settimeout(LIMIT_S)
        assert dropped(second)
        taken = house.take(CALLER, 0)
        taken.send(b"x")
        first.setblocking(True)
        assert first.recv(1) == b"x"
    assert house.listener.rejected == 1


def test_a_probe_is_answered_and_not_delivered(house: House) -> None:
    house.dial(handshake.PROBE_LANE).close()
    house.dial(1).close()
    house.take(CALLER, 1)
    assert (house.listener.rejected, set(house.arrived)) == (0, {(CALLER, 1)})


def test_a_rank_that_has_left_turns_callers_away(house: House) -> None:
    house.listener.unregister(house.registration)
    with pytest.raises(TurnedAway):
        house.dial(0)
    house.listener.register(house.registration)
    house.dial(0).close()


@pytest.mark.parametrize("sent", [b"", b"d", hello()], ids=["silent", "slow", "no proof"])
def test_silence_has_an_end(house: House, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(listener, "PENDING_S", 0.15)
    began = time.monotonic()
    with house.stranger() as stranger:
        stranger.sendall(sent)
        if sent == hello():
            stranger.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)
        while not dropped(stranger):
            pass
    assert 0.1 < time.monotonic() - began < LIMIT_S
    assert house.listener.rejected == 1


@pytest.mark.parametrize("count", [1, 300])
def test_silent_strangers_do_not_delay_a_good_peer(
    house: House, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(listener, "PENDING_S", 2 * LIMIT_S)  # so long a silent one may be
    strangers = [house.stranger() for _ in range(count)]
    began = time.monotonic()
    with house.dial(0):
        house.take(CALLER, 0)
    assert time.monotonic() - began < LIMIT_S
    assert house.listener.rejected >= count - listener.PENDING_LIMIT
    for each in strangers:
        each.close()


def test_a_full_house_waits_for_those_who_just_came(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PENDING_LIMIT", 2)
    with house.stranger() as first, house.stranger() as second, house.dial(0):
        house.take(CALLER, 0)
        assert house.listener.rejected == 1
        assert dropped(first)
        second.sendall(hello(lane=1))
        assert len(second.recv(handshake.REPLY_BYTES, socket.MSG_WAITALL)) == 64


def test_another_users_unix_socket_is_not_trusted(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "same_user", lambda connection: False)
    for lane in (0, 1):
        with house.dial(lane, over_unix=True) as connection:
            assert connection.family == socket.AF_INET
    assert caplog.text.count("its UNIX socket cannot be used: it belongs to another user") == 1


class Acceptor:
    """A TCP server that does to its first caller what the test says."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.act = act
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        with self.server.accept()[0] as connection:
            self.act(connection)

    def dial(self, deadline_s: float, check: Callable[[], None] = lambda: None) -> None:
        self.thread.start()
        address = Endpoint(*self.server.getsockname(), None)
        deadline = time.monotonic() + deadline_s
        caller = Hello(GROUP, 0, CALLER, ME)
        try:
            dial(address, True, caller, SECRET, 30_000, deadline, check).close()
        finally:
            self.server.close()
            self.thread.join(LIMIT_S)
            assert not self.thread.is_alive()


def drain(connection: socket.socket) -> None:
    """Read until the caller gives up."""
    while connection.recv(4096):
        pass


def test_a_deadline_ends_the_wait_for_an_answer() -> None:
    began = time.monotonic()
    with pytest.raises(DialTimeout):
        Acceptor(drain).dial(0.2)
    assert 0.15 < time.monotonic() - began < LIMIT_S


def test_a_check_ends_the_wait_for_an_answer() -> None:
    greeted = threading.Event()

    def greet(connection: socket.socket) -> None:
        connection.recv(1)
        greeted.set()
        drain(connection)

    def check() -> None:
        if greeted.is_set():
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Acceptor(greet).dial(4 * LIMIT_S, check)
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("size", [handshake.REPLY_BYTES, 64 * 1024])
def test_who_answers_nonsense_gets_no_proof(size: int) -> None:
    received: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        connection.recv(handshake.HELLO_BYTES, socket.MSG_WAITALL)
        try:
            connection.sendall(bytes(size))
            received.append(connection.recv(1))
        except (ConnectionResetError, BrokenPipeError):
            received.append(b"")

    with pytest.raises(HandshakeRefused):
        Acceptor(answer).dial(LIMIT_S)
    assert received == [b""]
