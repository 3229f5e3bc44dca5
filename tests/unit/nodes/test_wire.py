"""What comes over the network is bounded and checked: messages, patches, offers, clocks."""

from __future__ import annotations

import zlib

import pytest

from distdebug.nodes.keys import SCHEMA, Offer, OfferError
from distdebug.nodes.messages import (
    MOST_UNPACKED_BYTES,
    Message,
    MessageError,
    Patch,
    PatchError,
    message_of,
    packed,
    unpacked,
)
from distdebug.nodes.presence import Offset
from distdebug.nodes.several import Several, of_tasks, task_of

KEY = "a" * 40
OFFER = Offer("10.0.0.1", 4000, KEY, "node0")
NEXT = "distdebug.nodes/3"


def test_a_message_is_read_back() -> None:
    message = Message("digest", {"t": 1, "files": [[0, "0.flight", 9]]}, b"blob")
    assert message_of(message.parts()) == message
    assert message_of(Message("bye").parts()) == Message("bye")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"digest"],
        [b"digest", b"{}", b"", b""],
        [b"digest" * 100, b"{}"],
        [b"digest", b"[]"],
        [b"digest", b"{"],
        [b"digest", b'{"a":' + b"[" * 100_000],
        [b"digest", b'{"a":[' + b"[]," * 4_000_000 + b"0]}"],
    ],
    ids=range(8),
)
def test_what_is_no_message(parts: list[bytes]) -> None:
    with pytest.raises(MessageError):
        message_of(parts)


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_patches_are_read_back(size: int) -> None:
    patches = [Patch(0, 7, b"x" * size), Patch(3, 1 << 20, b"yz")]
    assert list(unpacked(packed(patches))) == patches
    assert list(unpacked(packed([]))) == []


@pytest.mark.parametrize(
    "blob",
    [
        b"\2abc",
        b"\0abc",
        b"\1abc",
        packed([Patch(0, 0, b"abcdef")])[:-1],
    ],
    ids=range(4),
)
def test_what_are_no_patches(blob: bytes) -> None:
    with pytest.raises(PatchError):
        list(unpacked(blob))


def test_patches_that_unpack_to_too_much() -> None:
    blob = b"\1" + zlib.compress(bytes(MOST_UNPACKED_BYTES + 1), 1)
    with pytest.raises(PatchError):
        list(unpacked(blob))


def test_an_offer_is_read_back() -> None:
    assert Offer.of(OFFER.text()) == OFFER
    another = Offer.of(OFFER.text().replace(SCHEMA, NEXT))
    assert another == OFFER, "the head of another version has to hear of this node to refuse it"
    assert OFFER.endpoint == "tcp://10.0.0.1:4000"
    assert Offer("fe80::1", 4000, KEY).endpoint == "tcp://[fe80::1]:4000"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "none of its offers"),
        ('{"schema": 1}', "none of its offers"),
        (OFFER.text().replace(SCHEMA, NEXT).replace("4000", '"tcp"'), "install one version on all"),
        (OFFER.text().replace("10.0.0.1", "host; rm"), "lacks an address"),
        (OFFER.text().replace("4000", "70000"), "lacks an address"),
        (OFFER.text().replace(KEY, "short"), "lacks an address"),
    ],
)
def test_what_is_no_offer(text: str, reason: str) -> None:
    with pytest.raises(OfferError, match=reason):
        Offer.of(text)


def test_the_quickest_exchange_tells_the_offset() -> None:
    offset = Offset()
    assert offset.exchanged(1000, 500, 3000)
    assert (offset.add_ns, offset.error_ns) == (1500, 1000)
    assert not offset.exchanged(5000, 3400, 6800), "hardly better: what was corrected stays"
    assert offset.exchanged(9000, 7600, 9100)
    assert (offset.add_ns, offset.error_ns) == (1450, 50)
    assert not offset.exchanged(20_000, 1, 19_000), "time does not run backwards"


def test_a_clock_that_has_drifted_is_followed() -> None:
    offset = Offset()
    for second in range(100):
        now = second * 1_000_000_000
        offset.exchanged(now, now - 5_000_000_000 - second * 20_000, now + 100_000)
    assert abs(offset.add_ns - 5_000_000_000 - 99 * 20_000) < 500_000


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 2),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0),  # a batch script, and one supervisor
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, 0),
        ({"WORLD_SIZE": "2"}, 0),
        ({"RANK": "0", "WORLD_SIZE": "many"}, 0),
        ({}, 0),
    ],
)
def test_tasks_of_a_job(environment: dict[str, str], count: int) -> None:
    found = of_tasks(environment)
    assert found == (Several(count, count, task=task_of(environment)) if count else None)


def test_a_task_has_all_its_names() -> None:
    """One task of Slurm's may start two ranks, each with a supervisor: they are not the same."""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7"}
    assert task_of(slurm | {"RANK": "1"}) == "SLURM_PROCID=0 RANK=1 SLURM_JOB_ID=7"
    assert task_of({"WORLD_SIZE": "2"}) == ""
