"""Calls on a device's streams: whether who is stuck there is stuck for ever.

A program goes on beside the calls that it makes on a device, and may do what gets the others out of
theirs. It does not where all that it will still do is calls of the stream that is stuck: the device
begins none of them before. That holds for a call that the program waits for, in the stream that it
is in then; libraries that overlap their calls have streams of their own, which are not on record.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..diagnosis.facts.blocking import Model, backend_of, on_device
from ..record.signature import Signature
from ..record.snapshot import GroupKey, Rank
from .outcome import Outcome
from .program import Created, CutOff, Event, Made, Program, Waited
from .standing import Standing


def on_devices(programs: Mapping[int, Program]) -> bool:
    """Whether anybody has a group whose calls are on a device."""
    return any(
        on_device(name)
        for program in programs.values()
        for group in program.groups.values()
        for name in group.backend.lower().replace(":", ",").split(",")
    )


def stuck_for_ever(outcome: Outcome, model: Model) -> bool:
    """`outcome`: of programs that stand still at each call that they wait for. Whether those that
    are left in it are stuck on a real device, too."""
    left = [number for number, one in outcome.standings.items() if one.exit is None]
    return bool(left) and all(
        _is_stuck(outcome.now.ranks[number], outcome.standings[number], model) for number in left
    )


def _is_stuck(rank: Rank, standing: Standing, model: Model) -> bool:
    numbers = [wait.call for wait in rank.waits]
    if len(numbers) != 1 or numbers[0] is None:
        return False
    program, call = standing.program, standing.calls[numbers[0]]
    if not _is_on_device(program, call.group, call.signature):
        return True
    stuck = [
        (at, event.stream)
        for at, event in enumerate(program.events)
        if (isinstance(event, Made) and event.call.number == call.number)
        or (isinstance(event, Waited) and event.number == call.number)
    ]
    at, stream = stuck[-1] if call.is_async else stuck[0]
    rest = program.events[at + 1 :]
    return stream >= 0 and all(_comes_behind(event, stream, program, model) for event in rest)


def _is_on_device(program: Program, group: GroupKey, signature: Signature) -> bool:
    known = program.groups.get(group)
    return known is not None and on_device(backend_of(known.backend, signature))


def _comes_behind(event: Event, stream: int, program: Program, model: Model) -> bool:
    """Whether this cannot help anybody before the stream has got so far."""
    match event:
        case Made(call, its_stream):
            return its_stream == stream and _is_on_device(program, call.group, call.signature)
        case Created(creation):
            return not model.creation_blocks(creation.backend)
        case CutOff():
            return False
    return True
