"""Arguments that torch and its backends take unseen, and die of.

gloo asks neither `send` nor `recv` whether their peer is in the group: the process ends by SIGSEGV,
or waits for ever. Nor does it ask whether a split is negative, and sends what lies beside the
tensor. All else that is wrong by itself (roots, tags, lengths of lists, dtypes and sizes
of outputs) torch or the backend refuses at once, in words that programs know; so it stays.

Asked once for each distinct call, before it is on record: what is refused is never made.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...record.ops import POINT_TO_POINT
from ...record.signature import ANY_SOURCE
from ...record.wording import ranks_text
from ..record.describe import Facts


class InvalidArgumentError(ValueError):
    """A call that is wrong by itself."""


def check(op: str, facts: Facts, ranks: Sequence[int]) -> None:
    """Raises InvalidArgumentError for a message to or from a rank that is not in the group, and for
    a negative split."""
    if op == "all_to_all_single":
        _check_splits("input_split_sizes", facts[4][0])
        _check_splits("output_split_sizes", facts[4][1])
    if op not in POINT_TO_POINT:
        return
    peer = facts[4]
    if 0 <= peer < len(ranks) or (op == "recv" and peer == ANY_SOURCE):
        return
    role, other = ("destination", "dst") if op == "send" else ("source", "src")
    raise InvalidArgumentError(
        f"{op}({other}={peer}): there is no such {role} in the group, which has {len(ranks)} "
        f"ranks ({ranks_text(ranks)})"
    )


def _check_splits(name: str, splits: Sequence[int]) -> None:
    if splits and min(splits) < 0:
        raise InvalidArgumentError(
            f"all_to_all_single({name}={list(splits)}): a split cannot have {min(splits)} rows"
        )


InvalidArgumentError.__module__ = "distdebug"
