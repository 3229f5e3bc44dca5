"""Random programs of sends and receives between ranks of one host, against a model: messages of one
sender with one tag arrive in their order, whole, and each once; what a rank that dies has put into
its ring arrives, and the rest names it."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import defaultdict
from itertools import permutations
from typing import Any

import pytest

from distcore import errors
from distcore.transports.lane import PIECE_BYTES, RING_BYTES
from distcore.transports.mailbox import Mailbox
from distcore.transports.matching import Posting
from distcore.transports.parcels import EAGER_BYTES
from tests.support.meshes import lanes, together

SIZES = (0, 1, 8, 63, 64, 65, EAGER_BYTES - 1, EAGER_BYTES, EAGER_BYTES + 1, PIECE_BYTES,
         PIECE_BYTES + 1, 3 * PIECE_BYTES, RING_BYTES, RING_BYTES + 7)  # fmt: skip
LIMIT_S = 20.0
ANY = 9
"""The tag of receives from any source: its messages are of one size."""


Call = tuple[str, int, int, int, int]


def content(sender: int, receiver: int, tag: int, number: int, size: int) -> bytearray:
    begin = random.Random(f"{sender} {receiver} {tag} {number}").randbytes(16)
    return bytearray(begin[:size].ljust(size, b"."))


def program(
    seed: int, size: int, tags: tuple[int, ...]
) -> list[list[tuple[str, int, int, int, int]]]:
    """For each rank, its calls: (kind, peer, tag, number, bytes). The order of a rank's receives is
    any, but with each sender and tag; all are posted before the first is waited for."""
    chance = random.Random(seed)
    calls: list[list[Call]] = [[] for _ in range(size)]
    for sender, receiver in permutations(range(size), 2):
        counts: dict[int, int] = defaultdict(int)
        for _ in range(chance.randrange(6)):
            tag = chance.choice(tags)
            length = 32 if tag == ANY else chance.choice(SIZES)
            for rank, kind, peer in ((sender, "send", receiver), (receiver, "recv", sender)):
                at = chance.randrange(len(calls[rank]) + 1)
                before = [
                    place for place, (k, p, t, *_) in enumerate(calls[rank])
                    if (k, p, t) == (kind, peer, tag)
                ]  # fmt: skip
                at = max([at, *(place + 1 for place in before)])
                calls[rank].insert(at, (kind, peer, tag, counts[tag], length))
            counts[tag] += 1
    return calls


@pytest.fixture(params=range(12))
def seed(request: pytest.FixtureRequest) -> int:
    return int(os.environ.get("DISTCORE_TEST_SEED", 0)) + int(request.param)


@pytest.mark.parametrize("dies", [False, True])
def test_random_programs(seed: int, dies: bool) -> None:
    run_program(seed, dies)


@pytest.mark.long  # what is rare among interleavings comes up among so many
@pytest.mark.timeout(3600)
def test_ten_thousand_random_programs() -> None:
    begin = int(os.environ.get("DISTCORE_TEST_SEED", 1000))
    for seed in range(begin, begin + 10_000):
        try:
            run_program(seed, dies=seed % 2 == 0)
        except BaseException:
            print(f"DISTCORE_TEST_SEED={seed}")
            raise


def run_program(seed: int, dies: bool) -> None:
    """Runs the seed's program on mailboxes of threads, and checks it against the model. `dies`:
    rank 0 ends somewhere in it."""
    size = 2 + seed % 3
    # One that is gone ends no receive from any source, while others may send.
    calls = program(seed, size, (0, 1) if dies else (0, 1, ANY))
    lives: dict[tuple[int, int], socket.socket] = {}
    for low, high in ((a, b) for a, b in permutations(range(size), 2) if a < b):
        lives[low, high], lives[high, low] = socket.socketpair()

    def run(rank: int) -> tuple[list[Posting], list[Any]]:
        chance = random.Random(seed * 100 + rank)
        box = boxes[rank]
        last = chance.randrange(len(calls[rank]) + 1) if dies and rank == 0 else len(calls[rank])
        postings: list[Posting] = []
        for kind, peer, tag, number, length in calls[rank][:last]:
            until = time.monotonic() + LIMIT_S
            if kind == "send":
                data = content(rank, peer, tag, number, length)
                postings.append(box.post_send(peer, tag, memoryview(data), until))
            else:
                source = None if tag == ANY else peer
                into = memoryview(bytearray(length))
                postings.append(box.post_receive(source, tag, into, until))
            if not chance.randrange(4):
                assert postings[-1].done in (True, False)
        if dies and rank == 0:  # as the end of its process: nothing more is said
            for peer in range(1, size):
                lives[0, peer].shutdown(socket.SHUT_RDWR)
            return postings, []
        outcome: list[Any] = [None] * last
        for place in chance.sample(range(last), last):
            try:
                assert postings[place].wait(LIMIT_S)
            except errors.GroupFailed as error:
                outcome[place] = error
        return postings, outcome

    with lanes(size, in_place=seed % 4 < 2) as options:
        boxes = [
            Mailbox(
                "g",
                range(size),
                rank,
                None,  # type: ignore[arg-type]
                {peer: lives[rank, peer].fileno() for peer in range(size) if peer != rank},
                lambda _peer: False,
                **options[rank],
            )
            for rank in range(size)
        ]
        results = together(size, run)
        check(calls, results, dies)
        for box in boxes:
            box.close()
    for one in lives.values():
        one.close()


def check(calls: list[Any], results: list[Any], dies: bool) -> None:
    for rank, found in enumerate(results):
        assert not isinstance(found, BaseException), found
        postings, outcome = found
        any_source: dict[int, int] = defaultdict(int)
        for call, posting, error in zip(calls[rank], postings, outcome, strict=False):
            kind, peer, tag, number, length = call
            if error is not None:
                assert dies
                assert isinstance(error, errors.PeerLost), error
                assert error.culprit == 0
                assert peer == 0
            elif kind == "recv":
                if tag == ANY:
                    peer, number = posting.source, any_source[posting.source]
                    any_source[peer] += 1
                assert bytes(posting.data) == content(peer, rank, tag, number, length)
