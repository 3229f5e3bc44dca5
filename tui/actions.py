"""What a user may do to a run, each asked for confirmation; and the export of what is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debugger.record import control

from .picture import Picture, Stage


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the supervisor. `question` is asked first; `{rank}` is the chosen rank."""

    key: str
    name: str
    label: str
    question: str
    explained: str
    for_rank: bool = False


ACTIONS = (
    Action(
        "S",
        "stacks",
        "stacks",
        "Take the stacks of all ranks now? Nobody is stopped.",
        "take the stacks of all ranks",
    ),
    Action(
        "N",
        "native_stacks",
        "native",
        "Take the stacks of all ranks with C and C++ frames? Each rank pauses shortly.",
        "take the stacks with C and C++ frames",
    ),
    Action(
        "B",
        "break",
        "break",
        "Stop rank {rank} at its next line? The others will wait for it.",
        "stop the chosen rank at a breakpoint; then `distdebug attach`",
        for_rank=True,
    ),
    Action(
        "C",
        "continue",
        "continue",
        "Let rank {rank} go on?",
        "let the chosen rank go on from its breakpoint",
        for_rank=True,
    ),
    Action(
        "I",
        "inject",
        "inject",
        "Inject the next fault that the plan names for rank {rank}?",
        "inject the fault that the plan names",
        for_rank=True,
    ),
    Action(
        "X",
        "stop",
        "stop run",
        "Stop the run? All ranks end, as with Ctrl-C.",
        "stop the run",
    ),
)


def refusal(picture: Picture) -> str:
    """Why nothing can be asked of this run; "" when something can."""
    if picture.stage is not Stage.LIVE:
        return "the run is over: there is nobody to ask"
    if not picture.supervised:
        return "nobody supervises this run, so nobody can act on it"
    return ""


def take(action: Action, directory: Path, rank: int | None) -> str:
    """Ask the supervisor for it; returns what it says. Raises control.ControlError."""
    arguments: dict[str, Any] = {}
    name = action.name
    if name == "native_stacks":
        name, arguments = "stacks", {"native": True}
    if action.for_rank:
        arguments["rank"] = rank
    return control.ask(directory, name, arguments)


def export(kind: str, view: str, make: Callable[[], str]) -> Path:
    """Write what is shown to a new file of the user's own in the current directory. Raises
    OSError."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    text = make()
    for number in range(100):
        more = f"-{number}" if number else ""
        path = Path(f"distdebug-{view}-{stamp}{more}.{kind}").absolute()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path
    raise FileExistsError(f"{path} exists already")
