"""What a stack says of where a rank stands: made-up stacks over real lines of source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.inspection.look import Stance
from distdebug.inspection.stance import (
    calls_itself,
    is_helper,
    stance,
    started_as,
    waits_for_children,
)
from distdebug.record.wording import RankState
from distdebug.supervisor.stacks.sights import Sight, Thread
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack

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
    assert (found.doing, found.op, found.waits) == (RankState.COLLECTIVE, op, True)


@pytest.mark.parametrize(
    "line",
    [
        "handle.wait()",
        "ops.wait_tensor(found)",
        "torch.ops._c10d_functional.wait_tensor.default(b)",
    ],
)
def test_handles(tmp_path: Path, line: str) -> None:
    assert seen(tmp_path, line).doing is RankState.HANDLE


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
    assert (found.doing, found.cause, found.keys) == (RankState.STORE, "store", keys)


def test_what_the_variable_of_a_group_has_where_the_rank_is_no_member(tmp_path: Path) -> None:
    inside = ("all_reduce", "distributed/distributed_c10d.py")
    local = (("pair", "-100"), ("row", "<ProcessGroup at 0x7f1c>"))
    found = seen(tmp_path, "dist.all_reduce(x, group=row)", inside, local=local)
    assert (found.group, found.not_in) == ("row", ("pair",))


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
    assert (found.doing, found.arguments["port"]) == (RankState.JOIN, "29500")
    assert (found.number("world_size"), started_as(sight)) == (8, 3)


def test_own_code_is_no_wait(tmp_path: Path) -> None:
    for number, line in enumerate(("time.sleep(60)", "all_reduce(x)", "self.load()")):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = seen(folder, line)
        assert (found.doing, found.waits) == (RankState.CODE, False), line


def thread(name: str, number: int, *frames: Frame, still_s: float = 9.0) -> Thread:
    stack = ThreadStack(number, number, name, False, False, frames, "futex_do_wait")
    return Thread(stack, still_s, False)


def test_who_saves_a_checkpoint_waits_for_nobody(tmp_path: Path) -> None:
    """But for the others, where it comes to a call."""
    saves = [
        ("write_data", "distributed/checkpoint/filesystem.py"),
        ("save", "distributed/checkpoint/state_dict_saver.py"),
    ]
    line = "dcp.save(state, checkpoint_id=path)"
    assert seen(tmp_path, line, *saves).doing is RankState.CODE
    gathers = ("gather_object", "distributed/distributed_c10d.py")
    assert seen(tmp_path, line, gathers, *saves[1:]).doing is RankState.COLLECTIVE


def test_a_group_may_have_no_name(tmp_path: Path) -> None:
    """The third argument of most calls; of what a star stands for nothing is known."""
    calls = {
        "dist.all_reduce(x, dist.ReduceOp.SUM, pair)": ("all_reduce", "pair"),
        "dist.all_reduce(x, dist.ReduceOp.SUM)": ("all_reduce", ""),
        "dist.reduce(x, 0, dist.ReduceOp.SUM, pair)": ("reduce", "pair"),
        "dist.broadcast(x, 0, pair)": ("broadcast", "pair"),
        "dist.barrier(pair)": ("barrier", "pair"),
        "dist.all_to_all_single(x, y, None, None, pair)": ("all_to_all_single", "pair"),
        "dist.all_reduce(*given)": ("all_reduce", None),
        "dist.all_reduce(x, **given)": ("all_reduce", None),
    }
    for number, (line, (op, group)) in enumerate(calls.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = seen(folder, line, (op, "distributed/distributed_c10d.py"))
        assert found.group == group, line


@pytest.mark.parametrize(
    ("made", "doing"),
    [
        ("reqs = [dist.isend(x, peer), dist.irecv(y, 0)]", RankState.MESSAGE),
        ("reqs = dist.batch_isend_irecv(ops)", RankState.MESSAGE),
        ("reqs = [dist.isend(x, peer), dist.all_reduce(x, async_op=True)]", RankState.HANDLE),
        ("reqs = started()", RankState.HANDLE),
    ],
)
def test_what_the_handles_of_a_function_are_of(tmp_path: Path, made: str, doing: RankState) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"def step(peer):\n    {made}\n    for req in reqs:\n        req.wait()\n")
    user = Frame("step", str(file), 4, values=(("peer", "1"),))
    found = stance(Sight(1, "S", [thread("MainThread", 1, user)]))
    assert (found.doing, found.op, found.peer) == (doing, "wait", None)
    assert found.of_unknown({}) is (doing is RankState.MESSAGE)


SENDS, RECEIVES = "dist.P2POp(dist.isend, x, peer)", "dist.P2POp(dist.irecv, y, 0)"


@pytest.mark.parametrize(
    ("before", "local", "peers"),
    [
        (f"    reqs = dist.batch_isend_irecv([{SENDS}, {RECEIVES}])", "1", (0, 1)),
        ("    reqs = [dist.isend(x, dst=peer), dist.irecv(y, (peer + 3) % 4)]", "2", (1, 2)),
        ("    reqs = [dist.isend(x, 1 - peer)]", "0", (1,)),
        ("    reqs = [dist.isend(x, peer) for peer in others]", "1", ()),
        ("    for peer in others: reqs.append(dist.isend(x, peer))", "1", ()),
        ("    reqs = [dist.isend(x, peer), dist.irecv(y, chosen())]", "1", ()),
        ("    reqs = [dist.isend(x, peer % 0)]", "1", ()),
    ],
)
def test_whose_messages_a_handle_waits_for(
    tmp_path: Path, before: str, local: str, peers: tuple[int, ...]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"def step(peer):\n{before}\n    for req in reqs:\n        req.wait()\n")
    user = Frame("step", str(file), 4, values=(("peer", local),))
    found = stance(Sight(1, "S", [thread("MainThread", 1, user)]))
    assert (found.doing, found.op, found.peers) == (RankState.MESSAGE, "wait", peers)


def test_the_message_at_the_line_itself_counts(tmp_path: Path) -> None:
    """And not those of the branches that others take."""
    text = "    if rank:\n        dist.irecv(x, src=rank - 1).wait()\n"
    file = tmp_path / "train.py"
    file.write_text(f"def step(rank):\n    dist.isend(x, 3)\n{text}")
    user = Frame("step", str(file), 4, values=(("rank", "1"),))
    found = stance(Sight(1, "S", [thread("MainThread", 1, user)]))
    assert (found.doing, found.op, found.call) == (RankState.MESSAGE, "irecv", "irecv(src=0)")
    assert (found.peer, found.of_unknown({0: found})) == (0, False)
    file.write_text(f"def step(rank):\n    dist.isend(x, 3)\n{text}".replace("1)", "1, tag=2)"))
    user = Frame("step", str(tmp_path / "other.py"), 4, values=(("rank", "1"),))
    (tmp_path / "other.py").write_text(file.read_text())
    found = stance(Sight(1, "S", [thread("MainThread", 1, user)]))
    assert (found.op, found.peers) == ("wait", (0, 3))


FSDP = [
    ("_exception_logger.<locals>.wrapper", "distributed/c10d_logger.py"),
    ("foreach_all_gather", "distributed/fsdp/_fully_shard/_fsdp_collectives.py"),
    ("_dynamo_disable.<locals>.wrapper", "distributed/fsdp/_fully_shard/_fsdp_common.py"),
]


def test_newer_names_are_the_same_calls(tmp_path: Path) -> None:
    """Rather than the wrapper that is outermost."""
    single = ("all_gather_single", "distributed/distributed_c10d.py")
    found = seen(tmp_path, "model(x)", single, *FSDP)
    assert (found.op, found.call) == ("all_gather_into_tensor", "all_gather_single()")
    older = ("all_gather_into_tensor", "distributed/distributed_c10d.py")
    found = seen(tmp_path, "dist.all_gather_into_tensor(y, x)", single, older)
    assert (found.op, found.call) == ("all_gather_into_tensor", "all_gather_into_tensor()")


def test_a_call_has_no_wrappers_name(tmp_path: Path) -> None:
    found = seen(tmp_path, "model(x)", ("wait_for_unshard", "distributed/fsdp/x.py"), *FSDP)
    assert found.call == "foreach_all_gather()"
    functional = "distributed/_functional_collectives.py"
    dispatch = ("AsyncCollectiveTensor.__torch_dispatch__", functional)
    found = seen(tmp_path, "y.sum()", ("wait_tensor", functional), dispatch)
    assert (found.doing, found.call) == (RankState.COLLECTIVE, "wait_tensor()")
    # A constructor with a closure has `self` in a cell.
    made = ("DistributedDataParallel.__init__", "nn/parallel/distributed.py")
    closure = (("self", "<cell at 0x7f1c: DistributedDataParallel object at 0x7f1d>"),)
    for values in (closure, ()):
        found = seen(tmp_path, "model = DDP(net)", made, values=values)
        assert (found.doing, found.waits) == (RankState.COLLECTIVE, True)
        assert "cell" not in (found.call or "")
    found = seen(tmp_path, "model = DDP(net)", made, values=closure)
    assert found.call == "DistributedDataParallel()"


def test_an_event_loop_hands_a_call_to_a_thread(tmp_path: Path) -> None:
    """`asyncio.to_thread(dist.all_reduce, x)`: no line of the user's is in that thread."""
    (tmp_path / "train.py").write_text("asyncio.run(main())\n")
    loop = Frame("select", "/usr/lib/python3.12/selectors.py", 5)
    main = thread("MainThread", 1, loop, Frame("main", str(tmp_path / "train.py"), 1))
    call = Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 5)
    pool = Frame("_worker", "/usr/lib/python3.12/concurrent/futures/thread.py", 5)
    found = stance(Sight(1, "S", [main, thread("asyncio_0", 2, call, pool)]))
    assert (found.doing, found.call) == (RankState.COLLECTIVE, "all_reduce()")
    assert found.site is not None
    assert found.site.line == 1
    idle = stance(Sight(1, "S", [main, thread("asyncio_0", 2, pool)]))
    assert idle.doing is RankState.CODE


