"""The names of the checks on data and memory, as `--check` and the mark of a test take them."""

from __future__ import annotations

CHECKS = ("nan", "overflow", "inflight", "replicas", "tensors")
ALL = "all"


def chosen(text: str) -> tuple[str, ...]:
    """The checks that `nan,overflow` names, each once. Raises ValueError with a sentence."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*CHECKS, ALL):
            raise ValueError(f"{name!r} is none of {', '.join((*CHECKS, ALL))}")
    return tuple(dict.fromkeys(names))
