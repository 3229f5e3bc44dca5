"""Messages outside of batches: who waits for whom while a connection is made."""

from __future__ import annotations

import threading
from typing import Any

import torch

from distcore.base.deadline import Deadline
from distcore.nccl.life import Path
from distcore.nccl.messages import PairConnection
from distcore.nccl.plan import Planned
from distcore.nccl.work import StreamWork
from tests.support.fake_nccl.recording import RecordingDevice

LIMIT_S = 20.0


class Life:
    """As far as a connection asks for it."""

    prefix, described, ranks, rank = "p", "group 'g' (rank 0)", (0, 1), 0

    def check(self) -> None: ...

    def joined(self, _member: Any) -> None: ...

    def fail(self, error: BaseException) -> None:
        raise error


class Connects:
    def connect(self, *_args: Any) -> Any:
        return object()


def test_a_second_message_does_not_wait_for_the_first_one_to_be_taken() -> None:
    """NCCL takes the first when the other rank receives it, which may be after this rank's next."""
    device: Any = RecordingDevice()
    life: Any = Life()
    life.device, life.connector = device, Connects()
    connection = PairConnection(Path(0, 1, 0), life, 0)
    taken, received = threading.Event(), threading.Event()
    order: list[str] = []

    def launch(_lane: Any, _member: Any, work: StreamWork, _what: Any, _ready: Any) -> None:
        taken.set()
        assert received.wait(LIMIT_S)
        order.append(work.text)
        if len(order) == 3:
            over.set()

    over = threading.Event()
    what = Planned(list, ())
    works = [StreamWork(text, [torch.zeros(1)], device, 0, Deadline.after(60.0)) for text in "abc"]
    connection.post(works[0], what, launch)
    assert taken.wait(LIMIT_S)
    others = threading.Thread(
        target=lambda: [connection.post(work, what, launch) for work in works[1:]]
    )
    others.start()
    others.join(LIMIT_S)
    assert not others.is_alive(), "a message waits for the one before it"
    assert order == []
    received.set()
    assert over.wait(LIMIT_S)
    assert order == ["a", "b", "c"]
