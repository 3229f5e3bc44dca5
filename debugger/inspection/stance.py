"""Reads what a rank does off its stacks: in which call it stands, at which line, since when.

There is no record of calls here. The names of torch's functions on the stack, the values of their
arguments (who is the peer, which the root) and the user's own line of source are all there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..record.ops import OPS, POINT_TO_POINT
from ..record.safe_text import whole_number
from ..record.snapshot import CallSite
from ..record.wording import RankState
from ..supervisor.stacks.sights import Sight, Thread, is_a_sleep
from ..supervisor.stacks.stack_tree import (
    is_wrapper,
    users_frame,
    waits_for_lock,
    waits_for_thread,
)
from ..supervisor.stacks.stacks import Frame, line_of
from . import source as sources
from .look import WAITS, Stance

OBJECT_CALLS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
}
_SINGLE = {
    name: op for op, row in OPS.items() if op not in POINT_TO_POINT for name in row.functions
}
"""Newer names of calls: in newer releases, the older names are functions that call these."""
COLLECTIVES = {op for op in OPS if op not in POINT_TO_POINT} | OBJECT_CALLS | {*_SINGLE}
MESSAGES = {*POINT_TO_POINT, "isend", "irecv", "send_object_list", "recv_object_list"}
_BATCHES = {"batch_isend_irecv"}
JOINS = {
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
    "init_device_mesh",
}
_ARGUMENTS = ("src", "dst", "group_src", "group_dst", "tag", "ranks", "world_size", "rank")
_OF_JOINS = ("group_name", "hostname", "port", "world_size")
"""What torch's own frames below the making of a group tell: its name, and where the store is."""
_COMMUNICATION = re.compile(
    r"/torch/distributed/(?!elastic/|launcher/|checkpoint/|run\.py|launch\.py)|"
    r"/torch/nn/parallel/distributed\.py|/distcore/"
)
"""Who saves a distributed checkpoint waits for nobody, unless a call of these is below."""
_RPC = re.compile(r"/torch/distributed/rpc/")
_RUNS_FOR_ANOTHER = ("/torch/distributed/rpc/internal.py", "_run_function")
_OF_TORCH = re.compile(r"/torch/distributed/")
_BACKWARD = "_engine_run_backward"
_A_WAIT = re.compile(r"(?<!\bos)\.(?:wait|wait_tensor(?:\.default)?|synchronize|result|value)\(")
_OPERATORS = re.compile(r"/torch/(?:_ops\.py|_library/|_functorch/|_inductor/)")
"""How a call of `torch.ops` gets to its C++: functional collectives are such calls."""
_OF_A_STORE = re.compile(r"store\w*\.(?:get|wait|set|add|compare_set|multi_get|barrier)\(", re.I)
_MAKES_A_STORE = re.compile(r"\bTCPStore\(")
"""Whose host waits in C++ for those that it was made for."""
_NOT_A_MEMBER = "-100"
"""What `new_group` returns to a rank that is not in the group (`GroupMember.NON_GROUP_MEMBER`)."""
_TELL_THE_RANK = ("init_process_group", "_create_c10d_store", "_env_rendezvous_handler")
_SPAWNED = ("torch/multiprocessing/spawn.py", "_wrap", "i")


def stance(sight: Sight) -> Stance:
    """Returns what the process does. Of its threads the main one counts, unless that waits for one
    that communicates, or another rank waits for one by RPC."""
    if not sight.state:
        return Stance(RankState.GONE)
    main = sight.main
    found = of_threads(sight)
    own = Stance(RankState.CODE, cause="unknown")
    if main is not None:
        own = _of_thread(main, sight)
    if main is not None and main.stack.source == "proc" and own.cause != "stopped":
        return Stance(RankState.UNREADABLE, still_s=own.still_s, running=own.running)
    if (
        own.doing in (RankState.CODE, RankState.ENDING)
        and not own.running
        and own.cause != "stopped"
    ):
        helpers = [one for one in found if one.doing in WAITS]
        if helpers:
            longest = max(helpers, key=lambda one: one.still_s)
            # An event loop hands torch's own function to a thread: `asyncio.to_thread`.
            return longest if longest.site is not None else replace(longest, site=own.site)
    by_rpc = main is not None and any(_RPC.search(one.file) for one in main.stack.frames)
    if own.doing in WAITS and by_rpc:
        served = [
            one
            for thread, one in zip(_others(sight), found, strict=True)
            if one.doing is RankState.CODE and one.site is not None and _runs_for_another(thread)
        ]
        if served:
            return max(served, key=lambda one: one.still_s)
    if main is not None:
        own = _as_late_as_its_threads(own, main, sight)
    if own.doing is RankState.CODE and any(
        one.stack.holds_gil for one in sight.threads if one is not main
    ):
        return replace(own, cause="gil_held")
    return own


