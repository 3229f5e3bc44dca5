"""The choice of an algorithm: one table by op, size and number of ranks, and the user's own wish.

All ranks of a group must choose alike, so only what all of them know is asked: the op, the group's
size, and bytes that are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import board, direct, recursive, ring, tree

ALGORITHM_VARIABLE = "DISTCORE_ALGORITHM"

ALGORITHMS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "all_reduce": {
        "board": board.all_reduce,
        "direct": direct.all_reduce,
        "hub": direct.all_reduce_by_hub,
        "two_step": direct.all_reduce_in_two_steps,
        "doubling": recursive.all_reduce_by_doubling,
        "halving": recursive.all_reduce_by_halving,
        "ring": ring.all_reduce,
    },
    "reduce": {"tree": tree.reduce, "chain": tree.reduce_along_chain},
    "broadcast": {
        "board": board.broadcast,
        "direct": direct.broadcast,
        "tree": tree.broadcast,
        "chain": tree.broadcast_along_chain,
        "ring": ring.broadcast,
    },
    "all_gather": {
        "board": board.all_gather,
        "direct": direct.all_gather,
        "bruck": recursive.all_gather,
        "ring": ring.all_gather,
    },
    "gather": {"direct": direct.gather, "tree": tree.gather},
    "scatter": {"direct": direct.scatter, "tree": tree.scatter},
    "reduce_scatter": {
        "board": board.reduce_scatter,
        "direct": direct.reduce_scatter,
        "halving": recursive.reduce_scatter_by_halving,
        "ring": ring.reduce_scatter,
    },
    "all_to_all": {
        "board": board.all_to_all,
        "direct": direct.all_to_all,
        "pairwise": ring.all_to_all_pairwise,
    },
}
"""The algorithms of each op. A barrier has one."""

POWERS_OF_TWO_ONLY = frozenset({("reduce_scatter", "halving")})
"""With another number of ranks the table decides, whatever the user wishes."""

NEEDS_BOARD = "board"
"""Without memory that all ranks see the table decides, whatever the user wishes."""

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """`algorithm` is for up to this many bytes and ranks (None: any number)."""

    op: str
    algorithm: str
    most_bytes: int | None = None
    most_ranks: int | None = None
    power_of_two: bool = False
    one_host: bool = False
    """Only where the ranks have a board (`Transport.board`)."""

    def fits(self, ranks: int, board: bool) -> bool:
        """Whether it is for groups of this size, with a board or without."""
        if self.one_host and not board:
            return False
        if self.power_of_two and ranks & (ranks - 1):
            return False
        return self.most_ranks is None or ranks <= self.most_ranks


TABLE: tuple[ChoiceRow, ...] = (
    # The first row of an op that fits is taken. Bytes: of the whole tensor; for all_gather and
    # reduce_scatter of all ranks' parts together; for gather and scatter of one part. all_to_all
    # has none: its sizes differ from rank to rank.
    ChoiceRow("all_reduce", "doubling", most_bytes=256 * _KIB, most_ranks=2),
    ChoiceRow("all_reduce", "hub", most_bytes=64 * _KIB, most_ranks=16, one_host=True),
    ChoiceRow("all_reduce", "board", most_ranks=16, one_host=True),
    ChoiceRow("all_reduce", "hub", most_bytes=8 * _KIB, most_ranks=8),
    ChoiceRow("all_reduce", "direct", most_bytes=64 * _KIB, most_ranks=3),
    ChoiceRow("all_reduce", "doubling", most_bytes=256 * _KIB, most_ranks=4, power_of_two=True),
    ChoiceRow("all_reduce", "doubling", most_bytes=32 * _KIB),
    ChoiceRow("all_reduce", "halving", power_of_two=True),
    ChoiceRow("all_reduce", "two_step", most_bytes=1 * _MIB, most_ranks=7),
    ChoiceRow("all_reduce", "ring"),
    ChoiceRow("reduce", "tree", most_ranks=4),
    ChoiceRow("reduce", "tree", most_bytes=1 * _MIB),
    ChoiceRow("reduce", "chain"),
    ChoiceRow("broadcast", "tree", most_ranks=2),
    ChoiceRow("broadcast", "direct", most_bytes=64 * _KIB, most_ranks=4),
    ChoiceRow("broadcast", "tree", most_bytes=64 * _KIB),
    ChoiceRow("broadcast", "board", most_ranks=16, one_host=True),
    ChoiceRow("broadcast", "tree", most_bytes=1 * _MIB),
    ChoiceRow("broadcast", "chain", most_ranks=16),
    ChoiceRow("broadcast", "ring"),
    ChoiceRow("all_gather", "direct", most_ranks=2),
    ChoiceRow("all_gather", "direct", most_bytes=16 * _KIB, most_ranks=4),
    ChoiceRow("all_gather", "bruck", most_bytes=16 * _KIB),
    ChoiceRow("all_gather", "board", most_ranks=16, one_host=True),
    ChoiceRow("all_gather", "direct", most_bytes=1 * _MIB, most_ranks=4),
    ChoiceRow("all_gather", "bruck", most_bytes=64 * _KIB),
    ChoiceRow("all_gather", "direct", most_bytes=1 * _MIB, most_ranks=16),
    ChoiceRow("all_gather", "ring"),
    ChoiceRow("gather", "direct", most_ranks=16),
    ChoiceRow("gather", "tree", most_bytes=16 * _KIB),
    ChoiceRow("gather", "direct"),
    ChoiceRow("scatter", "direct", most_ranks=16),
    ChoiceRow("scatter", "tree", most_bytes=16 * _KIB),
    ChoiceRow("scatter", "direct"),
    ChoiceRow("reduce_scatter", "direct", most_ranks=2),
    ChoiceRow("reduce_scatter", "direct", most_bytes=64 * _KIB, most_ranks=4, one_host=True),
    ChoiceRow("reduce_scatter", "board", most_ranks=16, one_host=True),
    ChoiceRow("reduce_scatter", "halving", most_bytes=1 * _MIB, power_of_two=True),
    ChoiceRow("reduce_scatter", "direct", most_bytes=1 * _MIB, most_ranks=16),
    ChoiceRow("reduce_scatter", "ring"),
    ChoiceRow("all_to_all", "direct", most_ranks=4),
    ChoiceRow("all_to_all", "board", most_ranks=16, one_host=True),
    ChoiceRow("all_to_all", "direct", most_ranks=16),
    ChoiceRow("all_to_all", "pairwise"),
)


@dataclass(frozen=True)
class Chooser:
    """The choice by the table, and by what the user wishes instead, by op."""

    wishes: Mapping[str, str] = field(default_factory=dict)
    _limits: dict[tuple[str, int, bool], tuple[tuple[float, str], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def wished(self) -> str:
        """The wishes as `choice_from` takes them, in one order whatever was written."""
        return ",".join(f"{op}:{algorithm}" for op, algorithm in sorted(self.wishes.items()))

    def of(self, op: str, size_bytes: int, ranks: int, board: bool = False) -> str:
        """The algorithm's name. `board`: whether the ranks have one (`Transport.board`)."""
        limits = self._limits.get((op, ranks, board))
        if limits is None:
            limits = self._limits[op, ranks, board] = self._compile(op, ranks, board)
        for most_bytes, algorithm in limits:
            if size_bytes <= most_bytes:
                return algorithm
        raise AssertionError(f"the table has no row for {op} of {size_bytes} bytes, {ranks} ranks")

    def _compile(self, op: str, ranks: int, board: bool) -> tuple[tuple[float, str], ...]:
        anything = float("inf")
        wish = self.wishes.get(op)
        if (
            wish is not None
            and not ((op, wish) in POWERS_OF_TWO_ONLY and ranks & (ranks - 1))
            and not (wish == NEEDS_BOARD and not board)
        ):
            return ((anything, wish),)
        return tuple(
            (anything if row.most_bytes is None else row.most_bytes, row.algorithm)
            for row in TABLE
            if row.op == op and row.fits(ranks, board)
        )


