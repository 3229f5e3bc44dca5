"""Writes any fault as a user would: what is read of it again has to be the same fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distdebug.faults.actions import ACTIONS, Action, Argument, Kind, Target
from distdebug.faults.plan import Fault, Moment, When
from distdebug.faults.tokens import quoted


def written(fault: Fault) -> str:
    """The spec of this fault: `kill(rank=1, signal=SEGV) @ all_reduce#5`. Arguments that have
    their default are left out."""
    action = ACTIONS[fault.action]
    match action.target:
        case Target.RANKS:
            parts = [f"rank={fault.ranks[0] if len(fault.ranks) == 1 else _list(fault.ranks)}"]
        case Target.LINK:
            (sender, receiver), *more = fault.arguments["pairs"]
            parts = [f"{sender}{'<->' if more else '->'}{receiver}"]
        case Target.SIDES:
            sides = fault.arguments["sides"]
            parts = ["|".join("{" + ",".join(map(str, side)) + "}" for side in sides)]
    for argument in action.arguments:
        value = fault.arguments.get(argument.key, argument.default)
        measured = argument.kind is Kind.CHOICE and action.argument(value) is not None
        if measured or (value == argument.default and not argument.required):
            continue
        parts.append(_argument(argument, value))
    moment, every = _moment(fault.moment, action)
    return f"{action.name}({', '.join(parts + every)}){moment}"


def _argument(argument: Argument, value: Any) -> str:
    match argument.kind:
        case Kind.SECONDS | Kind.RATE:
            shown = seconds(value) if argument.kind is Kind.SECONDS else _number(value)
        case Kind.ERROR | Kind.TEXT:
            shown = quoted(str(value))
        case Kind.VALUE:
            shown = _list(value) if isinstance(value, list | tuple) else quoted(str(value))
            if isinstance(value, int):
                shown = str(value)
        case _:
            shown = str(value)
    return shown if argument.positional else f"{argument.name}={shown}"


def seconds(value: float) -> str:
    """`200ms`, `1.5s`: exactly this number of seconds, when it is read again."""
    thousand = round(value * 1000)
    if value < 1 and thousand and thousand / 1000 == value:
        return f"{thousand}ms"
    return f"{_number(value)}s"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _list(values: Sequence[Any]) -> str:
    return "[" + ",".join(map(str, values)) + "]"


def _moment(moment: Moment, action: Action) -> tuple[str, list[str]]:
    """Writes the words behind the `@`, with it, and the argument `every` where that is needed."""
    if moment.when is When.TIME:
        lasting = "" if moment.for_s is None else f" for {seconds(moment.for_s)}"
        return f" @ {seconds(moment.at_s)}{lasting}", []
    if moment == Moment(When.FRAME, last=None):
        return "", []
    every: list[str] = []
    first, last = moment.first, moment.last
    count = str(first) if last == first else f"{first}..{'' if last is None else last}"
    if moment.stride > 1:
        every = [f"every={moment.stride}"]
    whole = last is None and first == 0 and (moment.stride > 1 or action.repeats)
    match moment.when:
        case When.OP:
            return f" @ {moment.op}" + ("" if whole else f"#{count}"), every
        case When.SEQ:
            of_group = f" of {quoted(moment.group)}" if moment.group else ""
            return f" @ seq {count}{of_group}", every
        case When.CALL if whole:
            return "", every
        case _:
            return f" @ {moment.when.value} {count}", every
