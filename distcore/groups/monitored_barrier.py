"""monitored_barrier: names the ranks that did not come, through the store, so that the group
survives.

Every rank leaves a key when it arrives. The group's first rank waits for all of them and answers
with one key: whether all came, or who did not. When the first rank does not come, the others give
that answer. Only the first answer counts, so that all ranks pass or all fail, also those that come
too late. No collective is needed, and none is broken off: this barrier is for ranks that hang in
one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..base.deadline import Deadline, wait_for
from ..errors import BarrierFailed
from ..limits import ANSWER_S, FIRST_STORE_PAUSE_S


def monitored_barrier(
    store: Any,
    ranks: Sequence[int],
    rank: int,
    number: int,
    timeout_s: float,
    wait_all_ranks: bool,
    explain: Callable[[Sequence[int]], str] = lambda _missing: "",
) -> None:
    """Return when all ranks have called it. `ranks`: the group's global ranks; `number`: the how
    many-th of the group. Raises BarrierFailed, whose `missing` are all that did not come; its first
    sentence names the first of them or, with `wait_all_ranks`, all, as torch's does, and its end is
    `explain(missing)`."""
    prefix = f"monitored_barrier/{number}"
    arrivals = [f"{prefix}/{index}" for index in range(1, len(ranks))]
    answer = f"{prefix}/answer"
    deadline = Deadline.after(timeout_s)
    if rank == 0:
        late = [ranks[1 + arrivals.index(key)] for key in _missing(store, arrivals, deadline)]
    else:
        store.set(arrivals[rank - 1], "")
        until = Deadline.after(timeout_s + ANSWER_S)
        late = [ranks[0]] if _missing(store, [answer], until) else []
    text = ""
    if late and not store.check([answer]):
        limit = f"{timeout_s * 1000:.0f} ms"
        named = ", ".join(map(str, late if wait_all_ranks else late[:1]))
        who = f"Rank{'s' if wait_all_ranks else ''} {named}"
        text = (
            f"Rank {ranks[rank]} timed out in monitoredBarrier after {limit}: "
            f"{who} failed to pass monitoredBarrier in {limit}{explain(late)}"
        )
    said = json.dumps({"missing": late, "text": text, "by": ranks[rank]})
    given = json.loads(store.compare_set(answer, "", said).decode())
    read = f"{prefix}/read"
    if rank != 0:
        store.add(read, 1)
    else:
        # The store may end with this process: not before those that came know the answer.
        there = len(ranks) - 1 - len(late)
        wait_for(lambda: store.add(read, 0) >= there, time.monotonic() + ANSWER_S)
    if given["missing"]:
        reason = text = given["text"]
        if given["by"] != ranks[rank]:
            text = (
                f"Rank {ranks[rank]} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank {given['by']}: {text}"
            )
        raise BarrierFailed(text, given["missing"], reason)
    if rank == 0:
        for key in arrivals:
            _delete(store, key)
        if number:  # all have read the answer before: they are here
            for name in ("answer", "read"):
                _delete(store, f"monitored_barrier/{number - 1}/{name}")


def _missing(store: Any, keys: list[str], deadline: float) -> list[str]:
    """The keys that nobody has set in time.

    Asks again and again: a wait inside the store would not see Python's signals, and prints a
    warning when its time is up.
    """
    if not keys or wait_for(
        lambda: bool(store.check(keys)), deadline, first_pause_s=FIRST_STORE_PAUSE_S
    ):
        return []
    return [key for key in keys if not store.check([key])]


def _delete(store: Any, key: str) -> None:
    try:
        store.delete_key(key)
    except RuntimeError:
        pass  # some stores cannot
