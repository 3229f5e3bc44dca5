"""Evidence says in words what a rank is doing, and where: the `ranks` part of every finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...record.layout import Activity, CallState, Phase
from ...record.limits import SHOWN_RANKS
from ...record.notes import CrashNote, ExceptionNote, ExitNote, InterruptedNote
from ...record.snapshot import Call, CallSite, GroupKey, Standstill
from ...record.wording import RankState, call_text, numbered, printable, ranks_text, signal_name
from ..findings import CallIs, GroupEvidence, RankEvidence, group_evidence
from ..limits import SECOND_NS
from .world import STOPPED, GroupView, Pending, World, caught_exceptions, exit_status

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""In the paths of files that are not the user's own."""
OF_MESSAGES = frozenset({"p2p_mismatch", "unmatched_p2p"})
"""The kinds of findings about messages, which have numbers of their own."""


def chosen(culprits: Iterable[int], others: Iterable[int]) -> list[int]:
    """The ranks to give evidence for."""
    seen = dict.fromkeys(culprits)
    for rank in others:
        if len(seen) >= SHOWN_RANKS:
            break
        seen.setdefault(rank)
    return list(seen)[:SHOWN_RANKS]


def stand(
    world: World, ranks: Iterable[int], awaited: Call | None = None
) -> dict[int, RankEvidence]:
    """Returns the present evidence of each rank. Of several threads, the one in `awaited`
    counts."""
    return {rank: standing(world, rank, awaited) for rank in ranks}


def standing(world: World, rank: int, awaited: Call | None = None) -> RankEvidence:
    """Returns what the rank is doing now, and on which line. Of several threads, the one in
    `awaited` counts, else the first that is in a call."""
    record = world.ranks.get(rank)
    if record is None:
        return RankEvidence(RankState.UNSEEN)
    if world.ended(rank):
        last = last_call(world, rank)
        site = last_site(world, rank)
        crashes = [CrashNote.read(note.data) for note in world.notes(rank, CrashNote)]
        stack = crashes[-1].stack[::-1] if crashes and crashes[-1] else ()
        return of_call(ending_text(world, rank), last, site, CallIs.LAST, stack)
    if ExceptionNote.among(record.notes):
        last = last_call(world, rank)
        failed = last is not None and last.state is CallState.FAILED
        site = last_site(world, rank)
        state = RankState.FAILED_IN if failed else RankState.RAISED
        return of_call(state, last if failed else None, site)
    rows = world.pending(rank)
    if rank in world.at_breakpoint:
        paused = next(row for row in rows if row.wait.activity is Activity.PAUSED)
        return RankEvidence(RankState.AT_BREAKPOINT, None, paused.wait.site or record.location)
    if awaited is not None and len(rows) > 1:
        rows = tuple(sorted(rows, key=lambda row: _place(row.call) != _place(awaited)))
    for pending in rows:
        if pending.call is not None:
            stopped = record.process.state in STOPPED
            if world.at_breakpoint and not stopped:
                word = f"waiting for breakpoint on {ranks_text(world.at_breakpoint)}"
                return of_call(word, pending.call, pending.site, CallIs.LAST)
            state = RankState.STOPPED_IN if stopped else RankState.WAITS_IN
            return of_call(state, pending.call, pending.site)
    for pending in rows:
        if world.at_breakpoint:
            who = ranks_text(world.at_breakpoint)
            return RankEvidence(f"waiting for breakpoint on {who}", None, pending.wait.site)
        return RankEvidence(
            wait_text(pending.wait.activity, pending.wait.detail),
            None,
            pending.wait.site or record.location,
        )
    still = record.process.standstill
    if still is not None:
        return RankEvidence(standstill_text(still), None, still.site)
    state = RankState.STOPPED if record.process.state in STOPPED else RankState.RUNS
    site, last = _whereabouts(world, rank), last_call(world, rank)
    if _is_installed(site) and last is not None and last.site and not _is_installed(last.site):
        return of_call(state, last, last.site, CallIs.LAST)  # of a runner of tests, say
    return RankEvidence(state, None, site)


def standstill_text(still: Standstill) -> str:
    """`has not left, its thread "uploader" is asleep in Condition.wait (threading.py:327)`."""
    who = f'its thread "{printable(still.thread, 60)}" is ' if still.thread else ""
    call = f" in {still.call}" if still.call else ""
    return f"{'has not left, ' if still.leaving else ''}{who}asleep{call}"


def of_call(
    state: str,
    call: Call | None,
    site: CallSite | None,
    call_is: CallIs = CallIs.OBJECT,
    stack: Sequence[str] = (),
) -> RankEvidence:
    """Returns the evidence that a rank is, or ended, at `site`, with the call that its state is
    about."""
    if call is None:
        return RankEvidence(state, None, site, stack, call_is)
    made = call.site if call.site != site else None
    return RankEvidence(state, call_text(call), site, stack, call_is, made)


def _place(call: Call | None) -> tuple[object, ...]:
    return () if call is None else (call.group, call.seq, call.signature.peer is None)


def wait_text(activity: Activity, detail: object) -> str:
    """`waits for the store key 'ready'`, `in new_group`."""
    place = place_text(activity, detail)
    return f"waits for {place}" if activity is Activity.STORE else f"in {place}"


