"""What the user's source says around a line that a rank stands at: the group of the call, its
members, the values that its arguments are made of, the keys of the store that it waits for."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TypeVar

from ..record.limits import MOST_RANKS
from ..record.ops import OPS
from ..record.safe_text import whole_numbers as wholes
from ..supervisor.stacks.source_text import text_of
from ..supervisor.stacks.stacks import Frame

_DEFAULT_GROUPS = {"", "None", "dist.group.WORLD", "group.WORLD", "torch.distributed.group.WORLD"}
_GROUP_IS_AT = {
    **{name: row.group_at for op, row in OPS.items() for name in (op, *row.functions)},
    "batch_isend_irecv": -1,
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
_MOST_DIMENSIONS = 6
_MOST_LISTED = 1 << 14
_OF_TORCH = r"(?:(?:torch\.)?distributed\.|dist\.)?"
_OF_ENVIRONMENT = r"int\((?:os\.)?environ(?:\.get\('{0}'[^()]*\)|\['{0}'\])\)"
_RANKS = re.compile(rf"{_OF_TORCH}get_rank\(\)|{_OF_ENVIRONMENT.format('RANK')}")
_SIZES = re.compile(rf"{_OF_TORCH}get_world_size\(\)|{_OF_ENVIRONMENT.format('WORLD_SIZE')}")
_N = TypeVar("_N", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank the process is, of how many, where that is known: what a program calls
    `dist.get_rank()` and `dist.get_world_size()`."""

    rank: int | None = None
    world_size: int | None = None


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Message:
    """The one message that a handle is of. `op` is isend or irecv."""

    op: str
    peer: int
    tag: int | None


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


def group_members(frame: Frame, group: str, place: Place = NOWHERE) -> tuple[int, ...] | None:
    """The ranks of a group, where the file makes it once, and from numbers: with `new_group`, or as
    a dimension of a device mesh, of which this rank's group is meant."""
    file = frame.root + frame.file
    made = _assigned(file, group)
    if made is None:
        try:
            made = ast.parse(group, mode="eval").body  # `group=mesh.get_group("tp")`
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    if isinstance(made, ast.Call) and called(made) == "new_group":
        given = [one.value for one in made.keywords if one.arg == "ranks"]
        first = [*made.args[:1], *given]
        return _numbers(first[0]) if first else None
    if isinstance(made, ast.Call) and called(made) == "get_group":
        return _of_a_mesh(file, made, known_numbers(frame, place), place)
    return None


def groups_made(frame: Frame) -> dict[int, str]:
    """The ranks that `new_group` was given at lines of this function up to the frame's, by line:
    where they are a variable, the value that it has now. Where only the members come to make a
    group, others need not make the same."""
    found = {}
    around = _around(frame)
    bound = Counter(name for node in around for name, _ in bound_by(node))
    once = {name for name, times in bound.items() if times == 1} - _changing(around)
    local = {name: text for name, text in frame.values if name in once}
    for node in around:
        if isinstance(node, ast.Call) and called(node) == "new_group" and node.lineno <= frame.line:
            given = {one.arg: one.value for one in node.keywords}
            ranks = node.args[0] if node.args else given.get("ranks")
            value = local.get(ranks.id) if isinstance(ranks, ast.Name) else None
            if value is not None and "use_local_synchronization" not in given:
                found[node.lineno] = value
    return found


def _of_a_mesh(
    file: str, made: ast.Call, known: Mapping[str, str], place: Place
) -> tuple[int, ...] | None:
    """The ranks of `mesh.get_group("tp")`, or of `mesh["tp"].get_group()`: those that have the
    same place as this one in all other dimensions. A mesh numbers them row by row."""
    of: ast.expr | None = made.func.value if isinstance(made.func, ast.Attribute) else None
    wanted = [*made.args, *(one.value for one in made.keywords if one.arg == "mesh_dim")]
    if isinstance(of, ast.Subscript):
        wanted, of = [of.slice], of.value
    mesh = _assigned(file, ast.unparse(of)) if of is not None else None
    if not isinstance(mesh, ast.Call) or called(mesh) != "init_device_mesh" or place.rank is None:
        return None
    given = {one.arg: one.value for one in mesh.keywords}
    shape = given.get("mesh_shape") or (mesh.args[1] if len(mesh.args) > 1 else None)
    named = given.get("mesh_dim_names")
    sizes = [whole_number(one, known) for one in _parts(shape)]
    names = [_text(one, known) for one in _parts(named)]
    dimension = 0 if not wanted and len(sizes) == 1 else None
    if len(wanted) == 1:
        name = _text(wanted[0], known)
        number = whole_number(wanted[0], known)
        dimension = names.index(name) if name is not None and name in names else number
    if dimension is None or None in sizes or not 0 <= dimension < len(sizes) <= _MOST_DIMENSIONS:
        return None
    return _ranks_along(dimension, [one for one in sizes if one is not None], place)


