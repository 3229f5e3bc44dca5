"""Every fault that a rank can do to itself is found for what it is, and blamed on that rank.

Three ranks run one training loop; the fault is rank 1's. The same loop without a plan is each
test's twin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distdebug.faults import injected
from distdebug.faults.injected import FaultWatch
from distdebug.faults.plan import Fault, Moment, Plan, When
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded
from tests.support.worlds import World, Worlds

SCRIPT = Path(__file__).parents[1] / "scripts" / "injected.py"
RANKS = 3
HANG_S = 5.0
LOADED_S = 30.0
"""As long a rank may take to start on a crowded machine, where nothing is to hang."""


@pytest.fixture
def worlds(torch_loaded: TorchLoaded) -> Worlds:
    return Worlds(torch_loaded)


@dataclass(frozen=True)
class Case:
    """A fault and what is to be found of it. `line`: the text of the line at which it happens."""

    name: str
    action: str
    moment: Moment
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str | None = None
    culprits: tuple[int, ...] = (1,)
    cause: str | None = None
    line: str = "the all_reduce"
    environment: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    times: int = 1


def nth(op: str, number: int) -> Moment:
    return Moment(When.OP, op=op, first=number, last=number)


def step(number: int) -> Moment:
    return Moment(When.STEP, first=number, last=number)


# Of each step: DDP's own all_reduce, the one in the loop, the pair's.
REDUCE, BACKWARD = nth("all_reduce", 4), nth("all_reduce", 3)
FORGIVING = {"DISTDEBUG_RAISE_OWN_FAULTS": ""}  # a disk that is full is no fault of the layer
NAN = {"DISTDEBUG_CHECK": "nan"}
REPLICAS = {"DISTDEBUG_CHECK": "replicas"}
DETAIL = {"DISTDEBUG_LEVEL": "DETAIL"}
AT_DETAIL: dict[str, Any] = {"environment": DETAIL}
FUNCTIONAL: dict[str, Any] = {
    "environment": {"FUNCTIONAL": "1"},
    "line": "the functional all_reduce",
}
ERROR = {"error": "ValueError: bad sample"}


def change(what: str, moment: Moment, kind: str, **more: Any) -> Case:
    arguments = {"what": what, "to": None}
    return Case(f"{what}_of_{moment.op}_{moment.first}", "change", moment, arguments, kind, **more)


CASES = [
    Case("kill", "kill", REDUCE, {"signal": "KILL"}, "rank_died", quick=True),
    Case("segv", "kill", REDUCE, {"signal": "SEGV"}, "rank_died"),
    Case("abort", "kill", BACKWARD, {"signal": "ABRT"}, "rank_died", line="the backward pass"),
    Case("stop", "kill", REDUCE, {"signal": "STOP"}, "missing_rank", cause="stopped"),
    Case("exit_0", "exit", REDUCE, {"code": 0}, "early_exit", quick=True),
    Case("exit_3", "exit", REDUCE, {"code": 3}, "rank_died"),
    Case("raise", "raise", REDUCE, ERROR, "rank_exception", quick=True),
    Case("raise_in_ddp", "raise", BACKWARD, ERROR, "rank_exception", line="the backward pass"),
    Case("raise_at_step", "raise", step(2), ERROR, "rank_exception", line="the step"),
    Case(
        "raise_at_named_step",
        "raise",
        step(2),
        ERROR,
        "rank_exception",
        line="a step begins",
        environment={"STEPS_ARE_NAMED": "1"},
    ),
    Case("sleep", "hang", REDUCE, {"how": "sleep"}, "missing_rank", cause="user_code"),
    Case("lock", "hang", REDUCE, {"how": "lock"}, "missing_rank", cause="lock"),
    Case("gil", "hang", REDUCE, {"how": "gil"}, "missing_rank", cause="gil_held"),
    Case("native", "hang", REDUCE, {"how": "native"}, "missing_rank", cause="user_code"),
    Case(
        "delay",
        "delay",
        Moment(When.OP, op="all_reduce", first=1, last=7, stride=3),
        {"delay_s": 0.2},
        times=3,
    ),
    Case("skip", "skip", REDUCE, {}, "op_mismatch", quick=True),
    Case("skip_in_ddp", "skip", BACKWARD, {}, "shape_mismatch", line="the backward pass"),
    Case("skip_the_last", "skip", nth("barrier", 0), {}, "early_exit", line="the barrier"),
    Case("skip_at_step", "skip", step(3), {}, "op_mismatch"),
    Case("duplicate", "duplicate", REDUCE, {}, "op_mismatch"),
    Case("reorder", "reorder", REDUCE, {}, "op_mismatch"),
    change("shape", REDUCE, "shape_mismatch"),
    change("shape", BACKWARD, "shape_mismatch", line="the backward pass", quick=True),
    change("shape", nth("all_gather", 1), "shape_mismatch", line="the all_gather"),
    change("shape", nth("gather", 1), "shape_mismatch", line="the gather"),
    change(
        "shape",
        nth("all_to_all_single", 1),
        "split_mismatch",
        culprits=(1, 2),
        line="the all_to_all",
    ),
    change("shape", nth("send", 1), "p2p_mismatch", culprits=(1, 2), line="the send"),
    change("dtype", REDUCE, "dtype_mismatch"),
    change("dtype", nth("all_gather", 1), "dtype_mismatch", line="the all_gather"),
    change("reduce_op", REDUCE, "reduce_op_mismatch"),
    change("root", nth("gather", 1), "root_mismatch", line="the gather"),
    change("root", nth("broadcast", 4), "root_mismatch", line="the backward pass"),
    change(
        "split",
        nth("all_to_all_single", 1),
        "split_mismatch",
        line="the all_to_all",  # taken from the one, given to the other: it is in both pairs
    ),
    change("tag", nth("send", 1), "p2p_mismatch", culprits=(1, 2), line="the send"),
    change("peer", nth("send", 1), "deadlock", culprits=(0, 1), line="the send"),
    change("group", REDUCE, "deadlock", culprits=(0, 1)),
    Case("skip_functional", "skip", nth("all_reduce", 7), {}, "op_mismatch", **FUNCTIONAL),
    change("dtype", nth("all_reduce", 7), "dtype_mismatch", **FUNCTIONAL),
    change(
        "shape",
        nth("all_reduce_coalesced", 1),
        "shape_mismatch",
        **{**FUNCTIONAL, "line": "the coalesced calls"},
    ),
    Case("skip_at_detail", "skip", REDUCE, {}, "op_mismatch", environment=DETAIL),
    change("reduce_op", BACKWARD, "reduce_op_mismatch", line="the backward pass", **AT_DETAIL),
    Case("nan", "nan", REDUCE, {"in": "data"}, "nan", environment=NAN, quick=True),
    Case("inf", "inf", REDUCE, {"in": "data"}, "nan", environment=NAN),
    Case("bitflip", "bitflip", REDUCE, {"in": "data", "bit": 22}),  # all get the same wrong sum
    Case(
        "bitflip_in_parameter",
        "bitflip",
        step(2),
        {"in": "parameter", "bit": 22, "name": None},
        "divergence",
        line="the step",
        environment=REPLICAS,
        quick=True,
    ),
    Case(
        "nan_in_parameter",
        "nan",
        step(2),
        {"in": "parameter", "name": "bias"},
        "nan",
        line="the step",
        environment=NAN,
    ),
    Case("out_of_memory", "oom", REDUCE, {"how": "allocation"}, "rank_exception"),
    Case("fork", "fork", REDUCE, {}, "forked"),
    Case(
        "full_disk_at_save",
        "fill-disk",
        REDUCE,
        {},
        "rank_exception",
        environment={**FORGIVING, "SAVES": "1"},
    ),
    Case("full_disk", "fill-disk", REDUCE, environment=FORGIVING),
    Case(
        "lost_store",
        "drop-store",
        REDUCE,
        {},
        "rank_exception",
        environment={"NEW_GROUPS": "1"},
    ),
    Case("lost_store_unused", "drop-store", REDUCE),
]
PLACES = {text: n for n, text in enumerate(SCRIPT.read_text().splitlines(), start=1)}


def line_of(text: str) -> int:
    (line,) = (n for whole, n in PLACES.items() if whole.endswith(f"# {text}"))
    return line


def run(
    worlds: Worlds,
    tmp_path: Path,
    backend: str,
    environment: dict[str, str],
    faults: tuple[Fault, ...] = (),
    hang_timeout_s: float = LOADED_S,
) -> World:
    given = {"BACKEND": backend, **environment}
    return worlds.run(tmp_path / "run", RANKS, SCRIPT, given, faults, hang_timeout_s)


def fault_of(case: Case) -> Fault:
    return Fault(0, f"{case.action} of a test", case.action, (1,), case.moment, case.arguments)


def params(backend: str) -> list[Any]:
    return [
        pytest.param(
            backend,
            case,
            id=f"{backend}-{case.name}",
            marks=() if case.quick and backend == "gloo" else pytest.mark.long,
        )
        for case in CASES
    ]


@pytest.mark.parametrize(("backend", "case"), [*params("gloo"), *params("tcp")])
def test_found(worlds: Worlds, backend: str, case: Case, tmp_path: Path) -> None:
    limit_s = HANG_S if case.kind == "missing_rank" else LOADED_S
    world = run(worlds, tmp_path, backend, case.environment, (fault_of(case),), limit_s)
    verdict = world.verdict
    found = (verdict.kind, verdict.culprits, verdict.cause) if verdict else None
    wanted = (case.kind, case.culprits, case.cause) if case.kind else None
    assert found == wanted, world.explain()
    entries = FaultWatch(world.directory).look()
    assert [(one.fault, one.rank, one.refused) for one in entries] == [(0, 1, "")] * case.times
    assert {Path(one.file).name for one in entries} == {SCRIPT.name}
    if case.times == 1:
        assert entries[0].line == line_of(case.line)
    if case.kind is None:
        assert set(world.codes.values()) == {0}, world.explain()


@pytest.mark.parametrize("backend", ["gloo", pytest.param("tcp", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "environment",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (NAN, REPLICAS, {"STEPS_ARE_NAMED": "1", "SAVES": "1", "NEW_GROUPS": "1"})
        ),
    ],
    ids=["plain", "nan", "replicas", "more"],
)
def test_silent_without_a_plan(
    worlds: Worlds, backend: str, environment: dict[str, str], tmp_path: Path
) -> None:
    world = run(worlds, tmp_path, backend, environment)
    assert (world.verdict, list(world.findings)) == (None, []), world.explain()
    assert set(world.codes.values()) == {0}
    assert not (world.directory / injected.FILE).exists()


@pytest.mark.parametrize("backend", ["gloo", "tcp"])
@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("skip", ""),
        ("duplicate", ""),
        ("reorder", ""),
        ("change", "shape"),
        ("change", "dtype"),
        ("change", "reduce_op"),
        ("change", "group"),
    ],
)
@pytest.mark.long
def test_what_all_ranks_do_is_no_mismatch(
    worlds: Worlds, backend: str, action: str, what: str, tmp_path: Path
) -> None:
    """And the program, DDP's C++ code included, goes on with what it gets."""
    arguments = {"what": what, "to": None} if what else {}
    moment = Moment(When.OP, op="all_reduce", first=0, last=None)
    fault = Fault(0, "", action, tuple(range(RANKS)), moment, arguments)
    world = run(worlds, tmp_path, backend, {"FUNCTIONAL": "1"}, (fault,))
    assert (world.verdict, set(world.codes.values())) == (None, {0}), world.explain()
    entries = FaultWatch(world.directory).look()
    per_rank = 12 if action == "reorder" else 24  # four in each of six steps; or every other one
    assert len(entries) >= per_rank * RANKS
    assert not any(one.refused for one in entries)


