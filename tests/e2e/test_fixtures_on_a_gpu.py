"""Programs below fixtures/scripts get their verdicts on a GPU, on torch's NCCL and on distcore's.

All ranks share the first GPU (see `tests/support/on_tcp`), where their kernels take turns.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import test_fixtures as fixtures
from tests.support import fixture_table
from tests.support.zygote import Zygote

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

UNLIKE = {
    "default_device": "its tensors lie on the CPU",
    "exit_dropped_isend": "NCCL's end waits for the message, and the other rank for that end",
    "exit_uneven_data_loader": "the host waits in the next forward, at another line",
    "fsdp2_transformer": "its mesh is of the CPU",
    "infinity_legal": "torch refuses BOR on NCCL",
    "inflight_fine": "NCCL refuses strided tensors",
    "inflight_write": "torch counts no writes of what NCCL may be reading",
    "op_branch_in_each_row": "its mesh gives each rank a GPU of its own",
    "op_comm_hook": "NCCL refuses what its hook gathers",
    "op_in_thread": "its thread's tensors lie on the CPU",
    "pipelined_two_groups": "the first call of a group waits until all have come to connect",
    "isend_ring": "the first message of a pair waits until both have come to connect",
    "unsafe_strided_broadcast": "NCCL refuses strided tensors",
    "unwaited_all_reduce": "the first call of a group waits until all have come to connect",
}
"""Programs that fare otherwise on NCCL, and why."""
HANG_TIMEOUT_S = "20"
"""The first call of a group connects its ranks, which takes seconds where many share a GPU."""


def alike() -> list[str]:
    """Those whose random numbers do not come of a generator of the CPU either."""
    scripts = {name: fixture_table.expected(name)["script"] for name in fixtures.EXPECTED}
    texts = {
        name: (fixtures.FIXTURES / "scripts" / one).read_text() for name, one in scripts.items()
    }
    on_the_cpu = ("Generator", "DistributedSampler")
    return [
        one
        for one, text in texts.items()
        if one not in UNLIKE and not any(word in text for word in on_the_cpu)
    ]


@pytest.mark.parametrize("backend", ["nccl", "distcore_nccl"])
@pytest.mark.parametrize("name", alike())
def test_verdict(name: str, backend: str, tmp_path: Path, zygote: Zygote) -> None:
    extra = {"PYTHONPATH": str(fixtures.ON_TCP), "ON_TCP_EVERYWHERE": backend}
    expected = fixture_table.expected(name)
    flags = list(expected["args"])
    if "--hang-timeout" in flags:
        flags[flags.index("--hang-timeout") + 1] = HANG_TIMEOUT_S
    patient = {**expected, "args": flags}
    fixtures.check_verdict(expected, fixtures.run_forked(patient, tmp_path, zygote, extra))
