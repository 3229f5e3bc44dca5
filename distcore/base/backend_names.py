"""The names that a program writes for a backend: one, or one for each kind of device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def by_device(text: str) -> dict[str, str]:
    """{"cpu": "tcp", "cuda": "nccl"} for "cpu:tcp,cuda:nccl"; {"": "tcp"} for "tcp"."""
    return dict(_pairs(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Returns the backend's names with other ones for those in `names`, whose keys are in lower
    case."""
    return ",".join(
        f"{device}:{names.get(name.lower(), name)}" if device else names.get(name.lower(), name)
        for device, name in _pairs(text)
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        device, _, name = part.strip().rpartition(":")
        yield device, name
