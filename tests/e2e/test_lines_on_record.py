"""The lines of real ranks' calls, from the first one on, long after the ring has lost it."""

from __future__ import annotations

import os
from pathlib import Path

from distdebug.record.reading.reader import FlightReader
from distdebug.record.snapshot import Group, Place, Process
from tests.support.lines_of_calls import places
from tests.support.zygote import Zygote

# Through a layer of the program's own. Rank 1 leaves out #6, the sum of `loss`.
PROGRAM = """
import torch, torch.distributed as dist

def reduce(tensor):
    dist.all_reduce(tensor)

def step(number):
    if not (dist.get_rank() == 1 and number == 3):
        reduce(loss)
    reduce(count)

dist.init_process_group("gloo")
loss, count = torch.ones(1), torch.ones(1)
for number in range(2500):
    step(number)
if dist.get_rank() == 1:
    dist.all_reduce(loss)
dist.barrier()
"""
REDUCE, LOSS, COUNT = 5, 9, 10


def lines_of(group: Group) -> list[Place | None]:
    assert group.lines is not None
    assert len(group.lines.surprises) < 20
    return list(places(group.lines, group.issued))


def lines(place: Place | None) -> list[int]:
    return [site.line for site in place.sites] if place is not None else []


def test_a_call_that_was_left_out_is_found_after_5_000(tmp_path: Path, zygote: Zygote) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = zygote.run(2, [str(program)], tmp_path)
    assert done.exit_code == 0, done.explain()
    groups = []
    for rank in range(2):
        path = done.directory / "ranks" / f"{rank}.flight"
        view = FlightReader(path).view(Process(alive=False))
        (group,) = view.groups.values()
        assert group.issued == 5_001
        assert view.history is not None
        assert view.history.at(group.key, 6) is None
        groups.append(lines_of(group))
    parted = next(seq for seq, (one, other) in enumerate(zip(*groups, strict=True)) if one != other)
    assert parted == 6
    usual, slipped = (group[parted] for group in groups)
    assert (lines(usual)[:2], lines(slipped)[:2]) == ([REDUCE, LOSS], [REDUCE, COUNT])
    assert groups[0][7:4999] == groups[1][6:4998]
    assert usual is not None
    assert os.path.basename(usual.sites[0].file) == "train.py"
