"""Reads the words behind the `@` of a fault: when it happens."""

from __future__ import annotations

from ..record.ops import OPS
from .actions import Action
from .cursor import Cursor
from .plan import Moment, When
from .quantities import seconds_of
from .tokens import Shape, Token, nearest

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


def default_moment(action: Action) -> Moment:
    """Returns when it happens if nobody says when: at the first call; for as long as it goes on, if
    that is what the action does."""
    last = None if action.repeats else 0
    return Moment(When.FRAME if When.FRAME in action.moments else When.CALL, last=last)


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