DEFAULT = Chooser()
"""The table as it is."""


def choice_from(setting: str) -> Chooser:
    """Parses `DISTCORE_ALGORITHM`: "op:algorithm" or "algorithm" (for every op that has it),
    separated by commas; an entry for an op goes before one for all. All ranks must be given the
    same. Raises ValueError for names that are not known, with those that are."""
    general: dict[str, str] = {}
    particular: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        op, colon, algorithm = (part.strip() for part in entry.rpartition(":"))
        if not colon:
            having = [known for known in ALGORITHMS if algorithm in ALGORITHMS[known]]
            if not having:
                everything = sorted(frozenset().union(*ALGORITHMS.values()))
                raise ValueError(
                    f"{ALGORITHM_VARIABLE}={setting!r}: {algorithm!r} is no algorithm; there are "
                    f"{', '.join(everything)}"
                )
            general.update(dict.fromkeys(having, algorithm))
        elif op not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise ValueError(
                f"{ALGORITHM_VARIABLE}={setting!r}: {op!r} is no op; there are {known}"
            )
        elif algorithm not in ALGORITHMS[op]:
            raise ValueError(
                f"{ALGORITHM_VARIABLE}={setting!r}: {op} has no algorithm {algorithm!r}; it has "
                f"{', '.join(sorted(ALGORITHMS[op]))}"
            )
        else:
            particular[op] = algorithm
    return Chooser({**general, **particular})
