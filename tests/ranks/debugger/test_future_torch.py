"""No program is harmed by a torch that is not as known: its private names are taken away, or
changed, one at a time and several at once, and each program ends as it does without distdebug."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support import future_torch, runs
from tests.support.torch_loaded import TorchLoaded, request

MOST = 400
BATCHES = 16
LEAST = 150
"""So many mutations there must be."""
A_FEW = [*random.Random(future_torch.SEED).sample(range(LEAST), 6), *range(-6, 0)]
"""Of one name, and of several at once, which are the last."""
SILENT = {"durations", "coalesced_messages", "boxed_groups"}
SILENT |= {"backward_function", "default_store", "steps_of_checkpoints"}
"""Parts that not every torch, backend and run asks for: nothing need be said of them."""
WITH_A_GROUP = {"loss_scaling", "operators", "reads_in_flight", "reads_of_saving"}
"""Parts that are asked for where a group is observed."""


@pytest.mark.timeout(400)
def test_a_few_mutations(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    check(tried(A_FEW, tmp_path, torch_loaded))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_mutations(batch: int, tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    results = tried(list(range(batch, MOST, BATCHES)), tmp_path, torch_loaded)
    assert LEAST <= results["total"] <= MOST
    check(results)


def tried(chosen: list[int], folder: Path, torch_loaded: TorchLoaded) -> dict[str, Any]:
    out, err = folder / "out", folder / "err"
    order = request(folder, runs.environment(), out, err, chosen=chosen)
    ((process, channel),) = torch_loaded.fork("tests.support.future_torch:drive", order)
    channel.close()
    code = process.wait(580)
    assert code == 0, err.read_text()
    return json.loads((folder / "results.json").read_text())


def check(results: dict[str, Any]) -> None:
    assert results["tried"]
    wrong = [text for one in results["tried"] for text in complaints(one)]
    assert not wrong, "\n\n".join(wrong)


def complaints(one: dict[str, Any]) -> list[str]:
    """What is wrong with what came of one mutation."""
    what = ", ".join(f"{name} {kind}" for name, kind in one["mutation"])
    if "plain" not in one:
        return [f"{what}: not tried, status {one['status']}"]
    found = []
    for rank in range(future_torch.RANKS):
        plain, observed = one["plain"][rank], one["observed"][rank]
        if plain[0] or not plain[1].endswith("done\n"):
            found.append(f"{what}: the mutated torch itself does not work\n{plain[2][-2000:]}")
        elif plain[:2] != observed[:2]:
            found.append(
                f"{what}: rank {rank} was harmed (exit code {observed[0]})\n"
                f"{observed[1]}\n{observed[2][-3000:]}"
            )
    off = {row["part"] for row in one["off"]}
    unseen = any(part == "groups" or part.startswith("recording of group") for part in off)
    silent = SILENT | WITH_A_GROUP if unseen else SILENT
    if not set(one["unlike"]) - silent <= off:
        found.append(f"{what}: the report says {sorted(off)} are off, not {one['unlike']}")
    if "recording" in off:
        found.append(f"{what}: all of the watching is off ({one['off']})")
    if one["seen"] != future_torch.RANKS:
        found.append(f"{what}: {one['seen']} ranks have a record")
    return found
