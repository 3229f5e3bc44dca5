"""The format of a flight record, version 4: one file a rank, written by mmap, read by anyone.

All numbers are little-endian. Times are nanoseconds of CLOCK_MONOTONIC of the rank's host; the
header's `wall_offset_ns` added gives Unix time. The file is allocated in full when it is made and
never grows, so a full disk is noticed once, at the start, and not by SIGBUS later.

    offset            what
    0                 HEADER: who this is; written once, `rank` and the like again when known
    IDENTITY          JSON (host, job, argv, torch, ...), NUL-padded, `IDENTITY_BYTES`
    DYNAMIC           heartbeat, counters, phase, exit
    THREADS           64 slots: what each thread of the rank waits for right now
    GROUPS            512 slots: per group how many calls, the hash chains, and its lines
    CHECKPOINTS       512 x 16 slots: the chains of a group at every 64th call
    CHANNELS          1024 slots: per (group, direction, peer, tag) how many calls, their chain, and
                      its lines
    SURPRISES         4096 slots: the calls that came from another line than expected
    RING              4096 slots: the last calls
    VOLATILE          4096 slots: signatures of calls that came after the heap was half full
    HEAP              definitions, append-only: signatures, call sites, groups, notes

**Torn slots.** A ring slot begins and ends with the call's number plus one; a thread slot with its
version. A reader takes a slot only if both agree and say what it expected.

**Written once.** With every call only its slot in the ring is written, and one word of its thread's
slot: the call's number + 1, and behind it, in the lowest `PHASE_BITS` bits, a phase. That is 0
while the thread is in the call. It rises by one when the thread leaves the call, when it begins to
wait for this or another call, and when that wait is over: even is in, odd is out. What it waits
for, its line and since when are in its slot before the phase says so. The rest follows, which is
what readers do (in `reader`):

- The latest call is the newest that any thread's word names, or DYNAMIC's count.
- The counts of the group that made the latest call, or of its channel, are those in that call's
  slot; its own slot has them when another one has made a later call, and when that call was
  refused (`REFUSED_FLAG`). `last` of a group that has made none is the latest call when it was
  made, so that older slots are not taken for its own.
- A call whose slot has a time of completion is complete, if its state does not say that it failed;
  one that has a time of start has started. One that is complete and has no time of start was waited
  for where it was made, and counts as started when it was issued.
- A thread whose phase is 0 is in that call, since the time in the call's slot and at its line, if
  its own slot has no activity; with any other even phase it is in the wait that its slot names, if
  the word is the same before and after that was read. When the ring is about to come round to the
  call, and when the thread enters something else within it, the wait is written with its activity.
- The serial of the layer is DYNAMIC's plus the words of all threads: each of them only rises.

**Definitions.** Each is `<IBxxxI` (length of text in bytes, kind, id), then UTF-8 JSON. The
dynamic header's `heap_used` is raised after the text is in place. Ids count from 1 per kind; id 0
means unknown.

**Chains.** A group keeps a running hash of the agreement keys of its collectives (`chain`), a sum
of the keys with shapes (`exact`), and the balance of all-to-all splits (`balance`); see
`distdebug.record.signature`. A ring slot holds the three *after* its call.

**Lines.** Where the calls of a group or channel come from is told by the few that came from another
place than expected: see `distdebug.record.lines`. Each names the one before it, and the slot of the
group or channel the last one, how many there are, and their running hash, once they are written. Of
two at one sequence number the later one counts: the other call was refused. Where the oldest are
overwritten, the ring of calls says the rest.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

MAGIC = b"DDFLIGHT"
VERSION = 4
READERS = {1: "0.1.0", 2: "0.1.0", 3: "0.1.0"}
"""The distdebug that reads the records of an earlier version. This one does not: a second way
through the ring would have to be right in each reader, and a run of before still has its
`report.json`."""

HEADER = Struct("<8sIIiiiiBxxxIqqQQ")
"""magic, version, pid, rank, world_size, local_rank, restart_count, role, how often the launcher
restarts it at most (0: not at all, or not on record), started_ns, wall_offset_ns, main thread's
native id, process start in clock ticks"""
WALL_OFFSET_AT = 48
"""Where `wall_offset_ns` stands in it."""
IDENTITY_OFFSET = 256
IDENTITY_BYTES = 3840

DYNAMIC_OFFSET = 4096
DYNAMIC = Struct("<QQQBBxxiQQiIQI")
"""heartbeat_ns, calls issued, heap_used, phase, flags, exit code, when it began to exit,
serial of the last change of any thread's activity,
then the heartbeat's: threads that could still act (-1: unknown), reserved, the serial at which
they were counted, the main thread's call site id"""
CALLS_AT = DYNAMIC_OFFSET + 8
HEAP_USED_AT = DYNAMIC_OFFSET + 16
PHASE_AT = DYNAMIC_OFFSET + 24
FLAGS_AT = DYNAMIC_OFFSET + 25
EXIT_AT = DYNAMIC_OFFSET + 28
EXIT = Struct("<iQ")
SERIAL_AT = DYNAMIC_OFFSET + 40
BEAT_AT = DYNAMIC_OFFSET + 48
BEAT = Struct("<iIQI")
SURPRISES_AT = DYNAMIC_OFFSET + 128
"""The number of surprises written so far."""
U64 = Struct("<Q")
U32 = Struct("<I")

