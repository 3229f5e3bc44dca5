"""The kinds of findings: all that is known of a kind stands here, one record each.

They are beside the flight record, and not in the diagnosis, since ranks raise findings too (a NaN,
calls that differ at DETAIL), and what runs in a rank shares only `record` with what judges it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Family(Enum):
    """The subject of a finding; a rank raises an error of the family's class."""

    MISMATCH = "calls that do not fit each other"
    DEADLOCK = "ranks that wait for each other"
    ABSENCE = "a rank that others wait for is late, has left, or is dead"
    FAILURE = "a rank has failed, and its traceback says more"
    DATA = "what is communicated is wrong"
    USE = "a use that works, or fails, elsewhere than it seems"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding. `exit_code`: of a run whose verdict it is; 0: only ever a warning.
    `title`: the first words of a printed finding."""

    name: str
    exit_code: int
    family: Family
    title: str = "MISMATCH"
    of_signatures: bool = False
    """The signatures of one call differ: nothing is compared at level OFF."""
    voted: bool = False
    """Every rank of the group makes the call: without a majority any of them may be wrong."""
    ends_all: bool = False
    """True where it ends the other ranks too: the launcher sees to that."""
    restarted: bool = False
    """A launcher may answer it with a restart, of which the supervisor alone knows."""
    ends_culprits: bool = False
    """Its culprits have ended by themselves, not since something else was found."""
    stack_tells: bool = False
    """Its culprit is outside a call of ours: its stack says why, not only its line."""
    spreads: bool = False
    """Calls carry what is wrong to the other ranks, which have it in theirs from then on."""
    leaves: bool = False
    """A culprit has left, so that others wait in vain."""
    stuck: bool = False
    """A culprit waits, or is somewhere else, while others wait for it."""
    by_order: bool = False
    """Whether it happens may depend on what is buffered, and on who comes first."""
    by_calls: bool = False
    """The same calls lead to it again, whatever program makes them."""
    at_once: bool = False
    """A warning of it is told while the run goes on, which computes what nobody meant."""
    by_slip: bool = False
    """Ranks that have skipped or repeated a call of the group before are to blame for it."""
    at_one_line: bool = False
    """True where it is of the program's line alone: ranks that make it at one line make one
    mistake."""
    only_by: frozenset[str] = frozenset()
    """The injected faults that may explain it; empty: any of them."""

    @property
    def follows(self) -> bool:
        """Whether it is what becomes of ranks when another one has gone wrong: a consequence, if
        there is a cause before it."""
        return self.family in (Family.DEADLOCK, Family.ABSENCE, Family.FAILURE)

    @property
    def by_agreement(self) -> bool:
        """Ranks that compare a call before they make it all refuse it for this; splits that do not
        add up are an argument of one of them."""
        return self.family is Family.MISMATCH or self.name == "invalid_argument"


_ENDED: dict[str, Any] = {
    "ends_all": True,
    "restarted": True,
    "ends_culprits": True,
    "stack_tells": True,
}
"""A rank has ended by itself."""
_ALL = (
    Kind(
        "op_mismatch",
        91,
        Family.MISMATCH,
        of_signatures=True,
        voted=True,
        by_calls=True,
        by_slip=True,
    ),
    Kind(
        "shape_mismatch",
        91,
        Family.MISMATCH,
        of_signatures=True,
        voted=True,
        by_calls=True,
        by_slip=True,
    ),
    Kind("dtype_mismatch", 91, Family.MISMATCH, of_signatures=True, voted=True, by_calls=True),
    Kind("reduce_op_mismatch", 91, Family.MISMATCH, of_signatures=True, voted=True, by_calls=True),
    Kind("root_mismatch", 91, Family.MISMATCH, of_signatures=True, voted=True, by_calls=True),
    Kind("split_mismatch", 91, Family.MISMATCH, of_signatures=True, by_calls=True),
    Kind("group_mismatch", 91, Family.MISMATCH, voted=True, by_calls=True),
    Kind("p2p_mismatch", 91, Family.MISMATCH, by_calls=True),
    Kind("misaligned", 91, Family.MISMATCH, "LINES PART", at_once=True, by_calls=True),
    Kind("deadlock", 92, Family.DEADLOCK, "DEADLOCK", stuck=True, by_order=True, by_calls=True),
    Kind(
        "missing_rank",
        93,
        Family.ABSENCE,
        "MISSING RANK",
        stack_tells=True,
        stuck=True,
        by_calls=True,
        by_slip=True,
    ),
    Kind(
        "early_exit",
        93,
        Family.ABSENCE,
        "EARLY EXIT",
        restarted=True,
        ends_culprits=True,
        stack_tells=True,
        leaves=True,
        by_order=True,
        by_calls=True,
        by_slip=True,
    ),
    Kind(
        "unmatched_p2p",
        93,
        Family.ABSENCE,
        "UNMATCHED SEND/RECV",
        leaves=True,
        by_order=True,
        by_calls=True,
    ),
    Kind("join_timeout", 93, Family.ABSENCE, "GROUP NEVER FORMED", ends_all=True, stack_tells=True),
    Kind("stalled", 93, Family.ABSENCE, "STALLED", by_calls=True),
    Kind(
        "forked",
        93,
        Family.USE,
        "FORKED CHILD USED THE GROUP",
        ends_culprits=True,
        at_one_line=True,
    ),
    Kind("node_lost", 94, Family.ABSENCE, "NODE LOST", ends_all=True, leaves=True),
    Kind("rank_died", 94, Family.ABSENCE, "RANK DIED", **_ENDED),
    Kind("rank_exception", 1, Family.FAILURE, "EXCEPTION", **_ENDED),
    Kind("nan", 95, Family.DATA, "NAN", spreads=True),
    Kind("overflow", 95, Family.DATA, "OVERFLOW", spreads=True),
    Kind("divergence", 95, Family.DATA, "DIVERGENCE"),
    Kind("inflight_write", 95, Family.DATA, "RACE IN FLIGHT", at_one_line=True),
    Kind("unsafe_tensor", 95, Family.DATA, "UNSAFE TENSOR", at_one_line=True),
    Kind("invalid_argument", 1, Family.FAILURE, "INVALID ARGUMENT", **_ENDED),
    Kind("ddp_unused_parameters", 1, Family.FAILURE, "UNUSED PARAMETERS", ends_all=True),
    Kind("tool_error", 96, Family.FAILURE, "DISTDEBUG ITSELF FAILED", **_ENDED),
    Kind("not_in_group", 0, Family.USE, "NOT IN GROUP"),
    Kind("unwaited_work", 0, Family.USE, "NOT WAITED FOR"),
    Kind(
        "straggler",
        0,
        Family.USE,
        "STRAGGLER",
        only_by=frozenset({"delay", "link", "partition"}),  # a rank with a NaN is slow by itself
    ),
)

KINDS = {kind.name: kind for kind in _ALL}
"""Every kind by its name, in the order in which README lists them."""


def kind_of(name: str) -> Kind:
    """The kind of that name. A report may be of another version: of a name that is not known no
    more is said than the name does."""
    return KINDS.get(name) or Kind(name, 1, Family.USE, name.replace("_", " ").upper())


def page_of(name: str) -> str:
    """The file of the page about the kind of that name, as Markdown."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "docs", "kinds", f"{name}.md")


CHECKS = ("nan", "nan-origin", "overflow", "inflight", "replicas", "tensors")
ALL_CHECKS = "all"


def chosen_checks(text: str) -> tuple[str, ...]:
    """The checks that `nan,overflow` names, each once. Raises ValueError with a sentence."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*CHECKS, ALL_CHECKS):
            raise ValueError(f"{name!r} is none of {', '.join((*CHECKS, ALL_CHECKS))}")
    return tuple(dict.fromkeys(names))
