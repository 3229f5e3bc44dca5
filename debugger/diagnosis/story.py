"""The story of a finding: which rule made it, and what has changed it since.

`STEPS` is the whole list of what may change a finding after its rule, in the order in which it is
done. Whatever does so is decorated with `step`, by a name of that list; the finding keeps the names
of those that did change it, so that `distdebug report --story` says why a report says what it says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from .findings import Finding
from .limits import Candidate

STEPS: Mapping[str, str] = {
    # In the diagnosis, before consequences are folded.
    "alike": "findings of ranks that did the same, in other groups or rows, were joined to one",
    "unused parameters": "DDP's unused parameters explain it, and stand in its place",
    "cleanup": "an exception whose cleanup ran on explains it, and stands in its place",
    # In the diagnosis, when causes are known.
    "clocks": "what the clocks of hosts, not known well enough, leave uncertain was added",
    "exceptions": "exceptions that the ranks had before, and went on after, were added",
    "expected elsewhere": "the call in which others expect the rank was added",
    "other rows": "groups of the same description have decided which of its ranks are wrong",
    "lines": "where the ranks' lines part was added, and who slipped is to blame",
    "decision": "the branch at which ranks went different ways was added",
    "attempt": "the launcher's attempt that it is of was added",
    # Of a look at a job that is not watched.
    "stacks alone": "it was told in words of the stacks, which have no sequence numbers",
    # In a plan.
    "order of messages": "it is a warning, for another order of messages may avoid it",
    "orders": "in how many orders it happens was added, and what brings it about",
    "needs luck": "it is a warning, for it depends on what a backend buffers",
    "all alike": "all ranks fail in the same way, and are told as one",
    "last words": "what the rank wrote last was added",
    # By the supervisor, from outside of the ranks.
    "restart": "it is a warning, for the launcher starts the ranks again",
    "task limit": "the limit of processes that was reached is its cause",
    "unrecorded death": "a rank of which there is no record had died first",
    "listener": "who listens at the address was added",
    "lock": "a stack that waits for a lock gave the cause",
    "state": "what the rank does now stands in place of what its record shows",
    "place": "the line at which the stack shows the rank stands in place of the recorded one",
    "stacks": "stacks, threads, children and locks of the ranks were added",
    "GPUs": "what is wrong with the culprits' GPUs was added",
}
"""By name: what the step did. A finding's story names them in the order in which they were done."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def changed(name: str, before: Finding, after: Finding) -> Finding:
    """`after`, with the story of `before` and, if the two differ, with this step."""
    if after is before:
        return after
    own = () if after == before else (name,)
    earlier = after.story if after.story[: len(before.story)] == before.story else before.story
    return replace(after, story=(*earlier, *own))


def step(name: str) -> Callable[[_Function], _Function]:
    """Decorates a function that returns the Finding, or Candidate, among its arguments, changed or
    as it is; what it returns has this step in its story where it was changed."""
    if name not in STEPS:
        raise ValueError(f"{name!r} is not among the declared steps")

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def told(*arguments: Any, **more: Any) -> Any:
            after = function(*arguments, **more)
            given = (*arguments, *more.values())
            if isinstance(after, Candidate):
                before = next(one for one in given if isinstance(one, Candidate)).finding
                return replace(after, finding=changed(name, before, after.finding))
            found = next((one for one in given if isinstance(one, Finding)), None)
            if after is None or found is None:
                return _begun(name, after)
            return changed(name, found, after)

        return cast(_Function, told)

    return decorate


def rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a rule: what it finds begins its story with `file.function`. Of a rule that finds
    several, or finds as it goes, a list is made."""
    name = f"{str(function.__module__).rpartition('.')[2]}.{function.__name__}"

    @functools.wraps(function)
    def told(*arguments: Any, **more: Any) -> Any:
        found = function(*arguments, **more)
        if found is None or isinstance(found, Candidate | Finding):
            return _begun(name, found)
        return [_begun(name, one) for one in found]

    return told


def _begun(name: str, found: Any) -> Any:
    if isinstance(found, Candidate):
        return replace(found, finding=_begun(name, found.finding))
    if isinstance(found, Finding) and not found.story:
        return replace(found, story=(name,))
    return found