def test_faults_of_other_ranks_are_none_of_ours(worlds: Worlds, tmp_path: Path) -> None:
    fault = Fault(0, "", "kill", (7,), Moment(When.CALL, last=None), {"signal": "KILL"})
    world = run(worlds, tmp_path, "gloo", {}, (fault,))
    assert (world.verdict, set(world.codes.values())) == (None, {0}), world.explain()
    assert FaultWatch(world.directory).look() == []


def test_a_fault_that_cannot_happen_is_refused(worlds: Worlds, tmp_path: Path) -> None:
    """The call is then made as it is."""
    arguments = {"what": "root", "to": None}
    fault = Fault(3, "change(rank=1, root)", "change", (1,), REDUCE, arguments)
    world = run(worlds, tmp_path, "gloo", {}, (fault,))
    assert (world.verdict, set(world.codes.values())) == (None, {0}), world.explain()
    (entry,) = FaultWatch(world.directory).look()
    assert (entry.fault, entry.rank) == (3, 1)
    assert entry.refused == "all_reduce has no root"


@pytest.mark.long
@pytest.mark.root
def test_the_kernels_killer(worlds: Worlds, tmp_path: Path) -> None:
    fault = Fault(0, "oom", "oom", (1,), REDUCE, {"how": "killer"})
    world = run(worlds, tmp_path, "gloo", {}, (fault,))
    (entry,) = FaultWatch(world.directory).look()
    if entry.refused:
        assert "memory cgroup" in entry.refused
        pytest.skip("this machine gives root no memory cgroup")
    assert world.verdict is not None
    assert (world.verdict.kind, world.verdict.culprits) == ("rank_died", (1,)), world.explain()
    assert world.codes[1] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("action", "arguments", "kind"),
    [
        ("kill", {"signal": "KILL"}, "rank_died"),
        pytest.param("raise", ERROR, "rank_exception", marks=pytest.mark.long),
        pytest.param("skip", {}, None, marks=pytest.mark.long),
    ],
)
def test_a_time(
    worlds: Worlds, action: str, arguments: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    fault = Fault(0, "", action, (1,), Moment(When.TIME, at_s=0.5), arguments)
    world = run(worlds, tmp_path, "gloo", {"STEPS": "100000"}, (fault,))
    assert world.verdict is not None, world.explain()
    if kind is not None:
        assert (world.verdict.kind, world.verdict.culprits) == (kind, (1,)), world.explain()
    (entry,) = FaultWatch(world.directory).look()
    assert (entry.rank, entry.refused) == (1, "")


def test_on_demand(worlds: Worlds, tmp_path: Path) -> None:
    """A fault whose own moment never comes happens when it is asked for."""
    fault = Fault(5, "", "raise", (1,), Moment(When.STEP, first=10**9, last=10**9), ERROR)
    line = json.dumps({"fault": 5, "time_ns": time.time_ns()})
    given = {"STEPS": "100000", "ASKS": line}
    world = run(worlds, tmp_path, "gloo", given, (fault,))
    assert world.verdict is not None, world.explain()
    assert (world.verdict.kind, world.verdict.culprits) == ("rank_exception", (1,))
    assert [one.fault for one in FaultWatch(world.directory).look()] == [5]


def test_a_run_without_a_plan_loads_nothing_of_it(tmp_path: Path) -> None:
    """In an interpreter of its own, since what it has loaded is the question."""
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch.distributed\n"
        "rooms = ('.rank.install', '.rank.inject', '.faults')\n"
        "print([name for name in sys.modules if any(room in name for room in rooms)])\n"
    )
    alone = ranks.Ranks(tmp_path / "run", [sys.executable, str(script)], extra={"RANK": "0"})
    assert alone.run() == 0, alone.explain()
    assert alone.log(0) == "['_distdebug.rank.install']\n"


