"""When a fault is due: moments compared with what a rank counts. No torch, no clock of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...faults.actions import ACTIONS, Family
from ...faults.plan import Fault, When


@dataclass(frozen=True, slots=True)
class CountedCall:
    """A call as the program makes it. All numbers begin at 0: `number` counts all of the rank's
    calls, `of_op` those of its op, `seq` the collectives of its group (None: a message).
    `groups`: what the group is called. `elapsed_s`: since the default group was there."""

    op: str
    number: int
    of_op: int
    seq: int | None
    groups: Sequence[str]
    elapsed_s: float = 0.0


@dataclass(slots=True)
class CallCounts:
    """The calls of a rank so far; the program's calls, not what faults make of them."""

    calls: int = 0
    ops: Counter[str] = field(default_factory=Counter)

    def add(self, op: str, seq: int | None, groups: Sequence[str], elapsed_s: float) -> CountedCall:
        """Counts one more call."""
        made = CountedCall(op, self.calls, self.ops[op], seq, groups, elapsed_s)
        self.calls += 1
        self.ops[op] += 1
        return made


@dataclass(slots=True)
class Armed:
    """A fault in one rank. `over`: it does not happen any more. `waiting`: its moment has come, and
    it happens at the next call that it can happen at."""

    fault: Fault
    over: bool = False
    waiting: bool = False
    last_step: int | None = None

    @property
    def single(self) -> bool:
        """Whether it happens once at most."""
        moment = self.fault.moment
        if moment.when is When.TIME:
            return not self._lasts
        return moment.first == moment.last

    @property
    def _lasts(self) -> bool:
        """Whether it happens at all calls in a span of time."""
        return self.fault.moment.for_s is not None and self.fault.action == "delay"

    @property
    def of_calls(self) -> bool:
        """Whether it is something done to a call, which there must be."""
        fault = self.fault
        if fault.action == "delay" or fault.arguments.get("in") == "parameter":
            return False
        return ACTIONS[fault.action].family is not Family.PROCESS

    @property
    def at_once(self) -> bool:
        """Whether it can happen at any time, whatever the program does: it is the process's."""
        fault = self.fault
        match fault.action:
            case "kill" | "exit" | "fill-disk" | "drop-store":
                return True
            case "hang":
                return fault.arguments.get("how") == "gil"
            case "oom":
                return fault.arguments.get("how") == "killer"
            case _:
                return False

    def at_call(self, call: CountedCall) -> bool:
        """Whether it is due at this call, the next one of the rank."""
        if self.over:
            return False
        moment = self.fault.moment
        match moment.when:
            case When.OP:
                due = call.op == moment.op and moment.covers(call.of_op)
            case When.CALL:
                due = moment.covers(call.number)
            case When.SEQ:
                named = not moment.group or moment.group in call.groups
                due = named and call.seq is not None and moment.covers(call.seq)
            case When.TIME:
                end_s = moment.at_s + (moment.for_s or 0.0)
                due = self._lasts and moment.at_s <= call.elapsed_s < end_s
            case _:
                due = False
        return due or self.waiting

    def at_step(self, number: int) -> bool:
        """Whether it is due now that this step begins; once for each."""
        moment = self.fault.moment
        if self.over or number == self.last_step:
            return False
        if moment.when is not When.STEP or not moment.covers(number):
            return False
        self.last_step = number
        return True

    def at_time(self, elapsed_s: float) -> bool:
        """Whether its time has come; once. A span of time is a matter of calls (`at_call`)."""
        moment = self.fault.moment
        if self.over or self.waiting or moment.when is not When.TIME:
            return False
        return not self._lasts and elapsed_s >= moment.at_s

    def has_happened(self) -> None:
        """Notes that it happens now, for the first or another time."""
        self.waiting = False
        self.over = self.over or self.single
