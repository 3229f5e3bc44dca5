"""Reads a fault as its user writes it: `kill(rank=1, signal=SEGV) @ all_reduce#5`.

    fault    = action [ "(" [ part { "," part } ] ")" ] [ "@" moment ]
    part     = whom | value | name "=" value
    whom     = "rank" "=" ( rank | "[" ranks "]" | "{" ranks "}" | rank ".." rank | "all" )
             | rank ( "->" | "<->" ) rank                        of link
             | "{" ranks "}" "|" "{" ranks "}" ...               of partition

`actions.py` says what each action takes. Only the form is known here: no rank, no torch.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..record.ops import OPS, POINT_TO_POINT, Operand
from ..record.signature import DTYPES, REDUCE_OPS
from .actions import ACTIONS, CHANGES, Action, Argument, Family, Kind, Target, exception_of
from .plan import Fault, Moment, When
from .tokens import Cursor, Shape, SpecError, Token, Written, nearest

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([A-Za-z%]*)")
_SECONDS = {"us": 1e6, "ms": 1e3, "s": 1.0}
"""The number of each unit that makes a second."""
_RATES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
LONGEST_S = 1e6
FASTEST = 1e12


def seconds_of(cursor: Cursor, token: Token, what: str, *, zero: bool = False) -> float:
    """`200ms`, `3s`, `1.5s`: seconds, above 0 or `zero`. Raises SpecError."""
    match = _NUMBER.fullmatch(token.text) if token.shape is Shape.NUMBER else None
    if match is None or match[2] not in _SECONDS:
        unit = "" if match is None or match[2] else f"; with its unit: {match[1]}s or {match[1]}ms"
        raise cursor.error(f"{what} is a time such as 200ms or 3s{unit}", token)
    value = float(match[1]) / _SECONDS[match[2]]
    if not (value > 0 or (zero and value == 0)) or value > LONGEST_S:
        least = "from" if zero else "above"
        raise cursor.error(f"{what} is {least} 0 and at most {LONGEST_S:.0f} s", token)
    return value


def rate_of(cursor: Cursor, token: Token, what: str) -> float:
    """`2M`, `500k`, `1200`: bytes per second. Raises SpecError."""
    match = _NUMBER.fullmatch(token.text) if token.shape is Shape.NUMBER else None
    if match is None or match[2] not in _RATES:
        raise cursor.error(f"{what} is in bytes per second, such as 500k, 2M or 1G", token)
    value = float(match[1]) * _RATES[match[2]]
    if not 0 < value <= FASTEST:
        raise cursor.error(f"{what} is above 0 and at most {FASTEST:.0f} bytes per second", token)
    return value


_REDUCE_OPS = tuple(name for name in REDUCE_OPS if name != "premul_sum")
"""A PREMUL_SUM has a factor, which a plan does not give."""
LARGEST = 1 << 31
MOST_DIMENSIONS = 64
MOST_IN_A_RANGE = 1 << 16


def rank_of(cursor: Cursor, token: Token, world_size: int | None, what: str = "a rank") -> int:
    """A global rank. Raises SpecError, also for one that the world has not."""
    if token.shape is not Shape.NUMBER or not token.text.isascii() or not token.text.isdigit():
        raise cursor.error(f"{what} is a whole number from 0 on", token)
    if world_size is not None and (len(token.text) > 12 or int(token.text) >= world_size):
        ranks = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
        raise cursor.error(f"there is no rank {token.text}: this run has {ranks}", token)
    return _whole(cursor, token, what, 0, LARGEST)


def ranks_of(cursor: Cursor, value: Written, world_size: int | None) -> tuple[int, ...]:
    """`1`, `[1,3]`, `{1,3}`, `1..3` or `all`: global ranks in rising order. Raises SpecError."""
    if value.form == "range":
        first, last = (rank_of(cursor, token, world_size) for token in value.parts)
        if last < first or last - first >= MOST_IN_A_RANGE:
            raise cursor.error(f"from {first} to {last} there are no ranks", value)
        return tuple(range(first, last + 1))
    if value.form == "list":
        found = [rank_of(cursor, token, world_size) for token in value.parts]
        if not found:
            raise cursor.error("no rank is in the list", value)
        return tuple(sorted(set(found)))
    token = value.one
    if token is None:
        raise cursor.error("a rank is a whole number from 0 on", value)
    if token.shape is Shape.WORD and token.text == "all":
        if world_size is None:
            why = "rank=all needs the number of ranks, which is not known before the command runs"
            raise cursor.error(f"{why}; name them, such as rank=[0,1]", token)
        return tuple(range(world_size))
    return (rank_of(cursor, token, world_size),)


def value_of(cursor: Cursor, argument: Argument, value: Written) -> Any:
    """The value of an argument that is not Kind.VALUE, for `Fault.arguments`. Raises SpecError."""
    token = value.one
    if token is None:
        raise cursor.error(f"{argument.name} is one value", value)
    match argument.kind:
        case Kind.CHOICE:
            return _choice(cursor, token, argument.name, argument.choices)
        case Kind.SIGNAL:
            name = token.text.upper().removeprefix("SIG")
            if name in argument.choices:
                return name
            return _choice(cursor, token, argument.name, argument.choices)
        case Kind.INT:
            return _whole(cursor, token, argument.name, argument.low, argument.high)
        case Kind.SECONDS:
            return seconds_of(cursor, token, argument.name)
        case Kind.RATE:
            return rate_of(cursor, token, argument.name)
        case Kind.ERROR:
            return _error(cursor, token)
        case _:
            return _text(cursor, token, argument.name)


def changed_to(
    cursor: Cursor, what: str, value: Written, world_size: int | None
) -> int | str | list[int]:
    """Returns what `change` makes of it. Raises SpecError."""
    if what in ("shape", "split"):
        if value.form == "range":
            raise cursor.error(f"a {what} is a list, such as to=[2,3]", value)
        if len(value.parts) > MOST_DIMENSIONS and what == "shape":
            raise cursor.error(f"a shape has at most {MOST_DIMENSIONS} dimensions", value)
        return [_whole(cursor, token, f"a size in a {what}", 0, LARGEST) for token in value.parts]
    token = value.one
    if token is None:
        raise cursor.error(f"a {what} is one value", value)
    if what in ("root", "peer"):
        return rank_of(cursor, token, world_size, f"a {what}")
    if what == "tag":
        return _whole(cursor, token, "a tag", 0, LARGEST)
    if what == "dtype":
        bare = replace(token, text=token.text.removeprefix("torch."))
        return _choice(cursor, bare, "a dtype", tuple(DTYPES))
    if what == "reduce_op":
        bare = replace(token, text=token.text.removeprefix("ReduceOp.").lower())
        return _choice(cursor, bare, "a reduce op", _REDUCE_OPS)
    return _text(cursor, token, "a group")


def _whole(cursor: Cursor, token: Token, what: str, low: int, high: int) -> int:
    text = token.text.removeprefix("-")
    digits = token.shape is Shape.NUMBER and text.isascii() and text.isdigit()
    if digits and len(text) <= 12 and low <= int(token.text) <= high:
        return int(token.text)
    raise cursor.error(f"{what} is a whole number from {low} to {high}", token)


def _choice(cursor: Cursor, token: Token, what: str, choices: Sequence[str]) -> str:
    if token.text not in choices:
        raise cursor.error(
            f"{what} cannot be {token.text!r}{nearest(token.text, choices)}",
            token,
            [f"{what}: {', '.join(choices)}"],
        )
    return token.text


def _text(cursor: Cursor, token: Token, what: str) -> str:
    if not token.text:
        raise cursor.error(f"{what} is empty", token)
    return token.text


def _error(cursor: Cursor, token: Token) -> str:
    name, message = exception_of(token.text)
    kind = getattr(builtins, name, None)
    possible = [one for one in vars(builtins) if _can_raise(getattr(builtins, one))]
    if kind is None or not _can_raise(kind):
        raise cursor.error(
            f"Python has no exception {name!r} of its own that takes a message alone"
            f"{nearest(name, possible)}",
            token,
            ['write raise(rank=1, "ValueError: bad sample")'],
        )
    return f"{name}: {message}" if message else name


def _can_raise(kind: Any) -> bool:
    """Whether it is an exception that a message is enough for."""
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return False
    if issubclass(kind, Warning):
        return False
    try:
        kind("")
    except TypeError:
        return False
    return True


_CONTRIBUTES_NOTHING = frozenset(op for op, row in OPS.items() if row.inputs is Operand.NONE)
_WITHOUT_DATA = _CONTRIBUTES_NOTHING - POINT_TO_POINT

_HAVE: dict[str, frozenset[str]] = {
    "shape": frozenset(OPS) - _WITHOUT_DATA,
    "dtype": frozenset(OPS) - _WITHOUT_DATA,
    "reduce_op": frozenset(op for op, row in OPS.items() if row.reduces),
    "root": frozenset(op for op, row in OPS.items() if row.root),
    "split": frozenset({"all_to_all_single"}),
    "tag": POINT_TO_POINT,
    "peer": POINT_TO_POINT,
    "group": frozenset(OPS),
}
"""The ops that have what `change` changes."""
_WORDS = {"reduce_op": "reduce op", "split": "list of splits"}


def misfit(action: Action, arguments: Mapping[str, Any], op: str) -> tuple[str, list[str]] | None:
    """Tells why the action cannot happen at a call of this op, and the ops where it can; None: it
    can."""
    if action.name == "change":
        what = arguments["what"]
        if op in _HAVE[what]:
            return None
        return f"{op} has no {_WORDS.get(what, what)}", _ops(f"ops with a {what}", _HAVE[what])
    contributes = arguments.get("in") == "data" and action.family is Family.DATA
    if contributes and op in _CONTRIBUTES_NOTHING:
        fit = frozenset(OPS) - _CONTRIBUTES_NOTHING
        return f"a rank contributes no data to {op}", _ops("ops with data", fit)
    return None


def _ops(what: str, names: frozenset[str]) -> list[str]:
    return [f"{what}: {', '.join(op for op in OPS if op in names)}"]


ALIASES = {
    name: op
    for op, row in OPS.items()
    for name in (*row.functions, *row.methods, row.dumped or op)
    if name not in OPS
} | {"all_gather_base": "all_gather_into_tensor", "reduce_scatter_base": "reduce_scatter_tensor"}
"""Other names that torch has for an op, and the one under which it is recorded."""
_COUNTED = {one.value: one for one in (When.CALL, When.SEQ, When.STEP, When.FRAME)}
FORMS = {
    When.OP: "all_reduce, all_reduce#5, all_reduce#2..5",
    When.CALL: "call 40",
    When.SEQ: "seq 7, seq 7 of GROUP",
    When.STEP: "step 3",
    When.TIME: "3s, 250ms",
    When.FRAME: "frame 100..200",
}


def forms(action: Action) -> list[str]:
    """The moments that this action takes, for a message."""
    shown = [FORMS[when] for when in When if when in action.moments]
    shown += ["3s for 2s"] if action.lasts else []
    return [f"moments of {action.name}: {'; '.join(shown)}"]


def moment(cursor: Cursor, action: Action) -> tuple[Moment, bool, Token]:
    """The moment; whether it says by a number which calls it means; and the token that names it.
    Raises SpecError."""
    token = cursor.next
    if token.shape is Shape.NUMBER:
        found, counted = _time(cursor, action), True
    elif token.shape is Shape.WORD and token.text in _COUNTED:
        found, counted = _counted(cursor, action, _COUNTED[token.text]), True
    elif token.shape is Shape.WORD:
        found, counted = _op(cursor, action)
    else:
        raise cursor.error("the moment is missing", possible=forms(action))
    return found, counted, token


def _allowed(cursor: Cursor, action: Action, when: When, token: Token) -> None:
    if when not in action.moments:
        word = {When.OP: "a call of an op", When.TIME: "a time"}.get(when, f"a {when.value}")
        raise cursor.error(f"{action.name} does not happen at {word}", token, forms(action))


def _time(cursor: Cursor, action: Action) -> Moment:
    _allowed(cursor, action, When.TIME, cursor.next)
    at_s = seconds_of(cursor, cursor.take(), "a moment", zero=True)
    if cursor.next.shape is not Shape.WORD or cursor.next.text != "for":
        return Moment(When.TIME, at_s=at_s)
    if not action.lasts:
        raise cursor.error(f"{action.name} happens at once: it has no duration; leave out `for`")
    cursor.take()
    return Moment(When.TIME, at_s=at_s, for_s=seconds_of(cursor, cursor.take(), "a duration"))


def _counted(cursor: Cursor, action: Action, when: When) -> Moment:
    word = cursor.next
    _allowed(cursor, action, when, word)
    cursor.take()
    cursor.accept("#")
    first, last = cursor.span(f"the number of a {when.value}")
    group = ""
    if when is When.SEQ and cursor.next.shape is Shape.WORD and cursor.next.text == "of":
        cursor.take()
        named = cursor.take()
        if named.shape in (Shape.SIGN, Shape.END):
            raise cursor.error("the name or description of a group is missing", named)
        group = named.text
    return Moment(when, group=group, first=first, last=last)


def _op(cursor: Cursor, action: Action) -> tuple[Moment, bool]:
    word = cursor.next
    op = ALIASES.get(word.text, word.text)
    if op not in OPS:
        names = (*OPS, *_COUNTED)
        raise cursor.error(
            f"there is no operation {word.text}{nearest(word.text, names)}",
            possible=(f"ops: {', '.join(OPS)}", *forms(action)),
        )
    _allowed(cursor, action, When.OP, word)
    cursor.take()
    if not cursor.accept("#"):
        return Moment(When.OP, op=op, last=None if action.repeats else 0), False
    first, last = cursor.span(f"the number of an {op}")
    return Moment(When.OP, op=op, first=first, last=last), True


__all__ = ["SpecError", "parse"]


def parse(
    text: str, number: int = 0, world_size: int | None = None, backend: str | None = None
) -> Fault:
    """Reads a fault from its text; `number` is its place in the plan.

    If `world_size` or `backend` is given, a fault of a rank that does not exist, or that is not
    possible on this backend, is refused. Raises SpecError.
    """
    return _Parser(text, number, world_size, backend).fault()


class _Parser:
    def __init__(self, text: str, number: int, world_size: int | None, backend: str | None) -> None:
        self.cursor = Cursor(text)
        self.text = text
        self.number = number
        self.world_size = world_size
        self.backend = backend
        self.action: Action = ACTIONS["kill"]
        self.whom: dict[str, Any] = {}
        self.ranks: tuple[int, ...] = ()
        self.every: Written | None = None
        self.given: dict[str, Written] = {}

    def fault(self) -> Fault:
        cursor = self.cursor
        name = self._name()
        opened = cursor.accept("(")
        end = cursor.next
        if opened:
            while not cursor.sees(")"):
                self._part()
                if not cursor.accept(","):
                    break
            end = cursor.expect(")", "a comma or the closing bracket is missing")
        if not self.ranks:
            raise cursor.error(self._whom_is_missing(), end if opened else name, self._usage())
        arguments = {**self.whom, **self._arguments(end)}
        when = self._moment(arguments)
        if cursor.next.shape is not Shape.END:
            raise cursor.error(
                "nothing more is expected here; a moment begins with @, and another fault has an "
                "--inject of its own"
            )
        return Fault(self.number, self.text, name.text, self.ranks, when, arguments)

    def _name(self) -> Token:
        cursor = self.cursor
        token = cursor.next
        possible = [f"actions: {', '.join(ACTIONS)}"]
        if token.shape is Shape.END:
            raise cursor.error("the fault is empty; such as kill(rank=1) @ all_reduce#5")
        if token.shape is not Shape.WORD:
            raise cursor.error("a fault begins with its action", token, possible)
        if token.text not in ACTIONS:
            near = nearest(token.text, ACTIONS)
            raise cursor.error(f"there is no action {token.text}{near}", token, possible)
        self.action = ACTIONS[token.text]
        backends = self.action.backends
        if self.backend is not None and backends and self.backend not in backends:
            raise cursor.error(
                f"{token.text} works on {', '.join(backends)}, and not on {self.backend}",
                token,
                ["with --netns (as root) it works on every backend"],
            )
        return cursor.take()

    # -- in the brackets -----------------------------------------------------------------------

    def _part(self) -> None:
        cursor = self.cursor
        named = cursor.after(1)
        if cursor.next.shape is Shape.WORD and (named.shape, named.text) == (Shape.SIGN, "="):
            name = cursor.take()
            cursor.take()
            self._named(name, cursor.value())
        elif cursor.sees("{"):
            self._sides()
        elif named.shape is Shape.SIGN and named.text in ("->", "<->"):
            self._link()
        else:
            self._positional(cursor.value())

    def _named(self, name: Token, value: Written) -> None:
        cursor = self.cursor
        if name.text == "rank" and self.action.target is Target.RANKS:
            if self.ranks:
                raise cursor.error("rank is given twice", name)
            self.ranks = ranks_of(cursor, value, self.world_size)
        elif name.text == "every" and self.action.every:
            if self.every is not None:
                raise cursor.error("every is given twice", name)
            self.every = value
        elif self.action.argument(name.text) is not None:
            if name.text in self.given:
                raise cursor.error(f"{name.text} is given twice", name)
            self.given[name.text] = value
        elif (  # the short form `change(rank=1, dtype=float64)`
            self.action.name == "change"
            and name.text in CHANGES
            and not {"what", "to"} & set(self.given)
        ):
            self.given["what"] = Written("one", (name,), name.start, name.end)
            self.given["to"] = value
        else:
            raise cursor.error(
                f"{self.action.name} takes no {name.text}{nearest(name.text, self._names())}",
                name,
                self._usage(),
            )

    def _positional(self, value: Written) -> None:
        free = [one for one in self.action.arguments if one.name not in self.given]
        bare = value.one.text.upper().removeprefix("SIG") if value.one else ""
        name = next((one.name for one in free if one.positional), None)
        if name is None:  # a word that can be but one thing needs no name
            fit = [one.name for one in free if {bare, bare.lower()} & set(one.choices)]
            name = fit[0] if len(fit) == 1 else None
        if name is None:
            token = value.one
            sentence = f"{self.action.name} takes no further value without a name"
            if token and self.action.target is Target.RANKS and not self.ranks:
                sentence = f"whose? write rank={token.text}"
            raise self.cursor.error(sentence, value, self._usage())
        self.given[name] = value

    def _link(self) -> None:
        cursor = self.cursor
        if self.action.target is not Target.LINK:
            raise cursor.error(f"{self.action.name} is not about a link", None, self._usage())
        if self.ranks:
            raise cursor.error("one link for each fault; give --inject again for another one")
        sender = rank_of(cursor, cursor.take(), self.world_size)
        both = cursor.take().text == "<->"
        token = cursor.take()
        receiver = rank_of(cursor, token, self.world_size)
        if sender == receiver:
            raise cursor.error("a rank has no link to itself", token)
        pairs = [[sender, receiver], [receiver, sender]] if both else [[sender, receiver]]
        self.ranks = tuple(sorted(one for one, _ in pairs))
        self.whom = {"pairs": pairs}

    def _sides(self) -> None:
        cursor = self.cursor
        if self.action.target is not Target.SIDES:
            raise cursor.error(f"{self.action.name} has no sides", None, self._usage())
        if self.ranks:
            raise cursor.error("one partition for each fault; give --inject again for another one")
        sides: list[list[int]] = []
        seen: set[int] = set()
        while True:
            cursor.expect("{", "a side is missing, such as {2,3}")
            side = []
            while True:
                token = cursor.take()
                rank = rank_of(cursor, token, self.world_size)
                if rank in seen:
                    raise cursor.error(f"rank {rank} stands in it twice", token)
                seen.add(rank)
                side.append(rank)
                if not cursor.accept(","):
                    break
            cursor.expect("}", "a comma or the closing } is missing")
            sides.append(sorted(side))
            if not cursor.accept("|"):
                break
        if len(sides) < 2:
            raise cursor.error("a partition has two sides, such as {0,1}|{2,3}")
        self.ranks = tuple(sorted(seen))
        self.whom = {"sides": sides}

    # -- what it comes to ----------------------------------------------------------------------

    def _arguments(self, end: Token) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.action.target is Target.LINK:
            self._measures(end)
        for argument in self.action.arguments:
            value = self.given.get(argument.name)
            if value is not None and value.one is not None and argument.kind is Kind.RANK:
                found[argument.key] = rank_of(self.cursor, value.one, self.world_size)
            elif value is not None and argument.kind is Kind.VALUE:
                found[argument.key] = changed_to(self.cursor, found["what"], value, self.world_size)
            elif value is not None:
                found[argument.key] = value_of(self.cursor, argument, value)
            elif argument.required:
                raise self.cursor.error(self._is_missing(argument), end, self._usage())
            elif self.action.target is Target.RANKS:
                found[argument.key] = argument.default
        if found.get("in") == "data" and found.get("name") is not None:
            raise self.cursor.error(
                "name= is a parameter's; it goes with in=parameter", self.given["name"]
            )
        return found

    def _measures(self, end: Token) -> None:
        """`delay=5ms` says what happens to the link as well as how much of it."""
        what = self.given.get("what")
        word = what.one.text if what and what.one else None
        for name in ("delay", "rate"):
            example = {"delay": "delay=5ms", "rate": "rate=2M"}[name]
            if name not in self.given:
                if word == name:
                    raise self.cursor.error(f"by how much? write {example}", what or end)
            elif word not in (None, name):
                raise self.cursor.error(
                    f"one thing for each link fault: {word} or {example}", self.given[name]
                )
            else:
                place = self.given[name]
                token = Token(Shape.WORD, name, place.start, place.end)
                self.given["what"] = Written("one", (token,), place.start, place.end)
                word = name

    def _moment(self, arguments: dict[str, Any]) -> Moment:
        cursor = self.cursor
        counted = False
        # If nobody says when: at the first call; for ever, if that is what the action does.
        when = When.FRAME if When.FRAME in self.action.moments else When.CALL
        found = Moment(when, last=None if self.action.repeats else 0)
        if cursor.accept("@"):
            found, counted, token = moment(cursor, self.action)
            wrong = misfit(self.action, arguments, found.op) if found.op else None
            if wrong is not None:
                raise cursor.error(wrong[0], token, wrong[1])
        return found if self.every is None else self._often(found, counted, self.every)

    def _often(self, found: Moment, counted: bool, every: Written) -> Moment:
        cursor = self.cursor
        if counted:
            raise cursor.error(
                "the moment names its calls already; leave out every=, or the number behind @",
                every,
            )
        numbers = [token.text for token in every.parts]
        if not all(text.isascii() and text.isdigit() and len(text) <= 12 for text in numbers):
            raise cursor.error("every is such as 1..10, or 3 for each third one", every)
        if every.form == "range":
            first, last = map(int, numbers)
            if last < first:
                raise cursor.error(f"from {first} to {last} there is none", every)
            return replace(found, first=first, last=last)
        if every.form != "one" or int(numbers[0]) < 1:
            raise cursor.error("every is such as 1..10, or 3 for each third one", every)
        return replace(found, first=0, last=None, stride=int(numbers[0]))

    # -- words ---------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        own = [argument.name for argument in self.action.arguments]
        whom = ["rank"] if self.action.target is Target.RANKS else []
        return [*whom, *own, *(["every"] if self.action.every else [])]

    def _usage(self) -> list[str]:
        return [f"write {usage(self.action)}"]

    def _whom_is_missing(self) -> str:
        match self.action.target:
            case Target.RANKS:
                return f"whom? {self.action.name} needs a rank"
            case Target.LINK:
                return "which link? such as 0->1, or 0<->1 for both directions"
            case Target.SIDES:
                return "which sides? such as {0,1}|{2,3}"

    def _is_missing(self, argument: Argument) -> str:
        if argument.kind is Kind.SECONDS:
            return f"{self.action.name} needs a time, such as 200ms"
        if not argument.choices:
            return f"{self.action.name} needs {argument.name}=N"
        return f"{self.action.name} needs to know what: {', '.join(argument.choices)}"


def usage(action: Action) -> str:
    """Shows how the action is written, with all that it takes: `exit(rank=N, code=0)`."""
    whom = {Target.RANKS: "rank=N", Target.LINK: "0->1", Target.SIDES: "{0,1}|{2,3}"}
    parts = [whom[action.target]]
    measures = (Kind.SECONDS, Kind.RATE) if action.target is Target.LINK else ()
    parts += [_shown(one, action) for one in action.arguments if one.kind not in measures]
    return f"{action.name}({', '.join(parts)})"


def _shown(argument: Argument, action: Action) -> str:
    examples = {
        Kind.SECONDS: "200ms",
        Kind.RATE: "2M",
        Kind.ERROR: '"ValueError: text"',
        Kind.TEXT: "TEXT",
        Kind.VALUE: "VALUE",
        Kind.INT: "N" if argument.required else str(argument.default),
        Kind.RANK: "N",
    }
    choices = [
        {"delay": "delay=5ms", "rate": "rate=2M"}.get(one, one)
        if action.target is Target.LINK
        else one
        for one in argument.choices
    ]
    text = examples.get(argument.kind) or "|".join(choices)
    return text if argument.positional else f"{argument.name}={text}"
