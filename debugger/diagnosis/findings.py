"""What a finding is: the vocabulary of kinds, their exit codes, and the record of one finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record.snapshot import CallSite, Group
from ..record.wording import printable

EXIT_CODES: dict[str, int] = {
    "op_mismatch": 91,
    "shape_mismatch": 91,
    "dtype_mismatch": 91,
    "reduce_op_mismatch": 91,
    "root_mismatch": 91,
    "split_mismatch": 91,
    "group_mismatch": 91,
    "p2p_mismatch": 91,
    "deadlock": 92,
    "missing_rank": 93,
    "early_exit": 93,
    "unmatched_p2p": 93,
    "join_timeout": 93,
    "stalled": 93,
    "forked": 93,
    "rank_died": 94,
    "rank_exception": 1,
    "nan": 95,
    "overflow": 95,
    "divergence": 95,
    "inflight_write": 95,
    "unsafe_tensor": 95,
    "invalid_argument": 1,
    "ddp_unused_parameters": 1,
    "tool_error": 96,
    "not_in_group": 0,
    "unwaited_work": 0,
    "straggler": 0,
}
"""Every kind, with the exit code of a run whose verdict it is. 0: only ever a warning."""

TITLES: dict[str, str] = {
    "deadlock": "DEADLOCK",
    "missing_rank": "MISSING RANK",
    "early_exit": "EARLY EXIT",
    "unmatched_p2p": "UNMATCHED SEND/RECV",
    "join_timeout": "GROUP NEVER FORMED",
    "stalled": "STALLED",
    "forked": "FORKED CHILD USED THE GROUP",
    "rank_died": "RANK DIED",
    "rank_exception": "EXCEPTION",
    "invalid_argument": "INVALID ARGUMENT",
    "not_in_group": "NOT IN GROUP",
    "nan": "NAN",
    "overflow": "OVERFLOW",
    "inflight_write": "RACE IN FLIGHT",
    "straggler": "STRAGGLER",
    "ddp_unused_parameters": "UNUSED PARAMETERS",
    "divergence": "DIVERGENCE",
    "unsafe_tensor": "UNSAFE TENSOR",
    "unwaited_work": "NOT WAITED FOR",
    "tool_error": "DISTDEBUG ITSELF FAILED",
}
"""The first word of a printed finding; kinds that are not here are a MISMATCH."""


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """Where one rank stood. `call` is a printed signature, `state` a phrase in words."""

    state: str
    call: str | None = None
    location: CallSite | None = None
    stack: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """The group that a finding is about. `ranks` are global ranks in group order."""

    name: str
    desc: str
    ranks: tuple[int, ...]


def group_evidence(group: Group) -> GroupEvidence:
    """The evidence for this group."""
    return GroupEvidence(
        name=printable(group.key[0], 120), desc=printable(group.desc, 120), ranks=group.ranks
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. `culprits` are the ranks to look at first, in the order that matters for the
    kind (a deadlock's cycle); `victims` everybody else in it; `missing` ranks that never came.

    `observable_ns` is when the last of the events that prove it happened (Unix nanoseconds).
    `message` is one sentence without newlines. `details` are further lines for the text report
    (a unified diff, the cycle, the calls that agreed), each one printable line.

    From a foreign record: `side` is "host" (the call was never issued) or "device" (issued, and
    never completed); `not_in_record` names what of a call that kind of record does not hold.
    """

    kind: str
    message: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    severity: str = "error"
    proven: bool = True
    cause: str | None = None
    group: GroupEvidence | None = None
    seq: int | None = None
    ranks: Mapping[int, RankEvidence] = field(default_factory=dict)
    details: Sequence[str] = ()
    observable_ns: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    side: str | None = None
    not_in_record: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for the same finding seen in two snapshots."""
        group = self.group.name if self.group else None
        return (self.kind, tuple(sorted(self.culprits)), group, self.seq, self.severity)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]

    def __repr__(self) -> str:
        where = f" #{self.seq} of {self.group.name}" if self.group and self.seq is not None else ""
        return f"<{self.severity} {self.kind}{where}: culprits {list(self.culprits)}>"