def of_threads(sight: Sight) -> list[Stance]:
    """Returns what its threads do, without the main one."""
    return [
        _as_late_as_its_threads(
            replace(_of_thread(one, sight), thread=_begun_with(one)), one, sight
        )
        for one in _others(sight)
    ]


def _begun_with(thread: Thread) -> str:
    """The outermost function of the user's; "" where there is none."""
    for frame in reversed(thread.stack.python_frames):
        if users_frame([frame]) is not None:
            return f"{frame.file}:{frame.function}"
    return ""


def _as_late_as_its_threads(own: Stance, thread: Thread, sight: Sight) -> Stance:
    """A thread that waits for what another one hands over: it is at work where one with code of the
    user's computes or receives, comes back when such a one ends a sleep of its own, and is idle
    where it waits for a client. (A server of metrics has no code of the user's on its stack.)"""
    if own.cause != "lock" or not waits_for_thread(thread.stack):
        return own
    helpers = [one for one in _others(sight) if one is not thread and one.is_users]
    moving = [one for one in helpers if not one.still_s or _is_in_a_call(one)]
    sleeping = [
        one.wakes_in_s
        for one in helpers
        if one.wakes_in_s is not None and is_a_sleep(one.still_s, one.wakes_in_s)
    ]
    return replace(
        own,
        # On a host with too few cores, one that wants to work may have got little of one.
        at_work=own.at_work
        or any(one.running or sight.uses_core for one in moving)
        or any(one.receives for one in helpers),
        serves=own.serves or next((one.serves for one in helpers if one.serves), ""),
        wakes_in_s=min(sleeping, default=own.wakes_in_s),
    )


def _is_in_a_call(thread: Thread) -> bool:
    """Whether it uses a core, at a line that is no loop by itself: in a call that has not come back
    yet. A call that holds the GIL and sleeps does not compute."""
    python = thread.stack.python_frames
    return thread.stack.active and bool(python) and not sources.is_loop(python[0])


def started_as(sight: Sight) -> int | None:
    """The rank of a process that its parent started with the number as an argument (`mp.spawn`), or
    that has told `init_process_group`; None where its stack does not say."""
    frames = [frame for one in sight.threads for frame in one.stack.frames]
    for frame in frames:
        if frame.function in _TELL_THE_RANK and "/torch/distributed/" in frame.file:
            told = whole_number(dict(frame.values).get("rank"))
            if told is not None:
                return told
    for frame in reversed(frames):
        if frame.file.endswith(_SPAWNED[0]) and frame.function == _SPAWNED[1]:
            return whole_number(dict(frame.values).get(_SPAWNED[2]))
    return None


def calls_itself(sight: Sight) -> tuple[int, bool] | None:
    """The number that the outermost function of the user's calls `rank`, and whether it also has
    the size of a world that this is in. It may be another number (of a matrix, of a group of some
    kind), and counts only beside those of the other processes."""
    main = sight.main
    for frame in reversed(main.stack.frames if main is not None else ()):
        local = dict(frame.values)
        rank, size = whole_number(local.get("rank")), whole_number(local.get("world_size"))
        if rank is not None and users_frame([frame]) is not None:
            return rank, size is not None and rank < size
    return None


def waits_for_children(sight: Sight) -> bool:
    """Whether it does nothing but wait for the end of processes that it has started."""
    main = sight.main
    return any(
        frame.file.endswith(("torch/multiprocessing/spawn.py", "multiprocessing/process.py"))
        and frame.function.rpartition(".")[2] in ("join", "spawn", "start_processes")
        for frame in (main.stack.frames if main is not None else ())
    )


