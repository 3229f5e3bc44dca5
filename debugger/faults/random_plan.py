"""Faults drawn from a seed: the same seed, number of ranks and backend give the same faults."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from .actions import ACTIONS, CHANGES, Action, Argument, Kind, Target
from .plan import Fault, Moment, When
from .spec import parse, written

LAST_CALL = 20
"""A drawn fault happens at one of so many first calls: most programs make that many."""
_SIGNALS = ("KILL", "SEGV", "TERM", "STOP", "ABRT")
_ERRORS = ("RuntimeError: injected fault", "ValueError: injected fault", "KeyError: injected")


def draw(
    count: int, seed: int, world_size: int, backend: str | None = None, first: int = 0
) -> list[Fault]:
    """Draws `count` faults, numbered from `first`, that are possible with this number of ranks on
    this backend (without one: on every backend)."""
    source = random.Random(f"distdebug {seed} {world_size} {backend or ''}")
    fit = [one for one in ACTIONS.values() if fits(one, world_size, backend)]
    return [_fault(source, source.choice(fit), first + n, world_size) for n in range(count)]


def fits(action: Action, world_size: int, backend: str | None) -> bool:
    """Whether the action can be in such a run."""
    if action.backends and backend not in action.backends:
        return False
    return action.target is Target.RANKS or world_size > 1


def _fault(source: random.Random, action: Action, number: int, world_size: int) -> Fault:
    ranks, arguments = _whom(source, action, world_size)
    for argument in action.arguments:
        if action.target is Target.RANKS:
            arguments[argument.key] = _value(source, argument)
    if action.target is Target.LINK:
        arguments.update(_link(source, action))
    fault = Fault(number, "", action.name, ranks, _moment(source, action), arguments)
    text = written(fault)
    # Read again, so that what is printed is what is done.
    return replace(parse(text, number, world_size), text=text)


def _whom(
    source: random.Random, action: Action, world_size: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    match action.target:
        case Target.RANKS:
            return (source.randrange(world_size),), {}
        case Target.LINK:
            sender, receiver = source.sample(range(world_size), 2)
            return (sender,), {"pairs": [[sender, receiver]]}
        case Target.SIDES:
            ranks = source.sample(range(world_size), world_size)
            size = source.randrange(1, world_size)
            sides = [sorted(ranks[:size]), sorted(ranks[size:])]
            return tuple(range(world_size)), {"sides": sides}


def _value(source: random.Random, argument: Argument) -> Any:
    match argument.kind:
        case Kind.SIGNAL:
            return source.choice(_SIGNALS)
        case Kind.ERROR:
            return source.choice(_ERRORS)
        case Kind.SECONDS:
            return source.choice((0.05, 0.2, 1.0))
        case Kind.INT if argument.name == "code":
            return source.choice((0, 1, 3))
        case Kind.INT:
            return source.choice((0, 12, 22, 30))
        case Kind.CHOICE if argument.choices == CHANGES:
            return source.choice(("shape", "dtype", "reduce_op", "group"))
        case Kind.CHOICE if argument.name == "in":
            return "data"
        case Kind.CHOICE:  # what takes the machine's memory would harm a bystander
            return source.choice([one for one in argument.choices if one != "killer"])
        case _:
            return argument.default


def _link(source: random.Random, action: Action) -> dict[str, Any]:
    what = source.choice(action.arguments[0].choices)
    if what == "delay":
        return {"what": what, "delay_s": source.choice((0.005, 0.05))}
    if what == "rate":
        return {"what": what, "bytes_per_s": source.choice((100_000.0, 2_000_000.0))}
    return {"what": what}


def _moment(source: random.Random, action: Action) -> Moment:
    if When.FRAME in action.moments:
        start = source.randrange(LAST_CALL)
        last = source.choice((start, None))
        return Moment(When.FRAME, first=start, last=last)
    number = source.randrange(LAST_CALL)
    if source.random() < 0.3:
        return Moment(When.SEQ, first=number, last=number)
    return Moment(When.CALL, first=number, last=number)