def place_text(activity: Activity, detail: object) -> str:
    """Names what a rank waits in, or for: `new_group`, `the store key 'ready'`."""
    if activity is Activity.STORE:
        key = detail.get("key") or detail.get("keys") if isinstance(detail, dict) else None
        awaited = detail.get("awaited") if isinstance(detail, dict) else None
        if isinstance(awaited, int):
            return f"{awaited - 1} others in TCPStore()"
        return f"the store key {printable(str(key), 80)!r}" if key else "a store"
    if isinstance(detail, dict) and detail.get("op") in ("FileStore", "TCPStore"):
        return f"{detail['op']}()"
    return {
        Activity.INIT: "init_process_group",
        Activity.NEW_GROUP: "new_group",
        Activity.DESTROY: "destroy_process_group",
    }.get(activity, "a call")


def ending_text(world: World, rank: int) -> str:
    """`killed by SIGKILL`, `exited with status 3`, `finished`."""
    record = world.ranks[rank]
    if record.process.signal is not None:
        reason = " (out of memory)" if record.process.oom_killed else ""
        return f"killed by {signal_name(record.process.signal)}{reason}"
    status = exit_status(record)
    if status is None:
        return "gone without a trace"
    if status == 0:
        return RankState.FINISHED
    interrupted = InterruptedNote.among(record.notes)
    return f"exited with status {status}{' (KeyboardInterrupt)' if interrupted else ''}"


def last_call(world: World, rank: int) -> Call | None:
    """The last call of a rank that is on record."""
    record = world.ranks[rank]
    if record.history is None or record.calls == 0:
        return None
    return record.history.call(record.calls - 1)


def members_of_last_call(world: World, rank: int) -> tuple[int, ...] | None:
    """Returns the members of the group in which the rank made its last call. Where torch raises
    because of what the members have sent each other, its exception is about that group."""
    call = last_call(world, rank)
    view = world.view(rank, call.group) if call is not None else None
    return view.ranks if view is not None else None


def last_site(world: World, rank: int) -> CallSite | None:
    """The line of the uncaught exception, the crash or sys.exit, else of the last heartbeat, else
    of the last call; always of the user's own code. A SystemExit that the program caught is no end:
    calls came after it."""
    record = world.ranks[rank]
    ends = (ExceptionNote, InterruptedNote, CrashNote)
    raised = [note for note in record.notes if any(kind.matches(note) for kind in ends)]
    for note in (*reversed(raised), *caught_exceptions(record)):
        if note.site:
            return note.site
    exits = [
        note for note in ExitNote.among(record.notes) if note.site and not _is_installed(note.site)
    ]
    if exits and (record.phase >= Phase.EXITING or world.ended(rank)):
        last = last_call(world, rank)
        if last is None or last.issued_ns <= exits[-1].time_ns:
            return exits[-1].site
    if record.calls == 0 and world.finished(rank):
        return None  # it has gone on since its last heartbeat, and nobody knows where
    site = _whereabouts(world, rank)
    if not _is_installed(site):
        return site
    call = last_call(world, rank)
    own = call.site if call is not None else None
    return None if _is_installed(own) else own


def _is_installed(site: CallSite | None) -> bool:
    return site is not None and _INSTALLED.search(site.file) is not None


def _whereabouts(world: World, rank: int) -> CallSite | None:
    """The line of the last heartbeat, or of the last call where that is younger."""
    record = world.ranks[rank]
    call = last_call(world, rank)
    if call is not None and call.site and call.issued_ns > record.heartbeat_ns:
        return call.site  # the last heartbeat is older: the rank has gone on since
    return record.location or (call.site if call else None)


def at_call(world: World, ranks: Iterable[int], key: GroupKey, seq: int) -> dict[int, RankEvidence]:
    """Returns what each rank called as collective number `seq` of the group."""
    found: dict[int, RankEvidence] = {}
    for rank in ranks:
        call = world.call_at(rank, key, seq)
        if call is None:
            found[rank] = standing(world, rank)
        else:
            found[rank] = of_call(f"called #{seq}", call, call.site, CallIs.ALL)
    return found


def doing(world: World, link: Pending) -> str:
    """`in all_reduce(sum, float32[8]) #3 of group "a"`."""
    if link.call is None:
        return wait_text(link.wait.activity, link.wait.detail)
    text = f"in {call_text(link.call)}"
    view = world.view(link.rank, link.call.group)
    if link.call.signature.peer is None and view is not None:
        text += f" {numbered(view.any, link.call.seq)}"
    return text


def call_of(world: World, group: str, seq: int, rank: int) -> Call | None:
    """Returns the rank's collective number `seq` of the newest group of that name."""
    record = world.ranks.get(rank)
    keys = [key for key in record.groups if key[0] == group] if record is not None else []
    return world.call_at(rank, max(keys), seq) if keys else None


def view_of(world: World, group: GroupEvidence) -> GroupView | None:
    """Returns the newest group that a finding has this evidence of."""
    views = [one for one in world.groups if one.ranks == group.ranks]
    named = [one for one in views if group_evidence(one.any).name == group.name]
    return max(named, key=lambda one: one.key, default=None)


ENTERED = "entered_by_all"
"""In the data of a finding whose ranks are all where they should be: no stack says more."""


def cause_of(world: World, rank: int) -> str:
    """Why the rank has not come, as far as the operating system and its record tell."""
    record = world.ranks.get(rank)
    if record is None:
        return "unknown"
    if record.process.state in STOPPED:
        return "stopped"
    until_ns = record.process.ended_ns or world.now_ns
    silent_s = (until_ns - record.heartbeat_ns) / SECOND_NS if record.heartbeat_ns else 0.0
    if silent_s > max(1.0, 10 * world.limits.heartbeat_s):
        return "gil_held"
    if world.activity(rank, Activity.STORE) is not None:
        return "store"
    return "user_code" if record.location else "unknown"
