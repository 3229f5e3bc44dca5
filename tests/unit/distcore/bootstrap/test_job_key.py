"""With a key of the job, what lies in the store lets nobody into a group."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import HashStore

from distcore.bootstrap.handshake import job_key
from distcore.bootstrap.rendezvous import Rendezvous
from distcore.engine.session import Session
from distcore.errors import PeerLost, RendezvousError
from distcore.tcp.engine import connect
from distdebug.nodes.several import job_key as of_nodes

LIMIT_S = 20.0


class Watched(HashStore):  # type: ignore[misc]
    """A store that somebody else reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.seen[key] = value.encode() if isinstance(value, str) else value
        super().set(key, value)

    @property
    def secret(self) -> bytes:
        [proposal] = [value for key, value in self.seen.items() if "/proposal/" in key]
        return bytes.fromhex(json.loads(proposal)["secret"])


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "key"
    path.write_bytes(secrets.token_bytes(32))
    path.chmod(0o600)
    monkeypatch.setenv("DISTCORE_KEY_FILE", str(path))
    return path


def both(make: Callable[[int], object]) -> list[object]:
    """What two ranks get, or the errors they end with."""

    def one(rank: int) -> object:
        try:
            return make(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def pair(store: HashStore) -> list[Rendezvous]:
    made = both(lambda rank: Rendezvous(store, "g", [0, 1], rank, LIMIT_S))
    assert all(isinstance(one, Rendezvous) for one in made), made
    return made  # type: ignore[return-value]


def break_in(store: Watched, group: list[Rendezvous]) -> bool:
    """Whether one who knows all that was in the store is taken for rank 0."""
    stranger = group[0]
    assert stranger._round is not None
    stranger._round = replace(stranger._round, secret=store.secret)
    try:
        stranger.connect(1, 0, time.monotonic() + LIMIT_S).close()
    except PeerLost:
        return False
    return True


@pytest.mark.usefixtures("key_file")
def test_the_store_lets_nobody_in() -> None:
    store = Watched()
    group = pair(store)
    assert not break_in(store, group)
    for one in group:
        one.close()


def test_without_a_key_it_does() -> None:
    """The twin: this is what the key is for."""
    store = Watched()
    group = pair(store)
    assert break_in(store, group)
    for one in group:
        one.close()


@pytest.mark.usefixtures("key_file")
def test_a_group_with_a_key_works() -> None:
    store = HashStore()
    sessions = both(lambda rank: connect(store, "g", (0, 1), rank, LIMIT_S))
    assert all(isinstance(one, Session) for one in sessions), sessions
    assert len({one.token for one in sessions}) == 1  # type: ignore[attr-defined]
    both(lambda rank: sessions[rank].close())  # type: ignore[attr-defined]


@pytest.mark.parametrize("other", [b"", secrets.token_bytes(32)], ids=["none", "another"])
def test_ranks_with_different_keys_are_told(
    key_file: Path, other: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {0: key_file.read_bytes(), 1: other}
    here = threading.local()
    # By its full name, for `distcore.bootstrap.rendezvous` is torch's function.
    module = sys.modules["distcore.bootstrap.rendezvous"]
    monkeypatch.setattr(module, "job_key", lambda: keys[here.rank])
    store = HashStore()

    def make(rank: int) -> object:
        here.rank = rank
        return Rendezvous(store, "g", [0, 1], rank, LIMIT_S)

    for error in both(make):
        assert isinstance(error, RendezvousError), error
        assert "all ranks must have the same key of the job" in str(error)
        assert "DISTCORE_KEY_FILE" in str(error)


def test_the_file_of_a_job_key_serves_for_groups_too(key_file: Path) -> None:
    """As the page on security says of several nodes, which both read it."""
    key_file.write_text(secrets.token_hex(32) + "\n")
    assert job_key().strip() == of_nodes(key_file, {})


def test_files_that_are_no_key(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = job_key()
    assert len(key) == 32
    key_file.rename(key_file.with_name("aside"))
    assert job_key() == key, "it was read already"
    key_file.with_name("aside").rename(key_file)
    key_file.chmod(0o640)
    with pytest.raises(RendezvousError, match=r"open to other users \(mode 0640\): chmod 600"):
        job_key()
    key_file.write_bytes(b"short")
    key_file.chmod(0o600)
    with pytest.raises(RendezvousError, match="holds 5 bytes, a key has 32 or more"):
        job_key()
    key_file.unlink()
    monkeypatch.setenv("DISTCORE_KEY_FILE", f"{key_file}-another")
    with pytest.raises(RendezvousError, match="cannot be read"):
        job_key()
    monkeypatch.setenv("DISTCORE_KEY_FILE", str(key_file))
    key_file.mkdir(0o700)
    with pytest.raises(RendezvousError, match="is no plain file"):
        job_key()
