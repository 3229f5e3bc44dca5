"""What a stack says of where a rank stands: made-up stacks over real lines of source."""

from __future__ import annotations

from pathlib import Path

import pytest

from debugger.inspection.look import Sight, Thread
from debugger.inspection.stance import Doing, Stance, stance, started_as
from debugger.supervisor.stacks import Frame, ThreadStack

TORCH = "/usr/lib/python3.12/site-packages/torch"


def at(
    folder: Path,
    line: str,
    *below: tuple[str, str],
    before: str = "",
    local: tuple[tuple[str, str], ...] = (),
    values: tuple[tuple[str, str], ...] = (),
) -> Sight:
    """A process whose user's frame stands at this line; `below` are functions and files of torch
    that it has called, innermost first, the first with these `values`."""
    file = folder / "train.py"
    file.write_text(f"{before}\ndef step():\n    {line}\n")
    user = Frame("step", str(file), before.count("\n") + 3, values=local)
    frames = [
        Frame(function, f"{TORCH}/{where}", 5, values=values if number == 0 else ())
        for number, (function, where) in enumerate(below)
    ]
    stack = ThreadStack(1, 1, "MainThread", False, False, (*frames, user), "futex_do_wait")
    return Sight(1, "S", [Thread(stack, 9.0, False)])


def seen(folder: Path, line: str, *below: tuple[str, str], **more: object) -> Stance:
    return stance(at(folder, line, *below, **more))  # type: ignore[arg-type]


OPS = [("redispatch", "_ops.py"), ("forward", "_library/autograd.py"), ("__call__", "_ops.py")]


@pytest.mark.parametrize(
    ("line", "below", "op"),
    [
        ("found = ops.all_gather_into_tensor_out(x, 2, g, out=y)", OPS, "all_gather_into_tensor"),
        ("torch.ops._c10d_functional.all_reduce_.default(x, 'sum', '0')", [], "all_reduce"),
        ("dist.all_reduce(x)", [("all_reduce", "distributed/distributed_c10d.py")], "all_reduce"),
    ],
)
def test_collectives(tmp_path: Path, line: str, below: list[tuple[str, str]], op: str) -> None:
    found = seen(tmp_path, line, *below)
    assert (found.doing, found.op, found.waits) == (Doing.COLLECTIVE, op, True)


@pytest.mark.parametrize(
    "line",
    [
        "handle.wait()",
        "ops.wait_tensor(found)",
        "torch.ops._c10d_functional.wait_tensor.default(b)",
    ],
)
def test_handles(tmp_path: Path, line: str) -> None:
    assert seen(tmp_path, line).doing is Doing.HANDLE


@pytest.mark.parametrize(
    ("line", "local", "keys"),
    [
        ('store.get("ckpt/last")', (), ("ckpt/last",)),
        ('store.wait(["a", name])', (("name", '"b"'),), ("a", "b")),
        ('self.store.wait([f"part{i}/{name}"])', (("i", "3"), ("name", '"x"')), ("part3/x",)),
        ("store.get(key(3))", (), ()),
        ('store.get(f"{unknown}")', (), ()),
    ],
)
def test_keys_of_the_store(
    tmp_path: Path, line: str, local: tuple[tuple[str, str], ...], keys: tuple[str, ...]
) -> None:
    found = seen(tmp_path, line, local=local)
    assert (found.doing, found.cause, found.keys) == (Doing.STORE, "store", keys)


@pytest.mark.parametrize(
    ("before", "group", "members"),
    [
        ("pair = dist.new_group([2, 0])\n", "pair", (0, 2)),
        ("pair = dist.new_group(ranks=(1, 3))\n", "pair", (1, 3)),
        ("pair = dist.new_group(made)\n", "pair", None),
        ("pair = dist.new_group([0, 1])\npair = dist.new_group([2, 3])\n", "pair", None),
        ("", "pair", None),
    ],
)
def test_members_of_groups(
    tmp_path: Path, before: str, group: str, members: tuple[int, ...] | None
) -> None:
    inside = ("all_reduce", "distributed/distributed_c10d.py")
    found = seen(tmp_path, "dist.all_reduce(x, group=pair)", inside, before=before)
    assert (found.group, found.members) == (group, members)


def test_which_of_several_groups(tmp_path: Path) -> None:
    inside = ("all_reduce", "distributed/distributed_c10d.py")
    line = "dist.all_reduce(x, group=groups[axis])"
    found = seen(tmp_path, line, inside, local=(("axis", '"tp"'), ("groups", "{...}")))
    assert found.group == 'groups[axis] (axis="tp")'


def test_the_default_group(tmp_path: Path) -> None:
    inside = ("all_reduce", "distributed/distributed_c10d.py")
    for number, given in enumerate(("", ", group=dist.group.WORLD", ", group=None")):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert seen(folder, f"dist.all_reduce(x{given})", inside).group == ""


def test_what_a_rank_that_joins_tells(tmp_path: Path) -> None:
    below = [
        ("_create_c10d_store", "distributed/rendezvous.py"),
        ("init_process_group", "distributed/distributed_c10d.py"),
    ]
    values = (("hostname", '"head"'), ("port", "29500"), ("rank", "3"), ("world_size", "8"))
    sight = at(tmp_path, 'dist.init_process_group("gloo")', *below, values=values)
    found = stance(sight)
    assert (found.doing, found.arguments["port"]) == (Doing.JOIN, "29500")
    assert (found.number("world_size"), started_as(sight)) == (8, 3)


def test_own_code_is_no_wait(tmp_path: Path) -> None:
    for number, line in enumerate(("time.sleep(60)", "all_reduce(x)", "self.load()")):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = seen(folder, line)
        assert (found.doing, found.waits) == (Doing.CODE, False), line
