"""The actions on a run that a user can take, each asked for confirmation; and the export of what is
shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..record.requests import control
from ..record.runs.run_directory import planned_faults
from . import attaching
from .picture import Picture, Stage


@dataclass(frozen=True, slots=True)
class UserAction:
    """An action. `question` is asked first; `{rank}` is the chosen rank. `all_too`: it may also be
    asked for all ranks. `supervised`: it is the supervisor that does it."""

    key: str
    name: str
    question: str
    explained: str
    for_rank: bool = False
    all_too: bool = False
    supervised: bool = True

    @property
    def label(self) -> str:
        """The word beside its key at the foot: the first of its name."""
        return self.name.partition("_")[0]


ACTIONS = (
    UserAction(
        "S",
        "stacks",
        "Take the stacks of all ranks now? Nobody is stopped.",
        "take the stacks of all ranks",
    ),
    UserAction(
        "B",
        "break",
        "Stop rank {rank} at its next line, or before its next call? The others will wait for it.",
        "stop the chosen rank at a breakpoint; then A",
        for_rank=True,
    ),
    UserAction(
        "A",
        "attach",
        "Open the prompt of rank {rank} here? The app comes back when the rank goes on.",
        "open the prompt (pdb) of the chosen rank, which stands at a breakpoint",
        for_rank=True,
        supervised=False,
    ),
    UserAction(
        "C",
        "continue",
        "Let rank {rank} go on from its breakpoint?",
        "let the chosen rank, or all, go on from their breakpoints",
        for_rank=True,
        all_too=True,
    ),
    UserAction(
        "I",
        "inject",
        "Which fault of the plan is to happen now?",
        "make a fault that the plan names happen now",
    ),
    UserAction(
        "X",
        "stop",
        "Stop the run? All ranks end, as with Ctrl-C.",
        "stop the run",
    ),
    UserAction(
        "N",
        "native_stacks",
        "Take the stacks of all ranks with C and C++ frames? Each rank pauses shortly.",
        "take the stacks with C and C++ frames",
    ),
)


def refusal(action: UserAction, picture: Picture, rank: int | None) -> str:
    """Why that cannot be asked of this run; "" when it can."""
    if picture.stage is Stage.READING:
        return "the run has not been read yet; try again in a moment"
    if picture.stage is Stage.NOTHING:
        return "there is no run to act on"
    if picture.stage is not Stage.LIVE:
        return "the run is over: there is nobody to ask"
    if action.supervised and not picture.supervised:
        return "nobody supervises this run, so nobody can act on it"
    if action.for_rank and rank is None:
        return "choose a rank first"
    if action.name == "attach" and rank is not None:
        return attaching.refusal(picture.directory, rank)
    if action.name == "inject" and not planned_faults(picture.directory):
        return "this run has no plan of faults; start it with distdebug run --inject ..."
    return ""


def idle(picture: Picture, rank: int | None) -> frozenset[str]:
    """The keys of the actions that cannot be asked of it now."""
    return frozenset(one.key for one in ACTIONS if refusal(one, picture, rank))


def take(action: UserAction, directory: Path, **arguments: int | None) -> str:
    """Ask the supervisor for it; returns what it says. Raises control.ControlError."""
    if action.name == "native_stacks":
        return control.ask(directory, "stacks", {"native": True})
    return control.ask(directory, action.name, arguments)


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