THREADS_OFFSET = 8192
THREADS = 64
THREAD = Struct("<IBBHQQIIQQI")
"""version, activity, inferred, pad, native thread id, call number + 1 (0: none),
detail definition id, call site id, since_ns, serial, version again"""
SEEN_IDLE, SEEN_STILL, SEEN_ASKING = 1, 2, 3
"""How a wait came on record that nobody reported (0: the thread did). Idle below its call; at one
instruction, while its call is under way on a GPU; asking again and again whether the call is over.
All but the first are guesses."""
THREAD_BYTES = 64
THREAD_CALL_AT = 56
THREAD_CALLS = Struct("<" + f"{THREAD_CALL_AT}xQ" * THREADS)
"""From `THREADS_OFFSET` on: the word of each thread that says which call it is in."""
PHASE_BITS = 20
MOST_PHASE = (1 << PHASE_BITS) - 2
"""Even: no wait begins with the word alone from here on, so that the next phase still fits."""
ACTIVITY_AT = 4
WAIT_AT = 16
"""The call that is waited for, the line of the wait and since when: three words."""
WAIT = Struct("<QxxxxIQ")

GROUPS_OFFSET = THREADS_OFFSET + THREADS * THREAD_BYTES
GROUPS = 512
LINES = Struct("<IIQIxxxx")
"""In the slot of a group or channel: how many surprises (`NO_LINES`: nothing is known), number + 1
(low 32 bits) of the last one, the hash of all, how many again"""
NO_LINES = 0xFFFFFFFF
GROUP = Struct(f"<IBxxxQQQQQQ{LINES.size}x")
"""definition id, state, collectives issued, reserved, chain, exact, balance,
number + 1 of the last call in the group (see "Written once"), LINES"""
GROUP_BYTES = GROUP.size
GROUP_LINES_AT = GROUP.size - LINES.size
GROUP_STATE_AT = 4
GROUP_COUNTS_AT = 8
GROUP_COUNTS = Struct("<QQQQQQ")

CHECKPOINTS_OFFSET = GROUPS_OFFSET + GROUPS * GROUP_BYTES
CHECKPOINTS = 16
CHECKPOINT_EVERY = 64
CHECKPOINT = Struct("<QQQQ")
"""collectives issued, chain, exact, balance: the group after that many collectives"""

CHANNEL_COUNTS_AT = 8
CHANNEL_COUNTS = Struct("<QQQ")
CHANNELS_OFFSET = CHECKPOINTS_OFFSET + GROUPS * CHECKPOINTS * CHECKPOINT.size
CHANNELS = 1024
CHANNEL = Struct(f"<IIQQQ{LINES.size}x")
"""definition id, taken, calls issued, chain of (dtype, count), number + 1 of the last call, LINES;
`taken`: the messages of a channel of receives that receives from any source are known to have taken
"""
CHANNEL_TAKEN_AT = 4
CHANNEL_LINES_AT = CHANNEL.size - LINES.size

SURPRISES_OFFSET = CHANNELS_OFFSET + CHANNELS * CHANNEL.size
SURPRISES = 4096
SURPRISE = Struct("<QQIIII")
"""number + 1, seq, call site id (0: not known), period, number + 1 (low 32 bits) of the previous
surprise in the group or channel, number + 1 (low 32 bits)"""

RING_OFFSET = SURPRISES_OFFSET + SURPRISES * SURPRISE.size
RING = 4096
SLOT = Struct("<QHHBBBxIIIIQQQQQQQQ")
"""number + 1, group slot, thread slot, op code, state, flags, signature id, call site id,
number + 1 (low 32 bits) of the previous call in the group or channel, channel slot,
seq, chain, exact, balance, issued_ns, started_ns, completed_ns, number + 1 again"""
STATE_AT = 13
FLAGS_IN_SLOT_AT = 14
STARTED_AT = 72
TIMES = Struct("<QQ")
COMPLETED_AT = 80

VOLATILE_OFFSET = RING_OFFSET + RING * SLOT.size
VOLATILE_BYTES = 192
VOLATILE_SIGNATURE = 0xFFFFFFFF

