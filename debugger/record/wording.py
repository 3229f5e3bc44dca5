"""The form of ranks, lines, calls and durations in messages: one way everywhere."""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Iterable, Sequence
from enum import Enum

TYPE_CHECKING = False  # the process that shows what ranks print imports this, and little else
if TYPE_CHECKING:
    from .snapshot import Call, CallSite, Group

_ADDRESS = re.compile(r"0x[0-9a-f]{4,}")
MOST_TEXT = 400
MOST_RANGES = 12
LOOK_HERE = "<- look here"
UNDEFINED = "undefined"
"""torch's description of a group that the program gave none."""
OF_MESH = "mesh_"
"""What torch puts before the name of an axis of a device mesh to describe its group."""


def printable(text: str, most: int = MOST_TEXT) -> str:
    """The text on one line without control characters, of at most `most` characters."""
    line = " ".join(text.split())
    return shortened("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line), most)


def shortened(text: str, most: int) -> str:
    """The text without its middle where it has more than `most` characters. Long errors of torch
    begin with what may have happened, and end with the parameter that it happened to."""
    head, tail = (most - 3) * 2 // 5, most - 3 - (most - 3) * 2 // 5
    return text if len(text) <= most else f"{text[:head]}...{text[-tail:]}"


def pieces(ranks: Iterable[int], least: int) -> list[str]:
    """Each rank for itself, and as one piece (`0-3`) those of whom so many are in a row."""
    rows = sorted(set(ranks))
    parts: list[str] = []
    at = 0
    while at < len(rows):
        end = at
        while end + 1 < len(rows) and rows[end + 1] == rows[end] + 1:
            end += 1
        if end - at + 1 >= least:
            parts.append(f"{rows[at]}-{rows[end]}")
        else:
            parts.extend(str(rank) for rank in rows[at : end + 1])
        at = end + 1
    return parts


def spans(ranks: Iterable[int]) -> str:
    """`0,1,3` or, from four in a row on, `0-3,7`."""
    rows = set(ranks)
    parts = pieces(rows, 4)
    if len(parts) > MOST_RANGES:
        parts = [*parts[:MOST_RANGES], f"... ({len(rows)} ranks)"]
    return ",".join(parts)


def ranges(ranks: Iterable[int], word: str = "rank") -> str:
    """`rank 2`, `ranks 0,1`, `ranks 0-3,7`: a span from three in a row on, at whatever length."""
    rows = set(ranks)
    return f"{word}{'s' if len(rows) != 1 else ''} {','.join(pieces(rows, 3))}"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0,1,3`."""
    rows = sorted(set(ranks))
    return f"rank{'s' if len(rows) != 1 else ''} {spans(rows)}"


def comparable(text: str) -> str:
    """The text without addresses in memory: what ranks that fail alike have in common."""
    return _ADDRESS.sub("0x...", text)


def counted(count: int, what: str) -> str:
    """`1 call`, `3 calls`, `2 processes`."""
    ending = "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{ending if count != 1 else ''}"


def nearest_word(word: str, known: Iterable[str]) -> str:
    """The known word, such as a flag, that was most likely meant; "" where none is near."""
    import difflib

    names = {name.lstrip("-"): name for name in known}
    bare = word.lstrip("-").replace("_", "-")
    near = [name for name in names if len(bare) > 1 and name.startswith(bare)]
    near = near or difflib.get_close_matches(bare, names, n=1)
    return names[near[0]] if near else ""


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form of the verb that fits the number of ranks."""
    return one if len(ranks) == 1 else many


def at_site(site: CallSite | None) -> str:
    """` at train.py:88 in step`, or nothing when the line is not known."""
    return f" at {site_text(site)}" if site else ""


def site_text(site: CallSite) -> str:
    """`train.py:88 in step`, or `train.py:88 in step, through accelerate/state.py:412`."""
    by = f", through {site.through}" if site.through else ""
    return printable(f"{os.path.basename(site.file)}:{site.line} in {site.function}{by}")


def call_text(call: Call | None) -> str:
    """`all_reduce(sum, float32[1024])`."""
    return printable(str(call.signature)) if call else "a call that is no longer on record"


def group_name(name: str, desc: str) -> str:
    """Returns what a user would call the group that torch calls `name`."""
    return printable(desc if desc not in ("", UNDEFINED) else name, 80)


def numbered(group: Group, seq: int) -> str:
    """`#17 of group "default_pg"`."""
    return place(group.key[0], group.desc, seq)


def place(name: str, desc: str, seq: int) -> str:
    """The same for a group of that name and description."""
    return f'#{seq} of group "{group_name(name, desc)}"'


FINDING_MARK = "[distdebug] "
"""Begins the text of every finding that is raised in a rank."""


def finding_line(kind: str, message: str) -> str:
    """Returns what a rank raises for a finding."""
    return f"{FINDING_MARK}{kind}: {message}"


def seconds(duration_ns: int) -> str:
    """`14 s`, or `0.3 s` below ten seconds."""
    value = max(0, duration_ns) / 1e9
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 63`."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RankState(str, Enum):
    """A member is a text as well: a report has it as it is, and what is read back equals it."""

    UNSEEN = "never seen"
    RUNS = "runs user code"
    """It waits for nobody, as far as is known."""
    WAITS_IN = "waits in"
    STOPPED_IN = "stopped in"
    FAILED_IN = "failed in"
    RAISED = "raised"
    AT_BREAKPOINT = "at a breakpoint"
    STOPPED = "stopped by a signal"
    WAITS_FOR_STORE = "waits for a store key"
    WAITS_FOR_LOCK = "waits for a lock"
    """For a lock, a condition, a queue or another thread of its process."""
    HOLDS_GIL = "something holds its GIL"
    FINISHED = "finished"

    # By the stack alone, of a job without records.
    COLLECTIVE = "in a collective"
    MESSAGE = "in a message"
    HANDLE = "waits for a handle"
    JOIN = "makes a group"
    STORE = "waits for the store"
    BACKWARD = "in backward"
    CODE = "in its own code"
    ENDING = "at its end"
    GONE = "has ended"
    UNREADABLE = "has a stack that cannot be read"

    def __str__(self) -> str:
        return str(self.value)


CAUSES = {
    "stopped": RankState.STOPPED,
    "store": RankState.WAITS_FOR_STORE,
    "gil_held": RankState.HOLDS_GIL,
    "lock": RankState.WAITS_FOR_LOCK,
}
"""What a rank does that has not come, by the cause of a `missing_rank`."""


def by_device(text: str) -> dict[str, str]:
    """{"cpu": "gloo", "cuda": "nccl"} for "cpu:gloo,cuda:nccl"; {"": "gloo"} for "gloo"."""
    parts = (part.strip().rpartition(":") for part in text.split(","))
    return {device: name for device, _, name in parts}