def _ranks_along(dimension: int, sizes: list[int], place: Place) -> tuple[int, ...] | None:
    ranks = prod(sizes)
    if not 0 < ranks <= _MOST_LISTED or place.rank is None or place.rank >= ranks:
        return None
    coordinates = list(product(*map(range, sizes)))
    mine = coordinates[place.rank]
    return tuple(
        rank
        for rank, one in enumerate(coordinates)
        if all(one[at] == mine[at] for at in range(len(sizes)) if at != dimension)
    )


def _parts(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def _assigned(file: str, target: str) -> ast.expr | None:
    """What is assigned to this name or attribute, where the file does it once alone."""
    found: list[ast.expr | None] = []
    for node in _nodes(file, ast.Assign):
        found += [value for one, value in _assignments(node) if ast.unparse(one) == target]
    return found[0] if len(found) == 1 else None


def _assignments(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement assigns to, also within a tuple, and what it assigns: None where that is not
    plain."""
    for one in node.targets:
        yield one, node.value
        parts, values = _parts(one), _parts(node.value)
        for at, part in enumerate(parts):
            yield part, values[at] if len(values) == len(parts) else None


def known_numbers(frame: Frame, place: Place = NOWHERE) -> dict[str, str]:
    """The values of names at this frame: its local variables, and what the functions around it and
    its module give to a name once: a number, or the rank, or the size of the world."""
    file = frame.root + frame.file
    return {**_of_scopes(file, frame.line, place), **dict(frame.values)}


@lru_cache(maxsize=256)
def _of_scopes(file: str, line: int, place: Place) -> Mapping[str, str]:
    scopes = [_run_by(module.body) for module in _nodes(file, ast.Module)]
    scopes += [
        [function.args, *_run_by(function.body)]
        for function in sorted(_functions(file, line), key=lambda one: one.lineno)
    ]
    changed = {name for node in _nodes(file, ast.Global) for name in node.names}
    changed |= {name for node in _nodes(file, ast.Nonlocal) for name in node.names}
    known: dict[str, str] = {}
    for scope in scopes:
        found: dict[str, list[str | None]] = {}
        for node in scope:
            for name, value in bound_by(node):
                found.setdefault(name, []).append(_number_of(value, place))
        for name, values in found.items():
            known.pop(name, None)
            if len(values) == 1 and values[0] is not None and name not in changed:
                known[name] = values[0]
    return known


def _functions(file: str, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions around a line."""
    every = [*_nodes(file, ast.FunctionDef), *_nodes(file, ast.AsyncFunctionDef)]
    return [one for one in every if one.lineno <= line <= (one.end_lineno or one.lineno)]


def _run_by(body: list[ast.stmt]) -> list[ast.AST]:
    """What these statements run themselves, without the functions that they make."""
    waiting: list[ast.AST] = [*body]
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def bound_by(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement gives values to, and which: None where that is not plain."""
    match node:
        case ast.Assign():
            for one, value in _assignments(node):
                if isinstance(one, ast.Name):
                    yield one.id, value
    changed: list[ast.expr] = []
    match node:
        case ast.For(target=target) | ast.AugAssign(target=target) | ast.NamedExpr(target=target):
            changed = [target]
        case ast.AnnAssign(target=target) | ast.comprehension(target=target):
            changed = [target]
        case ast.With(items=items):
            changed = [one.optional_vars for one in items if one.optional_vars is not None]
        case ast.arguments():
            yield from ((one.arg, None) for one in ast.walk(node) if isinstance(one, ast.arg))
    for whole in changed:
        yield from ((one.id, None) for one in ast.walk(whole) if isinstance(one, ast.Name))


def _number_of(value: ast.expr | None, place: Place) -> str | None:
    if value is None:
        return None
    text = ast.unparse(value)
    number: int | None = None
    if isinstance(value, ast.Constant) and type(value.value) is int:
        number = value.value
    elif _RANKS.fullmatch(text):
        number = place.rank
    elif _SIZES.fullmatch(text):
        number = place.world_size
    return None if number is None else str(number)


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


def message_at(frame: Frame, place: Place = NOWHERE) -> Message | None:
    """The message that the line waits for, where it is one alone and all of it is known:
    `dist.irecv(x, rank - 1).wait()`, or `req.wait()` of a `req` that the function makes once."""
    known = known_numbers(frame, place)
    waits = [node for node in _calls_at(frame, "wait") if isinstance(node.func, ast.Attribute)]
    if len(waits) != 1 or not isinstance(waits[0].func, ast.Attribute):
        return None
    of: ast.expr | None = waits[0].func.value
    if isinstance(of, ast.Name):
        around = _around(frame)
        bound = [value for node in around for name, value in bound_by(node) if name == of.id]
        of = bound[0] if len(bound) == 1 else None
        known = {name: text for name, text in known.items() if name not in _changing(around)}
    if not isinstance(of, ast.Call) or called(of) not in ("isend", "irecv"):
        return None
    if any(one.arg in (None, "group") for one in of.keywords) or len(of.args) > 2:
        return None  # a number in a group may be another one in the world
    peer = _peer_of(of, known)
    tags = [one.value for one in of.keywords if one.arg == "tag"]
    tag = whole_number(tags[0], known) if tags else 0
    return None if peer is None else Message(called(of), peer, tag)


def _changing(around: list[ast.AST]) -> set[str]:
    """The names that may have another value later than where they were used."""
    return {
        name.id
        for node in around
        if isinstance(node, (ast.For, ast.comprehension, ast.AugAssign))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }


def peers_around(frame: Frame, place: Place = NOWHERE) -> tuple[int, ...]:
    """To and from whom the messages are that the user's function starts: () where one of them is
    not known, as in a loop over peers."""
    around = _around(frame)
    changing = _changing(around)
    known = known_numbers(frame, place)
    local = {name: text for name, text in known.items() if name not in changing}
    found: set[int | None] = set()
    for node in around:
        if isinstance(node, ast.Call) and called(node) in _PEER_IS_AT:
            found.add(_peer_of(node, local))
    peers = {one for one in found if one is not None}
    return tuple(sorted(peers)) if len(peers) == len(found) else ()


def _peer_of(call: ast.Call, known: Mapping[str, str]) -> int | None:
    """To or from whom the message of this call is."""
    at, words = _PEER_IS_AT[called(call)]
    given = [one.value for one in call.keywords if one.arg in words]
    given += call.args[at : at + 1]
    return whole_number(given[0], known) if len(given) == 1 else None


def body_of(frame: Frame) -> list[ast.stmt]:
    """The statements of the function that the line is in, or of the module; [] where its source is
    not known."""
    scope = _scope(frame)
    return [] if scope is None else scope.body


def _scope(frame: Frame) -> ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | None:
    path, name = frame.root + frame.file, frame.function.rpartition(".")[2]
    if name == "<module>":
        return next(iter(_nodes(path, ast.Module)), None)
    return next((one for one in _functions(path, frame.line) if one.name == name), None)


def _around(frame: Frame) -> list[ast.AST]:
    """All that is in the function of the user's that the line is in, or in no function at all."""
    scope = _scope(frame)
    if not isinstance(scope, ast.Module):
        return [] if scope is None else list(ast.walk(scope))
    return [
        one
        for statement in scope.body
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for one in ast.walk(statement)
    ]


def whole_number(node: ast.AST, local: Mapping[str, str]) -> int | None:
    """A number, or a sum of numbers and variables: `1 - rank`, `(rank + 1) % size`."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            text = local.get(name, "")
            size = wholes.whole_number(text.removeprefix("-"))
            return -size if size is not None and text.startswith("-") else size
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            one, other = whole_number(left, local), whole_number(right, local)
            if one is None or other is None or max(abs(one), abs(other)) > MOST_RANKS:
                return None
            is_division = isinstance(sign, (ast.Mod, ast.FloorDiv))
            return None if is_division and not other else _ARITHMETIC[type(sign)](one, other)
    return None


def is_loop(frame: Frame) -> bool:
    """Whether the line is a loop by itself, or all that one does: who goes round in it is always
    seen at this line. What the source does not show may be one."""
    file = frame.root + frame.file
    if not text_of(file):
        return True
    loops = [*_nodes(file, ast.While), *_nodes(file, ast.For)]
    return any(frame.line in _only_lines(one) for one in loops)


def _only_lines(loop: ast.While | ast.For) -> range:
    """The lines of a loop where it has but one to be seen at; none where it has others."""
    first, last = loop.body[0], loop.body[-1]
    body = range(first.lineno, (last.end_lineno or last.lineno) + 1)
    if first is not last or hasattr(first, "body"):
        return range(0)
    if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant):
        return body  # what is always true is not looked at
    waits_in_head = isinstance(loop, ast.While) and isinstance(first, (ast.Pass, ast.Continue))
    return range(loop.lineno, body.stop) if waits_in_head or body.start == loop.lineno else range(0)


def called_at(frame: Frame) -> list[str]:
    """The names that the line calls."""
    return [
        called(node)
        for node in _nodes(frame.root + frame.file, ast.Call)
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno)
    ]


def _calls_at(frame: Frame, *names: str) -> Iterator[ast.Call]:
    for node in _nodes(frame.root + frame.file, ast.Call):
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno) and called(node) in names:
            yield node


def called(node: ast.Call) -> str:
    """The name of the function that it calls; "" where that has none."""
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