HEAP_OFFSET = VOLATILE_OFFSET + RING * VOLATILE_BYTES
HEAP_BYTES = 1 << 20
DEFINITION = Struct("<IBxxxI")
FILE_BYTES = HEAP_OFFSET + HEAP_BYTES

NO_CHANNEL = 0xFFFFFFFF
ASYNC_FLAG = 1
AGREES_FLAG = 2
REFUSED_FLAG = 4
"""The backend refused the call at once: it does not count, and the chains in its slot are not its
group's."""
BOUNDED_FLAG = 8
"""An asynchronous call that waits for the other ranks before its backend has it, but no longer than
`BOUNDED_S`: then its thread goes on, whether they have come or not."""
BOUNDED_S = 40.0
UNPLACED_FLAG = 16
"""The call is no step of the program's own: its line may differ from the other ranks'."""
HEAP_FULL_FLAG = 2


def volatile_at(call: int) -> int:
    """Returns where the signature of the call with this number is, if the heap does not have it."""
    return VOLATILE_OFFSET + call % RING * VOLATILE_BYTES


class Role(enum.IntEnum):
    """The role of the process, as far as it knows itself."""

    UNKNOWN = 0
    RANK = 1
    FORKED_CHILD = 2


class Phase(enum.IntEnum):
    """The progress of the process."""

    STARTING = 0
    RUNNING = 1
    EXITING = 2  # an uncaught exception, or sys.exit: the program will not go on
    ENDED = 3  # the program's last line of Python has run


class CallState(enum.IntEnum):
    ISSUED = 1  # the backend has not accepted it yet
    STARTED = 2
    COMPLETED = 3
    FAILED = 4


class GroupState(enum.IntEnum):
    CREATING = 1
    READY = 2
    DESTROYED = 3


class Activity(enum.IntEnum):
    """The activity of a thread, as far as this layer sees it."""

    NONE = 0  # computing, or anything else
    IN_CALL = 1  # inside a call of the backend, or in the wait for one
    INIT = 2  # in init_process_group
    NEW_GROUP = 3  # in the creation of a group
    STORE = 4  # waits for a key of a store
    DESTROY = 5  # in destroy_process_group
    PAUSED = 6  # stopped at a breakpoint


FOR_RANKS = frozenset({Activity.IN_CALL, Activity.NEW_GROUP, Activity.INIT})
"""Waits that other ranks of the job can end."""


class Definition(enum.IntEnum):
    SIGNATURE = 1  # Signature.to_json()
    SITE = 2  # [file, line, function, through, [[file, line, function] of each caller, ...]]
    GROUP = 3  # {"name", "incarnation", "desc", "ranks", "backend", "timeout_s"}; `rank_runs`
    CHANNEL = 4  # {"group": slot, "incarnation", "op", "peer", "tag"}
    CREATION = 5  # {"index", "name", "ranks", "backend", "site", "world_seq", "t_ns"}
    DETAIL = 6  # what a thread waits for, where it is no call: {"op", "key"?, ...}
    ENVIRONMENT = 8  # {name: value}: what of it is allowed; the last one counts
    NOTE = 7  # something worth reporting: {"kind", "t_ns", "message", "site", ...}


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line of the user's own code. `through`: the line of an installed package that it led to,
    and which made the call (`accelerate/state.py:412`); "" where the user's code made it."""

    file: str
    line: int
    function: str
    through: str = ""

    def __str__(self) -> str:
        by = f", through {self.through}" if self.through else ""
        return f"{self.file}:{self.line} in {self.function}{by}"


FEW_RANKS = 64
"""Up to so many ranks are written one by one."""
_SHORTER = 8
"""A list stays one unless it takes so many times as much."""


def packed_ranks(ranks: Sequence[int]) -> Any:
    """Returns the ranks of a group for JSON, in the order that they have: a few numbers, however
    many ranks it has.

    Each of 16,384 ranks describes the group of all; as a list that is 100 KB in each record, and a
    gigabyte for whoever reads them all, or gets them from other nodes. Groups are runs of ranks
    with one stride, or a few of them, so that is what is written: `{"runs": [[first, count,
    step]]}`. Small groups, and those that are no such runs, stay plain lists.
    """
    if len(ranks) <= FEW_RANKS:
        return list(ranks)
    runs: list[list[int]] = []
    for rank in ranks:
        last = runs[-1] if runs else None
        if last is None:
            runs.append([rank, 1, 1])
        elif last[1] == 1:
            last[1:] = [2, rank - last[0]]
        elif rank == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            runs.append([rank, 1, 1])
    if 3 * len(runs) * _SHORTER > len(ranks):
        return list(ranks)
    return {"runs": runs}
