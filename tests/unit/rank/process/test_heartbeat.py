"""Which of the threads that stand still wait for something, as the heartbeat infers it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from debugger.rank.process import heartbeat

STATUS = """Name:\tpython
State:\t{}
voluntary_ctxt_switches:\t7
nonvoluntary_ctxt_switches:\t5
"""


@pytest.mark.parametrize(
    ("state", "slept"), [("S (sleeping)", 12), ("R (running)", None), ("T (stopped)", None)]
)
def test_who_gets_no_core_does_not_wait_for_a_call(
    state: str, slept: int | None, tmp_path: Path
) -> None:
    """Its context switches stand still as well: what it waits for is a core."""
    status = tmp_path / "status"
    status.write_text(STATUS.format(state))
    assert heartbeat._slept(status) == slept


def test_of_a_thread_that_is_not_there_nobody_can_tell(tmp_path: Path) -> None:
    assert heartbeat._slept(tmp_path / "status") is None


def test_a_thread_that_waits_for_another_sleeps() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    status = Path(f"/proc/self/task/{thread.native_id}/status")
    try:
        while heartbeat._slept(status) is None:
            pass
        first = heartbeat._slept(status)
        assert first is not None
        assert first > 0
    finally:
        go.set()
        thread.join()
