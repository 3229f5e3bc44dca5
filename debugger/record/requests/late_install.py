"""The files by which `distdebug inspect --install` and the ranks that it reaches tell each other
how far they are: below `install` in the run directory, each with one writer.

`wanted` is there for as long as the install is: a rank that comes to it later leaves it alone. A
rank answers in `<pid>.json`: that it has hooks on its groups, and up to which call of each torch's
flight recorder had seen it come by then; or why not. `start.json` is written once all have
answered, and says from where on all of them count: the largest of these numbers, for each group.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..limits import MOST_RANKS
from ..safe_files import parsed, read_regular, replacing, whole
from ..safe_text import clean

_MOST_BYTES = 1 << 20
HOOKED, REFUSED, RECORDING = "hooked", "refused", "recording"
PAST = "past"
"""The folder in the run directory with what torch's flight recorders held at the install."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a rank. `seen`: by group, the number that torch's flight recorder gives the
    last call made before the hooks were there (0: none). `members`: the ranks of each. `paused_ms`:
    how long its main thread was kept from its work, by its own clock."""

    pid: int
    state: str
    rank: int = -1
    world_size: int = 0
    why: str = ""
    seen: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    paused_ms: float = 0.0


def folder(run: Path) -> Path:
    """Returns the folder of all these files."""
    return run / "install"


def is_wanted(run: Path) -> bool:
    """Whether the install is still on."""
    return (folder(run) / "wanted").exists()


def want(run: Path) -> None:
    """Begin."""
    folder(run).mkdir(mode=0o700, exist_ok=True)
    (run / PAST).mkdir(mode=0o700, exist_ok=True)
    (folder(run) / "wanted").touch(mode=0o600)


def give_up(run: Path) -> None:
    """No rank is to begin any more, and those that have are to stop."""
    with contextlib.suppress(OSError):
        os.unlink(folder(run) / "wanted")


def answer(run: Path, given: Answer) -> None:
    """Writes the answer of this rank, in place of what it said before."""
    said = {name: getattr(given, name) for name in Answer.__slots__}
    _write(folder(run) / f"{given.pid}.json", said)


def answers(run: Path) -> dict[int, Answer]:
    """Returns by pid all answers that can be read."""
    found = {}
    for path in folder(run).glob("*.json"):
        if path.stem.isdigit():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                one = _answer(_read(path))
                found[one.pid] = one
    return found


def start(run: Path, after: Mapping[str, int]) -> None:
    """All ranks count the calls of a group that come after the one with this number."""
    _write(folder(run) / "start.json", dict(after))


def started(run: Path) -> dict[str, int] | None:
    """Returns what `start` has said; None as long as it has not."""
    try:
        return {
            str(name): whole(value) for name, value in _read(folder(run) / "start.json").items()
        }
    except FileNotFoundError:
        return None


def first_common(given: Mapping[int, Answer]) -> dict[str, int]:
    """Returns from where on all ranks can count: no rank has hooks for what comes before the
    largest."""
    after: dict[str, int] = {}
    for one in given.values():
        for name, seen in one.seen.items():
            after[name] = max(after.get(name, 0), seen)
    return after


def _answer(said: Mapping[str, Any]) -> Answer:
    state = str(said["state"])
    if state not in (HOOKED, REFUSED, RECORDING):
        raise ValueError(f"{state!r} is no answer")
    rank, world_size = int(said["rank"]), int(said["world_size"])
    if not -1 <= rank < MOST_RANKS or not 0 <= world_size <= MOST_RANKS:
        raise ValueError(f"{rank} is no rank of {world_size}")
    return Answer(
        pid=int(said["pid"]),
        state=state,
        rank=rank,
        world_size=world_size,
        why=clean(str(said["why"]), 400),
        seen={str(name): whole(number) for name, number in said["seen"].items()},
        members={str(name): tuple(map(whole, ranks)) for name, ranks in said["members"].items()},
        paused_ms=float(said["paused_ms"]),
    )


def _read(path: Path) -> dict[str, Any]:
    value = parsed(read_regular(path, _MOST_BYTES))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no object")
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    with replacing(path, lasts=False) as file:
        file.write(json.dumps(value).encode())
