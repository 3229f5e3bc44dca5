"""Which ranks of a larger world are the ones that a fixture declares for its own size.

A rank's role is what the conditions of the program say of it: all comparisons in its source that
hang on the rank and the number of ranks alone (`rank == 1`, `rank < world_size - 1`), and whether
it is in a group that the program makes of ranks by their numbers. Declared culprits stand for their
roles. At another size the culprits are:

- of a mismatch, all ranks of those roles, or all others where those are a majority: what most ranks
  do is right;
- of a deadlock and of messages, some ranks of the same roles, each role at least once;
- else, all ranks of those roles.

Where the conditions do not tell culprits from others, or where an argument is wrong, which a rank
comes to by arithmetic (`rank + 1`), a culprit is known by its number, counted from the first rank
or from the last. Of ranks whose role the own size does not have, nothing is declared.

A program that looks a rank up in a table of its own with so many rows is written for a fixed count.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from distdebug.record.wording import ranks_text

SOME = ("deadlock", "p2p_mismatch", "unmatched_p2p")
"""Kinds that are about a few of the ranks which do it."""
Role = tuple[bool, ...]
_RANKS = ("get_rank", "RANK", "rank", "local_rank")
_SIZES = ("get_world_size", "WORLD_SIZE", "world_size", "size", "ranks", "workers")


class FixedCount(Exception):
    """The program has no such rank: why."""


class Roles:
    """Of the ranks of one program in a world of so many."""

    def __init__(self, script: Path, size: int) -> None:
        tree = ast.parse(script.read_text())
        self._size = size
        self._tables = _tables(tree)
        every = list(ast.walk(tree))
        conditions = [node for node in every if isinstance(node, ast.Compare)]
        rows = [self._of_all(one) for one in conditions]
        rows += [[rank in group for rank in range(size)] for group in _groups(every)]
        self._conditions = [row for row in rows if row is not None]
        self.of = {rank: tuple(row[rank] for row in self._conditions) for rank in range(size)}
        for node in every:
            self._check(node)

    def ranks_of(self, roles: Collection[Role]) -> set[int]:
        """Who has one of these."""
        return {rank for rank, role in self.of.items() if role in roles}

    def _of_all(self, condition: ast.Compare) -> list[bool] | None:
        found = []
        for rank in range(self._size):
            given = _Given(rank, self._size)
            expression = ast.fix_missing_locations(
                ast.Expression(given.visit(copy.deepcopy(condition)))
            )
            if not given.asked_for_rank:
                return None
            try:
                found.append(bool(eval(compile(expression, "", "eval"), {"__builtins__": {}})))
            except Exception:
                return None  # it hangs on something else
        return found

    def _check(self, node: ast.AST) -> None:
        """Raise FixedCount where this is for fewer ranks."""
        match node:
            case ast.Subscript(ast.Name(table), index) if table in self._tables:
                if _is_rank(index) and self._tables[table] < self._size:
                    raise FixedCount(f"{table} has {self._tables[table]} rows, one for each rank")


class Culprits:
    """Those of a fixture in a world of so many. Raises FixedCount."""

    def __init__(self, expected: Mapping[str, Any], script: Path, size: int) -> None:
        self._own, self._other = Roles(script, expected["nproc"]), Roles(script, size)
        self._kind = expected["outcome"]
        declared = set(expected["culprits"])
        self._roles = {self._own.of[rank] for rank in declared}
        self._likely = [self._other.ranks_of(self._roles)]
        if self._kind == "invalid_argument" or self._own.ranks_of(self._roles) != declared:
            self._likely += [declared, {rank - expected["nproc"] + size for rank in declared}]
        same = self._likely
        if self._kind.endswith("_mismatch") and self._kind != "p2p_mismatch":
            self._likely = [_minority(ranks, self._other) for ranks in same]
        self.same_roles = self._likely == same
        """False where the declared line may be that of the victims now."""

    def __repr__(self) -> str:
        some = "some of " if self._kind in SOME else ""
        return some + " or ".join(ranks_text(sorted(ranks)) for ranks in self._likely)

    def are(self, ranks: Collection[int]) -> bool:
        """Whether these may be they."""
        undeclared = set(self._other.of.values()) - set(self._own.of.values())
        found = {rank for rank in ranks if self._other.of[rank] not in undeclared}
        if self._kind in SOME:
            return {self._other.of[rank] for rank in found} == self._roles
        return found in self._likely


def _minority(ranks: set[int], roles: Roles) -> set[int]:
    """Of these ranks, or of the others, the fewer; of all, those that are not of the largest
    role."""
    everybody = set(roles.of)
    if ranks == everybody:
        largest, count = Counter(roles.of.values()).most_common(1)[0]
        return (
            ranks
            if count in (len(ranks), len(ranks) / 2)
            else everybody - roles.ranks_of([largest])
        )
    return ranks if 2 * len(ranks) <= len(everybody) else everybody - ranks


def _tables(tree: ast.Module) -> dict[str, int]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            match node.value:
                case ast.List(rows) | ast.Tuple(rows) | ast.Dict(rows):
                    found[node.targets[0].id] = len(rows)
    return found


def _groups(nodes: Collection[ast.AST]) -> list[set[int]]:
    """Those that are made of numbers."""
    found = []
    for node in nodes:
        match node:
            case ast.Call(ast.Name("new_group") | ast.Attribute(attr="new_group"), [ranks, *_]):
                with contextlib.suppress(ValueError):
                    found.append(set(ast.literal_eval(ranks)))
    return found


def _named(node: ast.AST, names: tuple[str, ...]) -> bool:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in names
        case ast.Call(called, []):
            return _named(called, names)
        case ast.Subscript(_, ast.Constant(str() as name)):
            return name in names
    return False


def _is_rank(node: ast.AST) -> bool:
    return _named(node, _RANKS)


class _Given(ast.NodeTransformer):
    """Puts a rank and a number of ranks in the place of what stands for them."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self.asked_for_rank = False

    def visit(self, node: ast.AST) -> ast.AST:
        if _is_rank(node):
            self.asked_for_rank = True
            in_environment = isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'RANK'"
            return ast.Constant(str(self._rank) if in_environment else self._rank)
        if _named(node, _SIZES):
            return ast.Constant(self._size)
        return self.generic_visit(node)
