"""Faults drawn from a seed: the same seed, number of ranks and backend give the same faults."""

from __future__ import annotations

import random

from .actions import ACTIONS, CHANGES, Action, Argument, Kind, Target
from .plan import Fault, When
from .spec import parse

LAST_CALL = 20
"""A drawn fault happens at one of so many first calls: most programs make that many."""
_SIGNALS = ("KILL", "SEGV", "TERM", "STOP", "ABRT")
_ERRORS = ('"RuntimeError: injected fault"', '"ValueError: injected fault"', '"KeyError: injected"')


def draw(
    count: int, seed: int, world_size: int, backend: str | None = None, first: int = 0
) -> list[Fault]:
    """Draws `count` faults, numbered from `first`, that are possible with this number of ranks on
    this backend (without one: on every backend)."""
    source = random.Random(f"distdebug {seed} {world_size} {backend or ''}")
    fit = [one for one in ACTIONS.values() if fits(one, world_size, backend)]
    return [_fault(source, source.choice(fit), first + n, world_size) for n in range(count)]


def fits(action: Action, world_size: int, backend: str | None) -> bool:
    """Whether the action can be in such a run; one that waits for a certain call is not drawn."""
    if action.name == "hold":
        return False
    if action.backends and backend not in action.backends:
        return False
    return action.target is Target.RANKS or world_size > 1


def _fault(source: random.Random, action: Action, number: int, world_size: int) -> Fault:
    """A fault is drawn as its user would write it, so that what is printed is what is done."""
    parts = [_whom(source, action, world_size)]
    for argument in action.arguments if action.target is Target.RANKS else ():
        value = _value(source, argument)
        if value != str(argument.default):
            parts.append(value if argument.positional else f"{argument.name}={value}")
    if action.target is Target.LINK:
        what = source.choice(action.arguments[0].choices)
        measures = {"delay": ("delay=5ms", "delay=50ms"), "rate": ("rate=100000", "rate=2000000")}
        parts.append(source.choice(measures[what]) if what in measures else what)
    return parse(f"{action.name}({', '.join(parts)}){_moment(source, action)}", number, world_size)


def _whom(source: random.Random, action: Action, world_size: int) -> str:
    match action.target:
        case Target.RANKS:
            return f"rank={source.randrange(world_size)}"
        case Target.LINK:
            sender, receiver = source.sample(range(world_size), 2)
            return f"{sender}->{receiver}"
        case Target.SIDES:
            ranks = source.sample(range(world_size), world_size)
            size = source.randrange(1, world_size)
            sides = (sorted(ranks[:size]), sorted(ranks[size:]))
            return "|".join("{" + ",".join(map(str, side)) + "}" for side in sides)


def _value(source: random.Random, argument: Argument) -> str:
    match argument.kind:
        case Kind.SIGNAL:
            return source.choice(_SIGNALS)
        case Kind.ERROR:
            return source.choice(_ERRORS)
        case Kind.SECONDS:
            return source.choice(("50ms", "200ms", "1s"))
        case Kind.INT if argument.name == "code":
            return source.choice(("0", "1", "3"))
        case Kind.INT:
            return source.choice(("0", "12", "22", "30"))
        case Kind.CHOICE if argument.choices == CHANGES:
            return source.choice(("shape", "dtype", "reduce_op", "group"))
        case Kind.CHOICE if argument.name == "in":
            return "data"
        case Kind.CHOICE:  # what takes the machine's memory would harm a bystander
            return source.choice([one for one in argument.choices if one != "killer"])
        case _:
            return str(argument.default)


def _moment(source: random.Random, action: Action) -> str:
    number = source.randrange(LAST_CALL)
    if When.FRAME in action.moments:
        return f" @ frame {number}{source.choice(('', '..'))}"
    return f" @ {'seq' if source.random() < 0.3 else 'call'} {number}"
