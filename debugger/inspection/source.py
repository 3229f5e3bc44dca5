"""Reads what the user's source says of the line that a rank stands at: what it calls, with which
group, keys or peers, and whether it is a loop by itself.

Of variables the values count that the frame has now; none is followed to where it was made, which
would take an interpreter of the program.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from ..record import safe_text as wholes
from ..record.limits import MOST_RANKS
from ..record.ops import OPS
from ..supervisor.stacks.stacks import Frame, text_of

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
_N = TypeVar("_N", bound=ast.AST)


def group_argument(frame: Frame, call: str) -> str | None:
    """The source text of the call's argument `group`, as the user's line has it, with the values of
    the variables in it; "" for the default group, None where that is not known."""
    found = set()
    for node in _calls_at(frame):
        if called(node) != call:
            continue
        if any(one.arg is None for one in node.keywords) or any(
            isinstance(one, ast.Starred) for one in node.args
        ):
            return None
        given = next((one.value for one in node.keywords if one.arg == "group"), None)
        place = _GROUP_IS_AT.get(call, 2)
        if given is None and 0 <= place < len(node.args):
            given = node.args[place]
        text = "" if given is None else ast.unparse(given)
        if given is None or text in _DEFAULT_GROUPS:
            found.add("")
            continue
        names = {one.id for one in ast.walk(given) if isinstance(one, ast.Name)}
        values = [
            f"{name}={value}" for name, value in sorted(_plain(frame).items()) if name in names
        ]
        found.add(f"{text} ({', '.join(values)})" if values else text)
    return found.pop() if len(found) == 1 else None


def called_at(frame: Frame) -> list[str]:
    """The names that the line calls."""
    return [called(node) for node in _calls_at(frame)]


def made_around(frame: Frame, names: set[str]) -> set[str]:
    """Returns those of these calls that the user's function makes: its handles are of them."""
    calls = [one for one in _around(frame) if isinstance(one, ast.Call)]
    written = {one.func.attr for one in calls if isinstance(one.func, ast.Attribute)}
    return written & names


def store_keys(frame: Frame) -> tuple[str, ...]:
    """The keys that the line waits for, where it names them: `store.wait(["ready"])`, and
    `store.get(f"part{i}")` of a local variable `i`."""
    local = _plain(frame)
    for node in _calls_at(frame):
        if called(node) in ("get", "wait", "multi_get", "compare_set", "check") and node.args:
            first = node.args[0]
            parts = first.elts if isinstance(first, (ast.List, ast.Tuple)) else [first]
            return tuple(key for one in parts if (key := _text(one, local)) is not None)
    return ()


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


def message_at(frame: Frame) -> tuple[str, int] | None:
    """The message that the line starts and waits for, `isend` or `irecv`, and to or from whom it
    is; None where there is none, or more than one, or where its peer or tag is not known."""
    here = [one for one in _calls_at(frame) if called(one) in ("isend", "irecv")]
    if len(here) != 1 or len(here[0].args) > 2:
        return None  # a number in a group may be another one in the world
    if not {one.arg for one in here[0].keywords} <= {"src", "dst"}:
        return None
    peer = _peer_of(here[0], dict(frame.values))
    return None if peer is None else (called(here[0]), peer)


def peers_around(frame: Frame) -> tuple[int, ...]:
    """To and from whom the messages are that the user's function starts: () where one of them is
    not known, as in a loop over peers."""
    around = list(_around(frame))
    loops = [one for one in around if isinstance(one, (ast.For, ast.comprehension, ast.AugAssign))]
    changing = {
        one.id for loop in loops for one in ast.walk(loop.target) if isinstance(one, ast.Name)
    }
    known = {name: text for name, text in frame.values if name not in changing}
    started = [one for one in around if isinstance(one, ast.Call) and called(one) in _PEER_IS_AT]
    found = {_peer_of(one, known) for one in started}
    return () if None in found else tuple(sorted(peer for peer in found if peer is not None))


def _peer_of(call: ast.Call, known: Mapping[str, str]) -> int | None:
    """To or from whom the message of this call is."""
    at, words = _PEER_IS_AT[called(call)]
    given = [one.value for one in call.keywords if one.arg in words]
    given += call.args[at : at + 1]
    return whole_number(given[0], known) if len(given) == 1 else None


def whole_number(node: ast.AST, known: Mapping[str, str]) -> int | None:
    """A number, or a sum of numbers and variables: `1 - rank`, `(rank + 1) % size`."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            text = known.get(name, "")
            size = wholes.whole_number(text.removeprefix("-"))
            return -size if size is not None and text.startswith("-") else size
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            one, other = whole_number(left, known), whole_number(right, known)
            if one is None or other is None or max(abs(one), abs(other)) > MOST_RANKS:
                return None
            is_division = isinstance(sign, (ast.Mod, ast.FloorDiv))
            return None if is_division and not other else _ARITHMETIC[type(sign)](one, other)
    return None


def body_of(frame: Frame) -> list[ast.stmt]:
    """The statements of the function that the line is in, or of the module; [] where its source is
    not known."""
    path, name = frame.root + frame.file, frame.function.rpartition(".")[2]
    if name == "<module>":
        return [one for module in _nodes(path, ast.Module) for one in module.body]
    functions = [*_nodes(path, ast.FunctionDef), *_nodes(path, ast.AsyncFunctionDef)]
    for one in functions:
        if one.name == name and one.lineno <= frame.line <= (one.end_lineno or one.lineno):
            return list(one.body)
    return []


def _around(frame: Frame) -> Iterator[ast.AST]:
    """All that is in the function of the user's that the line is in, or in no function at all."""
    of_module = frame.function == "<module>"
    for one in body_of(frame):
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if not (of_module and isinstance(one, functions)):
            yield from ast.walk(one)


def _calls_at(frame: Frame) -> Iterator[ast.Call]:
    for node in _nodes(frame.root + frame.file, ast.Call):
        if node.lineno <= frame.line <= (node.end_lineno or node.lineno):
            yield node


def called(node: ast.Call) -> str:
    """The name of the function that it calls; "" where that has none."""
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr == "default":
        function = function.value  # the overload of an operator: torch.ops.x.y.default()
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _plain(frame: Frame) -> dict[str, str]:
    """The local variables that are numbers or short strings."""
    return {
        name: value
        for name, value in frame.values
        if len(value) < 80 and (value[:1] in ("'", '"') or value.lstrip("-").isdigit())
    }


def _text(node: ast.expr, local: dict[str, str]) -> str | None:
    """A string of constants and of variables that are known."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in local:
            return local[name].strip("\"'")
        case ast.JoinedStr(values=parts):
            texts = [
                _text(one.value if isinstance(one, ast.FormattedValue) else one, local)
                for one in parts
            ]
            return None if None in texts else "".join(filter(None, texts))
    return None


@lru_cache(maxsize=64)
def _nodes(file: str, kind: type[_N]) -> list[_N]:
    """The parts of a source file that are of this kind; none where it cannot be read."""
    try:
        tree = ast.parse(text_of(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, kind)]
