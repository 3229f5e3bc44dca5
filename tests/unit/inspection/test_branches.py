"""The calls that a function has made on its way to where it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.inspection.source import calls_made
from distdebug.inspection.stance import COLLECTIVES
from distdebug.supervisor.stacks.stacks import Frame

LOOP = """
def step(rank):
    dist.barrier()
    for step in range(4):
        if {test}:
            handles = [dist.broadcast(x, src=0, async_op=True)]
            handles.append(dist.all_reduce(y, async_op=True))
        else:
            handles = [dist.all_reduce(y, async_op=True)]
            handles.append(dist.broadcast(x, src=0, async_op=True))
        {between}
        for handle in handles:
            handle.wait()  # here
        dist.reduce(x, 0)
"""
FIRST = ("barrier", "broadcast", "all_reduce")
SECOND = ("barrier", "all_reduce", "broadcast")


def frame_in(folder: Path, text: str, **local: str) -> Frame:
    """A frame that stands at the line of this program that is marked."""
    file = folder / f"train{len(list(folder.iterdir()))}.py"  # a source is read once
    file.write_text(text)
    line = next(at for at, row in enumerate(text.splitlines(), 1) if "# here" in row)
    return Frame("step", str(file), line, values=tuple(local.items()))


def ops(frame: Frame) -> tuple[str, ...]:
    return tuple(made.op for made in calls_made(frame, COLLECTIVES))


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("rank == 0 and step == 2", FIRST),
        ("rank == 0 and step == 1", SECOND),
        ("rank != 0 or step > 5", SECOND),
        ("not rank", FIRST),
        ("step % 2 == 0", FIRST),
        ("is_first", FIRST),
        ("rank", SECOND),
        ("rank == 1 and unknown()", SECOND),
        ("rank == 0 and unknown()", ()),
        ("loss > 0.5", ()),
    ],
)
def test_the_branch_that_was_taken(tmp_path: Path, test: str, found: tuple[str, ...]) -> None:
    text = LOOP.format(test=test, between="pass")
    frame = frame_in(tmp_path, text, rank="0", step="2", is_first="True")
    assert ops(frame) == found


def test_a_variable_that_has_changed_since_tells_nothing(tmp_path: Path) -> None:
    text = LOOP.format(test="step == 2", between="step += 1")
    assert ops(frame_in(tmp_path, text, step="2")) == ()


def test_the_branch_that_it_stands_in(tmp_path: Path) -> None:
    text = """
def step():
    if loss < 1:
        dist.all_reduce(x, async_op=True)
    else:
        work = dist.broadcast(x, 0, async_op=True)
        work.wait()  # here
"""
    (made,) = calls_made(frame_in(tmp_path, text), COLLECTIVES)
    assert (made.op, "work = " in text.splitlines()[made.line - 1]) == ("broadcast", True)
