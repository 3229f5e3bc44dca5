"""monitored_barrier: which ranks did not come, through the store, so that the group survives it.

Every rank leaves a key when it arrives. The group's first rank waits for all of them and answers
with one key: empty when all came, else who did not; a rank that comes too late finds that answer.
No collective is needed, and none is broken off: this barrier is for ranks that hang in one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import DistBackendError

_FIRST_PAUSE_S = 0.0005
_LAST_PAUSE_S = 0.02
_ANSWER_S = 5.0
"""How much longer than its own time a rank waits for the first rank's answer, which may come at
the very end of that rank's time."""


class BarrierFailed(DistBackendError, TimeoutError):
    """A rank did not reach the barrier in time. The group can still be used."""


def monitored_barrier(
    store: Any,
    ranks: Sequence[int],
    rank: int,
    number: int,
    timeout_s: float,
    wait_all_ranks: bool,
) -> None:
    """Return when all ranks have called it. `ranks`: the group's global ranks; `number`: the how
    many-th of the group. Raises BarrierFailed, which names the first missing rank, or all."""
    prefix = f"monitored_barrier/{number}"
    arrivals = [f"{prefix}/{index}" for index in range(1, len(ranks))]
    answer = f"{prefix}/answer"
    deadline = time.monotonic() + timeout_s
    if rank != 0:
        store.set(arrivals[rank - 1], "")
        verdict = _answer(store, answer, deadline + _ANSWER_S)
        if verdict:
            raise BarrierFailed(
                f"Rank {ranks[rank]} successfully reached monitoredBarrier, but received errors "
                f"while waiting for send/recv from rank {ranks[0]}: {verdict}"
            )
        return
    missing = _missing(store, arrivals, deadline)
    message = ""
    if missing:
        late = [ranks[1 + arrivals.index(key)] for key in missing]
        message = _message(ranks[0], late, timeout_s, wait_all_ranks)
    store.set(answer, message)
    if not missing:
        for key in arrivals:
            _delete(store, key)
        if number:  # all have read the answer before: they are here
            _delete(store, f"monitored_barrier/{number - 1}/answer")
    if message:
        raise BarrierFailed(message)


def _message(first: int, late: Sequence[int], timeout_s: float, wait_all_ranks: bool) -> str:
    limit = f"{timeout_s * 1000:.0f} ms"
    if wait_all_ranks:
        who = f"Ranks {', '.join(map(str, late))}"
    else:
        who = f"Rank {late[0]}"
    return (
        f"Rank {first} timed out in monitoredBarrier after {limit}: "
        f"{who} failed to pass monitoredBarrier in {limit}"
    )


def _missing(store: Any, keys: Sequence[str], deadline: float) -> list[str]:
    """The keys that nobody has set in time."""
    if _wait(store, keys, deadline):
        return []
    return [key for key in keys if not store.check([key])]


def _answer(store: Any, key: str, deadline: float) -> str:
    if not _wait(store, [key], deadline):
        return "it gave no answer: it did not reach the barrier either"
    return str(store.get(key).decode())


def _wait(store: Any, keys: Sequence[str], deadline: float) -> bool:
    """Wait until all keys are set; whether they are.

    Asks again and again: a wait inside the store would not see Python's signals, and prints a
    warning when its time is up.
    """
    pause_s = _FIRST_PAUSE_S
    while keys and not store.check(list(keys)):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True


def _delete(store: Any, key: str) -> None:
    try:
        store.delete_key(key)
    except RuntimeError:
        pass  # some stores cannot