def test_whom_another_rank_waits_for_by_rpc(tmp_path: Path) -> None:
    """Its main thread waits for the end of all: what holds it up is the function that it runs."""
    (tmp_path / "train.py").write_text("rpc.shutdown()\ntime.sleep(60)\n")
    shutdown = Frame("shutdown", f"{TORCH}/distributed/rpc/api.py", 5)
    main = thread("MainThread", 1, shutdown, Frame("main", str(tmp_path / "train.py"), 1))
    asked = Frame("_run_function", f"{TORCH}/distributed/rpc/internal.py", 5)
    served = thread("Dummy-1", 2, Frame("work", str(tmp_path / "train.py"), 2), asked)
    found = stance(Sight(1, "S", [main, served]))
    assert found.doing is RankState.CODE
    assert found.site is not None
    assert found.site.line == 2
    found = stance(Sight(1, "S", [main, thread("Dummy-1", 2, asked)]))
    assert (found.doing, found.call) == (RankState.COLLECTIVE, "shutdown()")


def test_a_wait_for_a_child_is_no_handle(tmp_path: Path) -> None:
    assert seen(tmp_path, "os.wait()").doing is RankState.CODE


def test_the_thread_that_a_process_began_with_may_have_another_name(tmp_path: Path) -> None:
    """A child that a thread has forked keeps that thread's name."""
    (main,) = at(tmp_path, "dist.all_reduce(x)", ("all_reduce", "distributed/x.py")).threads
    renamed = Thread(replace(main.stack, name="Thread-3 (start)"), 9.0, False)
    assert stance(Sight(1, "S", [renamed])).doing is RankState.COLLECTIVE