def is_helper(sight: Sight) -> bool:
    """Whether it is a worker of a data loader or of a pool: no rank. (Who has a pool of his own has
    threads for it, in the same files.)"""
    main = sight.main
    return any(
        frame.file.endswith("torch/utils/data/_utils/worker.py")
        or (
            frame.file.endswith(("multiprocessing/pool.py", "concurrent/futures/process.py"))
            and frame.function.rpartition(".")[2] in ("worker", "_process_worker")
        )
        for frame in (main.stack.frames if main is not None else ())
    )


def _others(sight: Sight) -> list[Thread]:
    """Its threads without the main one."""
    main = sight.main
    return [one for one in sight.threads if one is not main]


def _runs_for_another(thread: Thread) -> bool:
    """Whether it runs a function that another rank has asked for, by RPC."""
    file, function = _RUNS_FOR_ANOTHER
    return any(one.file.endswith(file) and one.function == function for one in thread.stack.frames)


def _of_thread(thread: Thread, sight: Sight) -> Stance:
    frames = thread.stack.python_frames
    found = users_frame(frames)
    torchs = _call_below(frames) if found is None else None
    seen = Stance(
        RankState.CODE,
        still_s=thread.still_s,
        running=thread.running,
        lines=tuple(f"{one.function} ({one.file}:{one.line})" for one in frames),
    )
    if torchs is not None and not sight.stopped:
        state, name, shown, given = torchs
        return replace(seen, doing=state, op=name, call=shown, arguments=given)
    seen = replace(
        seen,
        computes=_is_in_a_call(thread),
        moves_data=sight.moves_data,
        at_work=sight.at_work,
        serves=sight.serves,
        wakes_in_s=thread.wakes_in_s,
    )
    if found is None:
        at_end = any(one.function in ("_shutdown", "_exit_function") for one in frames)
        doing = RankState.ENDING if at_end else RankState.CODE
        return replace(seen, doing=doing, cause="stopped" if sight.stopped else "unknown")
    frame, through = found
    site = CallSite(frame.file, frame.line, frame.function, through)
    below = frames[: next(at for at, one in enumerate(frames) if one is frame)]
    doing, op, call, arguments = _reading(below, frame, thread)
    message = sources.message_at(frame) if doing is RankState.MESSAGE and op == "wait" else None
    if message is not None:
        op, peer = message  # the rank stands in it, though by its handle
        arguments = {"dst" if op == "isend" else "src": str(peer)}
        call = _printed(op, arguments)
    cause = None
    if sight.stopped:
        cause = "stopped"
    elif doing is RankState.STORE:
        cause = "store"
    elif doing in (RankState.CODE, RankState.ENDING):
        cause = "lock" if waits_for_lock(thread.stack) else "user_code"
        if thread.stack.holds_gil and thread.still_s:
            cause = "gil_held"
    return replace(
        seen,
        doing=doing,
        op=op,
        call=call,
        site=site,
        group=sources.group_argument(frame, (call or op).partition("(")[0]),
        peers=sources.peers_around(frame) if doing is RankState.MESSAGE and op == "wait" else (),
        not_in=tuple(name for name, value in frame.values if value == _NOT_A_MEMBER),
        keys=sources.store_keys(below[0] if below else frame) if doing is RankState.STORE else (),
        arguments=arguments,
        cause=cause,
    )


