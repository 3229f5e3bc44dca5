"""Both packages read alike what a program writes for a backend; neither may use the other's."""

from __future__ import annotations

import pytest

from distcore.registration import by_device
from distdebug.record import wording


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gloo", {"": "gloo"}),
        ("cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"}),
        ("cpu:tcp, cuda:distcore_nccl", {"cpu": "tcp", "cuda": "distcore_nccl"}),
        ("", {"": ""}),
    ],
)
def test_a_backend_is_read_the_same_everywhere(text: str, found: dict[str, str]) -> None:
    assert wording.by_device(text) == by_device(text) == found
