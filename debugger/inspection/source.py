"""What the user's source says around a line that a rank stands at: the group of the call, its
members, the values that its arguments are made of, the keys of the store that it waits for."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from ..supervisor.source_text import text_of
from ..supervisor.stacks import Frame

_DEFAULT_GROUPS = {"", "None", "dist.group.WORLD", "group.WORLD", "torch.distributed.group.WORLD"}
_GROUP_IS_AT = {
    "barrier": 0,
    "monitored_barrier": 0,
    "batch_isend_irecv": -1,
    "all_to_all_single": 4,
    **dict.fromkeys(("reduce", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"), 3),
    **dict.fromkeys(("gather_object", "scatter_object_list"), 3),
}
"""Where a group stands among the arguments that have no names; of all others, it is the third."""
_PEER_IS_AT: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "P2POp": (2, ("peer",)),
    "isend": (1, ("dst",)),
    "irecv": (1, ("src",)),
}
"""Where the other end of a message stands among the arguments, and how it is named."""
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.BitXor: operator.xor,
}
_MOST_RANKS = 1 << 20
_N = TypeVar("_N", bound=ast.AST)


def group_argument(frame: Frame, call: str) -> str | None:
    """The source text of the call's argument `group`, as the user's line has it, with the values of
    the variables in it; "" for the default group, None where that is not known."""
    found = set()
    for node in _calls_at(frame, call):
        if any(one.arg is None for one in node.keywords) or any(
            isinstance(one, ast.Starred) for one in node.args
        ):
            return None
        given = next((one.value for one in node.keywords if one.arg == "group"), None)
        place = _GROUP_IS_AT.get(call, 2)
        if given is None and 0 <= place < len(node.args):
            given = node.args[place]
        text = "" if given is None else ast.unparse(given)
        shown = _shown(values_in(frame, given)) if given is not None else ""
        found.add("" if text in _DEFAULT_GROUPS else f"{text}{shown}")
    return found.pop() if len(found) == 1 else None


def group_members(frame: Frame, group: str) -> tuple[int, ...] | None:
    """The ranks of a group, where the file makes it once, and from numbers."""
    found = set()
    for node in _nodes(frame.root + frame.file, ast.Assign):
        if len(node.targets) != 1 or ast.unparse(node.targets[0]) != group:
            continue
        ranks = None
        if isinstance(node.value, ast.Call) and _name(node.value) == "new_group":
            given = [one.value for one in node.value.keywords if one.arg == "ranks"]
            first = [*node.value.args[:1], *given]
            ranks = _numbers(first[0]) if first else None
        found.add(ranks)
    return found.pop() if len(found) == 1 else None


def values_in(frame: Frame, node: ast.AST) -> Mapping[str, str]:
    """The plain values of the local variables in an expression."""
    local = dict(frame.values)
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return {name: local[name] for name in sorted(names & local.keys()) if _is_plain(local[name])}


def store_keys(frame: Frame) -> tuple[str, ...]:
    """The keys that the line waits for: `store.get("ready")`, `store.wait([f"part{i}"])`."""
    for node in _calls_at(frame, "get", "wait", "multi_get", "compare_set", "check"):
        if node.args:
            first = node.args[0]
            parts = first.elts if isinstance(first, (ast.List, ast.Tuple)) else [first]
            keys = [_text(one, dict(frame.values)) for one in parts]
            return tuple(key for key in keys if key is not None)
    return ()


def made_around(frame: Frame, names: set[str]) -> set[str]:
    """Which of these calls the user's function makes: what its handles are of."""
    calls = [one for one in _around(frame) if isinstance(one, ast.Call)]
    written = {one.func.attr for one in calls if isinstance(one.func, ast.Attribute)}
    return written & names


def peers_around(frame: Frame) -> tuple[int, ...]:
    """To and from whom the messages are that the user's function starts: () where one of them is
    not known, as in a loop over peers."""
    around = _around(frame)
    changing = {
        name.id
        for node in around
        if isinstance(node, (ast.For, ast.comprehension, ast.AugAssign))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    local = {name: text for name, text in frame.values if name not in changing}
    found: set[int | None] = set()
    for node in around:
        if isinstance(node, ast.Call) and _name(node) in _PEER_IS_AT:
            place, words = _PEER_IS_AT[_name(node)]
            given = [one.value for one in node.keywords if one.arg in words]
            given += node.args[place : place + 1]
            found.add(_whole_number(given[0], local) if len(given) == 1 else None)
    known = {one for one in found if one is not None}
    return tuple(sorted(known)) if len(known) == len(found) else ()


def _around(frame: Frame) -> list[ast.AST]:
    """All that is in the function of the user's that the line is in, or in no function at all."""
    path, name = frame.root + frame.file, frame.function.rpartition(".")[2]
    if name == "<module>":
        return [
            one
            for statement in (node for module in _nodes(path, ast.Module) for node in module.body)
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            for one in ast.walk(statement)
        ]
    around: list[ast.FunctionDef | ast.AsyncFunctionDef] = [
        *_nodes(path, ast.FunctionDef),
        *_nodes(path, ast.AsyncFunctionDef),
    ]
    for node in around:
        if node.name == name and node.lineno <= frame.line <= (node.end_lineno or node.lineno):
            return list(ast.walk(node))
    return []


def _whole_number(node: ast.expr, local: Mapping[str, str]) -> int | None:
    """A number, or a sum of numbers and variables: `1 - rank`, `(rank + 1) % size`."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if local.get(name, "").lstrip("-").isdigit():
            return int(local[name])
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            one, other = _whole_number(left, local), _whole_number(right, local)
            if one is None or other is None or max(abs(one), abs(other)) > _MOST_RANKS:
                return None
            is_division = isinstance(sign, (ast.Mod, ast.FloorDiv))
            return None if is_division and not other else _ARITHMETIC[type(sign)](one, other)
    return None


def called_at(frame: Frame) -> list[str]:
    """The names that the line calls."""
    return [
        _name(node)
        for node in _nodes(frame.root + frame.file, ast.Call)
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno)
    ]


def _calls_at(frame: Frame, *names: str) -> Iterator[ast.Call]:
    for node in _nodes(frame.root + frame.file, ast.Call):
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno) and _name(node) in names:
            yield node


def _name(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr == "default":
        function = function.value  # the overload of an operator: torch.ops.x.y.default()
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _numbers(node: ast.expr) -> tuple[int, ...] | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, (list, tuple)) and all(type(one) is int for one in value):
        return tuple(sorted(value))
    return None


def _text(node: ast.expr, local: Mapping[str, str]) -> str | None:
    """A string of constants and of variables that are known."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in local and _is_plain(local[name]):
            return _unquoted(local[name])
        case ast.JoinedStr(values=parts):
            texts = [
                _text(one.value if isinstance(one, ast.FormattedValue) else one, local)
                for one in parts
            ]
            return None if None in texts else "".join(text for text in texts if text is not None)
    return None


def _is_plain(value: str) -> bool:
    return len(value) < 80 and (value[:1] in "'\"" or value.lstrip("-").isdigit()) and value != ""


def _unquoted(value: str) -> str:
    return value[1:-1] if value[:1] in "'\"" and value[-1:] == value[:1] else value


def _shown(values: Mapping[str, str]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in values.items())})" if values else ""


@lru_cache(maxsize=64)
def _nodes(file: str, kind: type[_N]) -> list[_N]:
    """The parts of a source file that are of this kind; none where it cannot be read."""
    try:
        tree = ast.parse(text_of(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, kind)]
