"""Reads the names that a program writes for a backend: one name, or one for each kind of device."""

from __future__ import annotations


def by_device(text: str) -> dict[str, str]:
    """{"cpu": "gloo", "cuda": "nccl"} for "cpu:gloo,cuda:nccl"; {"": "gloo"} for "gloo"."""
    parts = (part.strip().rpartition(":") for part in text.split(","))
    return {device: name for device, _, name in parts}