def test_of_several_threads_that_communicate_one_counts(tmp_path: Path) -> None:
    joins = Frame("join", "/usr/lib/python3.12/threading.py", 5)
    line = "worker.join()"
    (call,) = at(tmp_path, "dist.all_reduce(x)", ("all_reduce", "distributed/x.py")).threads
    (tmp_path / "main.py").write_text(f"{line}\n")
    main = thread("MainThread", 1, joins, Frame("main", str(tmp_path / "main.py"), 1))
    others = [
        Thread(replace(call.stack, native_id=number, name="w"), still_s, False)
        for number, still_s in ((2, 3.0), (3, 8.0))
    ]
    found = stance(Sight(1, "S", [main, *others]))
    assert (found.doing, found.still_s) == (RankState.COLLECTIVE, 8.0)


def test_who_has_a_pool_is_no_worker_of_one() -> None:
    pool = "/usr/lib/python3.12/multiprocessing/pool.py"
    trains = thread("MainThread", 1, Frame("step", "/u/train.py", 9))
    rank = Sight(1, "S", [trains, thread("Thread-1", 2, Frame("_handle_workers", pool, 500))])
    worker = Sight(2, "S", [thread("MainThread", 2, Frame("worker", pool, 100))])
    assert (is_helper(rank), is_helper(worker)) == (False, True)


def test_who_waits_on_a_core_waits(tmp_path: Path) -> None:
    """As MPI does. Who runs elsewhere at each look is at work."""
    (call,) = at(tmp_path, "dist.barrier()", ("barrier", "distributed/x.py")).threads
    for still_s, waits in ((1.2, True), (0.0, False)):
        found = stance(Sight(1, "R", [Thread(call.stack, still_s, True)]))
        assert (found.doing, found.waits) == (RankState.COLLECTIVE, waits)


def test_what_a_program_calls_rank_may_be_another_number() -> None:
    def local(**values: str) -> Sight:
        frame = Frame("train", "/u/train.py", 9, values=tuple(values.items()))
        return Sight(1, "S", [thread("MainThread", 1, frame)])

    assert calls_itself(local(rank="2", world_size="4")) == (2, True)
    assert calls_itself(local(rank="16")) == (16, False)
    assert calls_itself(local(rank="[0]")) is None
    assert calls_itself(local(rank="²", world_size="4")) is None
    assert calls_itself(local(rank="2", world_size="²")) == (2, False)


def test_who_only_waits_for_the_ranks_that_it_has_started() -> None:
    spawn = f"{TORCH}/multiprocessing/spawn.py"
    user = Frame("main", "/u/train.py", 9)
    for frames, launches in (
        ((Frame("join", spawn, 150), Frame("spawn", spawn, 300), user), True),
        ((Frame("BaseProcess.join", "/usr/lib/python3.12/multiprocessing/process.py", 1), user), 1),
        ((user,), False),
        ((user, Frame("_wrap", spawn, 90)), False),
    ):
        assert waits_for_children(Sight(1, "S", [thread("MainThread", 1, *frames)])) == launches
