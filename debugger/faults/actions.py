"""The one table of what can go wrong on purpose: actions, their arguments and their moments.

The parser, the help, the README and random plans read it; whoever performs a fault finds in
`Fault.arguments` every argument of its action that is named here, with its default filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .plan import When


class Kind(Enum):
    """The form of an argument, and what it is in `Fault.arguments` (JSON types)."""

    CHOICE = "choice"
    """A string: one of `Argument.choices`."""
    INT = "number"
    """A whole number from `low` to `high`."""
    RANK = "rank"
    """A global rank, that the world has."""
    SECONDS = "time"
    """`200ms`, `3s`, `1.5s`: a float of seconds above 0. The key is NAME_s."""
    RATE = "rate"
    """`2M`, `500k`, `1200`: a float of bytes per second above 0 (k, M, G: 1e3, 1e6, 1e9). The key
    is bytes_per_s."""
    SIGNAL = "signal"
    """`KILL` or `SIGKILL`: the name without "SIG", a string."""
    ERROR = "error"
    """`"ValueError: bad sample"`: the text, whose first word is a built-in exception; see
    `exception_of`."""
    TEXT = "text"
    """A string; quoted where it is no plain word."""
    VALUE = "value"
    """The value depends on another argument (`change`): int, string, list of ints, or None."""


class Family(Enum):
    """The object of an action."""

    PROCESS = "process"
    CALL = "call"
    DATA = "data"
    LINK = "link"


class Target(Enum):
    """The way in which an action says whom it is about."""

    RANKS = "ranks"
    """`rank=1`, `rank=[1,3]`, `rank=all`."""
    LINK = "link"
    """`0->1` or `0<->1`; `arguments["pairs"]`: lists of sender and receiver."""
    SIDES = "sides"
    """`{0,1}|{2,3}`; `arguments["sides"]`: a list of lists of ranks."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an action. `positional`: may be given without its name, which then is left out
    when it is printed. `low`, `high`: inclusive bounds of an INT. `default`: as in
    `Fault.arguments`."""

    name: str
    kind: Kind
    choices: tuple[str, ...] = ()
    default: Any = None
    required: bool = False
    positional: bool = False
    low: int = 0
    high: int = 0

    @property
    def key(self) -> str:
        """Its key in `Fault.arguments`."""
        match self.kind:
            case Kind.SECONDS:
                return f"{self.name}_s"
            case Kind.RATE:
                return "bytes_per_s"
            case _:
                return self.name


@dataclass(frozen=True, slots=True)
class Action:
    """A fault that can be asked for. `moments`: those that make sense. `repeats`: without a number
    it happens at every matching call, instead of at the first. `every`: takes `every=1..10` and
    `every=3`. `lasts`: a time may have an end (`3s for 2s`). `backends`: the names of those it
    works on; () is every one. `help`: one line. `leads_to`: the kinds of findings that it is known
    to lead to; where two faults may explain one, such a one does. Empty: any."""

    name: str
    family: Family
    help: str
    arguments: tuple[Argument, ...] = ()
    target: Target = Target.RANKS
    moments: frozenset[When] = frozenset({When.OP, When.CALL, When.SEQ, When.STEP, When.TIME})
    repeats: bool = False
    every: bool = False
    lasts: bool = False
    backends: tuple[str, ...] = ()
    leads_to: frozenset[str] = frozenset()

    def argument(self, name: str) -> Argument | None:
        """The argument of this name; None where it has none."""
        return next((one for one in self.arguments if one.name == name), None)


SIGNALS = ("KILL", "SEGV", "TERM", "STOP", "ABRT", "INT", "BUS", "FPE", "ILL", "HUP", "QUIT")
CHANGES = ("shape", "dtype", "reduce_op", "root", "split", "tag", "peer", "group")
"""The parts of a call that `change` changes. Its `to` is then: shape, split: list of ints; dtype,
reduce_op (as in a signature: "sum", "max"), group (name or description): string; root, peer (global
rank), tag: int; None: something else than it was, chosen by whoever performs it."""
LINK_FAULTS = ("drop", "delay", "rate", "corrupt", "truncate", "duplicate", "reset", "blackhole")
"""The faults of frames with data: lost one by one; late by `delay_s`; at most `bytes_per_s`; one
bit changed; cut short; sent twice; the connection reset; nothing arrives from then on."""
LAST_CALL = 10**12
"""The largest number of a call that `hold` waits for."""
DEFAULT_ERROR = "RuntimeError: injected fault"

_LINK_MOMENTS = frozenset({When.FRAME, When.TIME})
_WHERE = (
    Argument("in", Kind.CHOICE, choices=("data", "parameter"), default="data"),
    Argument("name", Kind.TEXT),
)
"""`name`: of the parameter, for in=parameter; None is the first one that takes a gradient."""

_LATENESS = frozenset({"missing_rank", "straggler", "join_timeout", "rank_exception"})
_WRONG_NUMBERS = frozenset({"nan", "overflow", "divergence"})

_TABLE = (
    Action(
        "kill",
        Family.PROCESS,
        "the process gets a signal",
        (Argument("signal", Kind.SIGNAL, choices=SIGNALS, default="KILL"),),
        leads_to=frozenset({"rank_died", "missing_rank", "early_exit"}),
    ),
    Action(
        "exit",
        Family.PROCESS,
        "the process ends at once, with this exit code",
        (Argument("code", Kind.INT, default=0, low=0, high=255),),
        leads_to=frozenset({"rank_died", "early_exit"}),
    ),
    Action(
        "raise",
        Family.PROCESS,
        "the call raises this exception in the program",
        (Argument("error", Kind.ERROR, default=DEFAULT_ERROR, positional=True),),
        leads_to=frozenset({"rank_exception"}),
    ),
    Action(
        "hang",
        Family.PROCESS,
        "the thread never comes back: asleep, at a lock of its own, with or without the GIL",
        (
            Argument(
                "how", Kind.CHOICE, choices=("sleep", "lock", "gil", "native"), default="sleep"
            ),
        ),
        leads_to=frozenset({"missing_rank"}),
    ),
    Action(
        "oom",
        Family.PROCESS,
        "memory runs out: an allocation fails, or the kernel's killer comes (a SIGKILL)",
        (Argument("how", Kind.CHOICE, choices=("allocation", "killer"), default="allocation"),),
        leads_to=frozenset({"rank_died", "rank_exception"}),
    ),
    Action(
        "fork",
        Family.PROCESS,
        "a forked child uses the process group of its parent",
        leads_to=frozenset({"forked"}),
    ),
    Action("fill-disk", Family.PROCESS, "no file that the process writes takes another byte"),
    Action("drop-store", Family.PROCESS, "the rank's connection to the store breaks"),
    Action(
        "delay",
        Family.CALL,
        "the rank comes this much later to the call",
        (Argument("delay", Kind.SECONDS, required=True, positional=True),),
        repeats=True,
        every=True,
        lasts=True,
        leads_to=_LATENESS,
    ),
    Action(
        "hold",
        Family.PROCESS,
        "the rank waits here until the rank `until` comes to its call with this number",
        (
            Argument("until", Kind.RANK, required=True),
            Argument("call", Kind.INT, required=True, high=LAST_CALL),
        ),
        leads_to=_LATENESS | frozenset({"deadlock", "early_exit", "unmatched_p2p", "stalled"}),
    ),
    Action("finish", Family.CALL, "who asks whether the call is over is answered once it is"),
    Action("skip", Family.CALL, "the call is left out", every=True),
    Action("duplicate", Family.CALL, "the call is made twice", every=True),
    Action("reorder", Family.CALL, "the call changes places with the next one", every=True),
    Action(
        "change",
        Family.CALL,
        "the call is made with another argument",
        (
            Argument("what", Kind.CHOICE, choices=CHANGES, required=True, positional=True),
            Argument("to", Kind.VALUE),
        ),
        every=True,
    ),
    Action(
        "nan",
        Family.DATA,
        "a NaN in what the rank contributes, or in a parameter",
        _WHERE,
        every=True,
        leads_to=_WRONG_NUMBERS,
    ),
    Action(
        "inf",
        Family.DATA,
        "an infinity in what the rank contributes, or in a parameter",
        _WHERE,
        every=True,
        leads_to=_WRONG_NUMBERS,
    ),
    Action(
        "bitflip",
        Family.DATA,
        "one bit flips in what the rank contributes, or in a parameter",
        (Argument("bit", Kind.INT, default=22, low=0, high=63), *_WHERE),
        every=True,
        leads_to=_WRONG_NUMBERS,
    ),
    Action(
        "link",
        Family.LINK,
        "frames of one connection are lost, late, slow, damaged, doubled, or it is reset",
        (
            Argument("what", Kind.CHOICE, choices=LINK_FAULTS, required=True, positional=True),
            Argument("delay", Kind.SECONDS),
            Argument("rate", Kind.RATE),
        ),
        target=Target.LINK,
        moments=_LINK_MOMENTS,
        repeats=True,
        lasts=True,
        backends=("tcp",),
        leads_to=_LATENESS | {"divergence", "nan"},
    ),
    Action(
        "partition",
        Family.LINK,
        "ranks on different sides hear nothing of each other",
        target=Target.SIDES,
        moments=_LINK_MOMENTS,
        repeats=True,
        lasts=True,
        backends=("tcp",),
        leads_to=_LATENESS,
    ),
)
ACTIONS: dict[str, Action] = {action.name: action for action in _TABLE}
"""By name. Of a link fault, `delay_s` is in the arguments for what="delay" alone, `bytes_per_s` for
what="rate" alone."""


def exception_of(text: str) -> tuple[str, str]:
    """The name of the exception and its message: "ValueError: bad sample"."""
    name, _, message = text.partition(":")
    return name.strip(), message.strip()