FORKING = """
import os, sys, torch, torch.distributed as dist
children = []
for rank in (0, 1):
    if not (child := os.fork()):
        store = dist.FileStore(sys.argv[1], 2)
        dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] >> 8 for child in children))
"""


def test_ranks_that_are_forked_children(tmp_path: Path) -> None:
    """The layer, and its plan, have come with the parent's import of torch: it has to import it."""
    script, directory = tmp_path / "program.py", tmp_path / "run"
    script.write_text(FORKING)
    directory.mkdir()
    fault = Fault(0, "", "exit", (1,), Moment(When.CALL, first=2, last=2), {"code": 7})
    late = Fault(1, "", "delay", (1,), nth("all_reduce", 1), {"delay_s": 0.01})
    (directory / "faults.json").write_text(json.dumps(Plan((late, fault)).to_json()))
    command = [sys.executable, str(script), str(tmp_path / "store")]
    world = ranks.Ranks(directory, command, extra={"DISTDEBUG_FAULTS": "1"})
    assert world.run() == 0, world.explain()  # there is no third call
    (entry,) = FaultWatch(directory).look()
    assert (entry.fault, entry.rank, entry.seq) == (1, 1, 1)
    assert (Path(entry.file).name, entry.line) == (script.name, 9)


def test_what_happens_once_does_not_happen_again_after_a_restart(
    worlds: Worlds, tmp_path: Path
) -> None:
    """The launcher starts the rank anew, and its calls count from 0."""
    fault = Fault(0, "", "kill", (1,), REDUCE, {"signal": "KILL"})
    entry = {"fault": 0, "rank": 1, "pid": os.getpid(), "time_ns": 1, "where": "before"}
    given = {"BACKEND": "gloo"}
    world = worlds.run(tmp_path / "run", RANKS, SCRIPT, given, (fault,), LOADED_S, [entry])
    assert (world.verdict, set(world.codes.values())) == (None, {0}), world.explain()