def _reading(
    below: Sequence[Frame], frame: Frame, thread: Thread
) -> tuple[RankState, str, str | None, Mapping[str, str]]:
    """Returns what goes on below the user's line: the state, torch's innermost name for it, how it
    is printed, and with which arguments."""
    named = [one for one in below if _COMMUNICATION.search(one.file)]
    source = line_of(frame)
    known = _call_below(below)
    if known is not None:
        return known
    if any(one.function == _BACKWARD for one in below) and not thread.running:
        return RankState.BACKWARD, "backward", "backward()", {}
    if any(one.function == "destroy_process_group" for one in named):
        return RankState.ENDING, "destroy_process_group", "destroy_process_group()", {}
    if named and not thread.running:
        # DDP's constructor, FSDP, a device mesh, ...: they wait for others in torch's C++ code.
        # It is printed as the class whose method the outermost function is (DDP here), else
        # as the outermost function that is more than a wrapper.
        told = dict(named[-1].values).get("self", "").strip("<").split(" ")[0]
        if told == "cell":  # a closure below has it, too, and its value does not show
            told = named[-1].function.rpartition(".")[0]
        if named[0].function == "wait_tensor":
            told = "wait_tensor"  # of a functional collective, whoever has made it
        plain = next((one for one in reversed(named) if not is_wrapper(one)), named[-1])
        printed = f"{(told or plain.function).rpartition('.')[2]}()"
        return RankState.COLLECTIVE, named[0].function, printed, {}
    if not below and not thread.running and _MAKES_A_STORE.search(source):
        return RankState.JOIN, "TCPStore", "TCPStore()", {}
    if below and not thread.running and _waits_for_a_store(below[0]):
        outer = [one for one in below if _OF_TORCH.search(one.file)][-1]
        return RankState.STORE, "store", f"{outer.function.rpartition('.')[2]}()", {}
    of_torch_ops = all(_OPERATORS.search(one.file) for one in below)
    if not below and not thread.running and _OF_A_STORE.search(source):
        return RankState.STORE, "store", source.partition("  #")[0].strip()[:80], {}
    if of_torch_ops and not thread.running and not waits_for_lock(thread.stack):
        for name in sources.called_at(frame):
            op = re.sub(r"(?:_out|_)$", "", name)  # torch.ops._c10d_functional.all_reduce_
            if (op in COLLECTIVES and op != name) or (below and op in COLLECTIVES):
                return RankState.COLLECTIVE, op, f"{name}()", {}
        if _A_WAIT.search(source):
            made = sources.made_around(frame, COLLECTIVES | MESSAGES | _BATCHES)
            of_messages = made and made <= MESSAGES | _BATCHES
            return (RankState.MESSAGE if of_messages else RankState.HANDLE), "wait", "wait()", {}
    return RankState.CODE, "", None, {}


def _call_below(below: Sequence[Frame]) -> tuple[RankState, str, str, Mapping[str, str]] | None:
    """The call of torch's that is known by name, if one is among these frames."""
    named = [one for one in below if _COMMUNICATION.search(one.file)]
    for kind, names in (
        (RankState.JOIN, JOINS),
        (RankState.MESSAGE, MESSAGES),
        (RankState.COLLECTIVE, COLLECTIVES),
    ):
        inner = next((one for one in named if one.function in names), None)
        if inner is None:
            continue
        outer = next(one for one in reversed(named) if one.function in names)
        arguments = {
            name: value
            for one in (outer, inner)
            for name, value in one.values
            if name in _ARGUMENTS and value not in ("", "None")
        }
        if kind is RankState.JOIN:
            arguments |= _of_join(named)
        op = _SINGLE.get(inner.function, inner.function)
        return kind, op, _printed(outer.function, arguments), arguments
    return None


def _waits_for_a_store(frame: Frame) -> bool:
    """Whether torch itself waits for the store there, for the user (elastic's barrier)."""
    return _OF_TORCH.search(frame.file) is not None and bool(_OF_A_STORE.search(line_of(frame)))


def _of_join(frames: Sequence[Frame]) -> Mapping[str, str]:
    """Returns what torch's functions that make a group have in hand; the outermost one that has it
    tells."""
    found: dict[str, str] = {}
    for one in reversed(frames):
        for name, value in one.values:
            if name in _OF_JOINS and value.strip("\"'") not in ("", "None", "-1"):
                found.setdefault(name, value.strip("\"'"))
    return found


def _printed(name: str, arguments: Mapping[str, str]) -> str:
    shown = [
        f"{key}={arguments[key]}"
        for key in ("src", "dst", "group_src", "group_dst", "tag", "ranks")
        if key in arguments
        and arguments[key].strip("-").isdigit() | (key == "ranks")
        and not (key == "tag" and arguments[key] == "0")
        and not (key.startswith("group_") and key.removeprefix("group_") in arguments)
    ]
    return f"{name}({', '.join(shown)})"
