"""Programs of ranks are made smaller as long as they fail alike, and written as plain torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.benchmarks.shrink import recorded
from distdebug.benchmarks.shrink.confirming import confirmed
from distdebug.benchmarks.shrink.recorded import Aim
from distdebug.benchmarks.shrink.reducing import Reduced, Reducer, ddmin
from distdebug.benchmarks.shrink.smaller import of_ranks
from distdebug.benchmarks.shrink.writing import NotWritten, written
from distdebug.diagnosis.facts.blocking import Model
from distdebug.errors import UsageError
from distdebug.plan.judgement import judge_programs
from distdebug.plan.program import Ended
from distdebug.record.kinds import KINDS, kind_of
from distdebug.record.signature import Signature
from fixtures.recorded import unpack
from tests.support.programs import Programs
from tests.support.replays import ranks_of
from tests.unit.diagnosis.builder import all_reduce, all_to_all, barrier, broadcast, recv, send

LIMIT_S = 60.0
FLOAT = ("float32", (8,))


def aim_at(kind: str, *, parted: bool = False) -> Aim:
    return Aim(kind_of(kind), frozenset(), parted=parted)


def reduced(made: Programs, kind: str, culprits: Sequence[int], *, parted: bool = False) -> Reduced:
    aim = aim_at(kind, parted=parted)
    reducer = Reducer(aim, Model(), LIMIT_S)
    first = Reduced(made.programs(), frozenset(culprits))
    assert reducer.begins_with(first), judge_programs(first.programs).findings
    return [first, *reducer.steps(first)][-1]


def source_of(one: Reduced, *, in_one_loop: bool = False) -> list[str]:
    text = written(one.programs, "", "About.\n", in_one_loop=in_one_loop)
    compile(text, "small.py", "exec")
    lines = text.splitlines()
    return lines[lines.index("rank = dist.get_rank()") + 1 :]


# -- delta debugging -------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [set(), {7}, {0, 99}, {3, 4, 50, 98}, set(range(100))])
def test_ddmin_leaves_what_is_needed(wanted: set[int]) -> None:
    asked = []

    def fails(items: Sequence[int]) -> bool:
        asked.append(items)
        return wanted <= set(items)

    assert set(ddmin(range(100), fails)) == wanted
    assert len(asked) <= 100 * 100 + 300
    if len(wanted) == 1:
        assert len(asked) <= 20


def test_ddmin_keeps_the_order_where_several_answers_are_right() -> None:
    left = ddmin(range(32), lambda items: len(items) >= 3)
    assert len(left) == 3
    assert list(left) == sorted(left)


# -- programs of each kind -------------------------------------------------------------------------


def with_noise(size: int = 8) -> Programs:
    """Ranks that train for a while, in the world and in two halves of it."""
    made = Programs(size)
    half = size // 2
    made.new_group("1", range(half))
    made.new_group("2", range(half, size))
    for _ in range(5):
        made.each(all_reduce(64))
        made.each(broadcast(8))
        for rank in range(size):
            made[rank].makes(all_reduce(16), "1" if rank < half else "2")
    return made


def in_world(odd: Signature, usual: Signature) -> Callable[[Programs], None]:
    def finish(made: Programs) -> None:
        for rank in range(made.size):
            made[rank].makes(odd if rank == 5 else usual)
        made.end()

    return finish


def late(made: Programs) -> None:
    for rank in range(made.size):
        if rank != 5:
            made[rank].makes(barrier())
            made[rank].ends()


def left_early(made: Programs) -> None:
    late(made)
    made[5].ends()


def died(made: Programs) -> None:
    late(made)
    made[5].ends(None, 9)


def raised(made: Programs) -> None:
    late(made)
    made[5].raises("ValueError: no more data")


def in_cycle(made: Programs) -> None:
    made[5].makes(recv(6))
    made[5].makes(send(6))
    made[6].makes(recv(5))
    made[6].makes(send(5))
    made.end()


def messages(*mine: Signature, theirs: Sequence[Signature]) -> Callable[[Programs], None]:
    def finish(made: Programs) -> None:
        for one in mine:
            made[5].makes(one)
        for one in theirs:
            made[6].makes(one)
        made.end()

    return finish


def other_groups(made: Programs) -> None:
    for rank in range(made.size):
        made[rank].creates("3", (0, 1) if rank == 5 else (0, 5))
    made.end()


def splits(made: Programs) -> None:
    for rank in range(made.size):
        row = [2] * made.size
        made[rank].makes(all_to_all([3, *row[1:]] if rank == 5 else row, row))
    made.end()


CASES: dict[str, tuple[str, Sequence[int], Callable[[Programs], None], int, int]] = {
    "op": ("op_mismatch", [5], in_world(broadcast(8), all_reduce(8)), 3, 3),
    "shape": ("shape_mismatch", [5], in_world(all_reduce(9), all_reduce(8)), 3, 3),
    "dtype": (
        "dtype_mismatch",
        [5],
        in_world(all_reduce(8, dtype="float64"), all_reduce(8)),
        3,
        3,
    ),
    "reduce op": (
        "reduce_op_mismatch",
        [5],
        in_world(all_reduce(8, op="max"), all_reduce(8)),
        3,
        3,
    ),
    "root": ("root_mismatch", [5], in_world(broadcast(8, root=3), broadcast(8)), 3, 3),
    "splits": ("split_mismatch", [0, 5], splits, 2, 2),
    "groups": ("group_mismatch", [5], other_groups, 2, 0),
    "missing": ("missing_rank", [5], late, 2, 1),
    "early exit": ("early_exit", [5], left_early, 2, 1),
    "died": ("rank_died", [5], died, 2, 1),
    "exception": ("rank_exception", [5], raised, 2, 1),
    "deadlock": ("deadlock", [5, 6], in_cycle, 2, 2),
    "sizes": ("p2p_mismatch", [5, 6], messages(send(6, 4), theirs=[recv(5, 8)]), 2, 2),
    "nobody sends": ("unmatched_p2p", [6], messages(recv(6), theirs=[]), 2, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_of_each_kind_few_ranks_and_calls_are_left(name: str) -> None:
    kind, culprits, finish, ranks, calls = CASES[name]
    made = with_noise()
    finish(made)
    small = reduced(made, kind, culprits)
    assert (len(small.programs), small.calls) == (ranks, calls)
    found = judge_programs(small.programs).verdict
    assert found is not None
    assert (found.kind, frozenset(found.culprits)) == (kind, small.culprits)
    assert len(source_of(small)) < 12


def test_a_call_of_another_op_is_no_smaller_form_of_it() -> None:
    """Without the first of the two mismatches the second one is found, which is another fault."""
    made = with_noise()
    for rank in range(made.size):
        made[rank].makes(all_reduce(9) if rank == 5 else all_reduce(8))
        made[rank].makes(barrier() if rank == 5 else broadcast(8))
    made.end()
    small = reduced(made, "shape_mismatch", [5])
    assert {event.call.signature.op for event in small.programs[0].events[:1]} == {"all_reduce"}


def test_a_ring_becomes_a_smaller_ring() -> None:
    made = Programs(12)
    for rank in range(12):
        made[rank].makes(recv((rank - 1) % 12))
        made[rank].makes(send((rank + 1) % 12))
    made.end()
    small = reduced(made, "deadlock", range(12))
    assert (len(small.programs), small.calls) == (2, 2)
    assert source_of(small) == [
        "if rank == 0:",
        "    dist.recv(torch.zeros(4), src=1)  # train.py:88",
        "elif rank == 1:",
        "    dist.recv(torch.zeros(4), src=0)  # train.py:88",
    ]


def test_where_lines_parted_each_call_keeps_its_line() -> None:
    made = Programs(6)
    for step in range(40):
        for rank in range(6):
            swapped = rank == 4 and step == 20
            for line in (11, 10) if swapped else (10, 11):
                made[rank].makes(all_reduce(1), line=line)
    made.end()
    programs = made.programs()
    found = judge_programs(programs).findings
    assert [(one.kind, one.severity) for one in found] == [("misaligned", "warning")]
    small = reduced(made, "misaligned", [4], parted=True)
    assert len(small.programs) == 3
    assert small.calls < 60
    lines = source_of(small, in_one_loop=True)
    assert lines[-4:] == [
        '    if call == "a":',
        "        dist.all_reduce(torch.zeros(1))  # train.py:10",
        '    elif call == "b":',
        "        dist.all_reduce(torch.zeros(1))  # train.py:11",
    ]


# -- fewer ranks -----------------------------------------------------------------------------------


def test_calls_fit_a_smaller_group() -> None:
    eight = tuple([FLOAT] * 8)
    whole = ("float32", (64,))
    made = Programs(8)
    for signature in (
        Signature("all_gather", (FLOAT,), eight),
        Signature("reduce_scatter", eight, (FLOAT,), reduce_op="sum"),
        Signature("all_gather_into_tensor", (FLOAT,), (whole,)),
        Signature("reduce_scatter_tensor", (whole,), (FLOAT,), reduce_op="sum"),
        Signature("all_to_all_single", (whole,), (whole,), sends=(8,) * 8, receives=(1, *(9,) * 7)),
        Signature("scatter", (FLOAT,), eight, root=5),
        Signature("gather", (FLOAT,), eight, root=7),
        Signature("broadcast", (FLOAT,), root=6),
    ):
        made[5].makes(signature)
        if signature.op == "broadcast":
            made[5].makes(send(7, 8, tag=3), is_async=True)
            made[5].waits(8)
            made[5].makes(send(1, 8))
    small = of_ranks(made.programs(), [3, 5, 7])
    assert [key.ranks for key in small[1].groups.values()] == [(0, 1, 2)]
    lines = source_of(Reduced({1: small[1]}, frozenset()))
    assert [line.partition("  #")[0] for line in lines[:-1]] == [
        "dist.all_gather([torch.zeros(8) for _ in range(3)], torch.zeros(8))",
        "dist.reduce_scatter(torch.zeros(8), [torch.zeros(8) for _ in range(3)])",
        "dist.all_gather_into_tensor(torch.zeros(24), torch.zeros(8))",
        "dist.reduce_scatter_tensor(torch.zeros(8), torch.zeros(24))",
        "dist.all_to_all_single(torch.zeros(27), torch.zeros(24), [9, 9, 9], [8, 8, 8])",
        "dist.scatter(torch.zeros(8), [torch.zeros(8) for _ in range(3)], src=1)",
        "dist.gather(torch.zeros(8), dst=2)",
        "dist.broadcast(torch.zeros(8), src=0)",
        "work_1 = dist.isend(torch.zeros(8), dst=2, tag=3)",
        "work_1.wait()",
    ]


# -- writing ---------------------------------------------------------------------------------------


def test_what_all_ranks_do_stands_once_and_steps_are_loops() -> None:
    made = Programs(4)
    made.new_group("1", [0, 1])
    for _ in range(20):
        made.each(all_reduce(8))
        made.each(all_reduce(4, dtype="int8", op="max"), "1")
        made.each(barrier())
    made[3].makes(barrier())
    made.end()
    of_group = (
        "dist.all_reduce(torch.zeros(4, dtype=torch.int8), op=dist.ReduceOp.MAX, group=group_1)"
    )
    assert source_of(Reduced(made.programs(), frozenset())) == [
        "group_1 = dist.new_group([0, 1])  # train.py:12",
        "dist.all_reduce(torch.zeros(8))  # train.py:88",
        "if rank in (0, 1):",
        "    for _ in range(19):",
        f"        {of_group}",
        "        dist.barrier()  # train.py:88",
        "        dist.all_reduce(torch.zeros(8))  # train.py:88",
        f"    {of_group}",
        "elif rank == 2:",
        "    for _ in range(19):",
        "        dist.barrier()  # train.py:88",
        "        dist.all_reduce(torch.zeros(8))  # train.py:88",
        "elif rank == 3:",
        "    for _ in range(19):",
        "        dist.barrier()  # train.py:88",
        "        dist.all_reduce(torch.zeros(8))  # train.py:88",
        "    dist.barrier()  # train.py:88",
        "dist.barrier()  # train.py:88",
    ]


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("user_code", "time.sleep(3600)"),
        ("stopped", "os.kill(os.getpid(), signal.SIGSTOP)"),
        ("lock", "threading.Semaphore(0).acquire()"),
    ],
)
def test_a_rank_that_does_not_come_is_where_it_was(cause: str, line: str) -> None:
    made = Programs(2)
    made[0].makes(barrier())
    made[0].ends()
    text = written(made.programs(), cause, "About.\n", in_one_loop=False)
    assert f"elif rank == 1:\n    {line}\n" in text
    for module in re.findall(r"(\w+)\.", line):
        assert f"import {module}\n" in text


def test_what_plain_torch_does_not_make_is_said() -> None:
    made = Programs(2)
    made.each(Signature("all_gather_into_tensor_coalesced", (FLOAT,), (FLOAT,)))
    made.end()
    with pytest.raises(NotWritten, match="all_gather_into_tensor_coalesced"):
        written(made.programs(), "", "About.\n", in_one_loop=False)


def test_a_coalesced_all_reduce_is_torchs_own() -> None:
    made = Programs(2)
    made.each(Signature("all_reduce_coalesced", (FLOAT, FLOAT), reduce_op="max"))
    made.end()
    (line,) = source_of(Reduced(made.programs(), frozenset()))
    tensors = "[torch.zeros(8) for _ in range(2)]"
    assert line.startswith(f"dist.all_reduce_coalesced({tensors}, op=dist.ReduceOp.MAX)")


def test_a_program_of_many_lines_is_not_written() -> None:
    made = Programs(2)
    for length in range(70):
        made.each(all_reduce(length))
    made.end()
    with pytest.raises(NotWritten, match="more than 60"):
        confirmed(
            [Reduced(made.programs(), frozenset())], aim_at("op_mismatch"), "INFO", "small.py"
        )


# -- records ---------------------------------------------------------------------------------------


def read(directory: Path) -> tuple[Aim, Reduced]:
    report = json.loads((directory / "report.json").read_text())
    events = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    aim = Aim.of(report, [*events])
    return aim, Reduced(recorded.programs(ranks_of(directory), aim), aim.culprits)


@pytest.mark.parametrize(
    ("name", "ranks", "calls"),
    [("mismatch", 3, 3), ("deadlock", 2, 2), ("p2p", 2, 2), ("died", 2, 1), ("exception", 2, 1)],
)
def test_the_record_of_a_run_is_made_smaller(
    name: str, ranks: int, calls: int, tmp_path: Path
) -> None:
    aim, first = read(unpack(name, tmp_path).path)
    reducer = Reducer(aim, Model(), LIMIT_S)
    assert reducer.begins_with(first)
    small = [first, *reducer.steps(first)][-1]
    assert (len(small.programs), small.calls) == (ranks, calls)


def test_a_rank_that_ended_with_1_has_not_raised(tmp_path: Path) -> None:
    directory = unpack("died", tmp_path).path
    aim, _ = read(directory)
    aim = replace(aim, ends={1: Ended(1)})
    first = Reduced(recorded.programs(ranks_of(directory), aim), aim.culprits)
    assert Reducer(aim, Model(), LIMIT_S).begins_with(first)
    assert "    os._exit(1)" in source_of(first)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_is_about_calls_or_refused(kind: str) -> None:
    finding = {"kind": kind, "severity": "error", "culprits": [1], "cause": None}
    calls = KINDS[kind].by_calls and kind != "stalled"
    if calls or kind in ("rank_died", "rank_exception"):
        assert Aim.of({"findings": [finding]}, ()).kind is KINDS[kind]
    else:
        with pytest.raises(UsageError, match="whose cause is no call"):
            Aim.of({"findings": [finding]}, ())


def test_of_warnings_only_lines_that_part_can_be_shown() -> None:
    warnings = [
        {"kind": kind, "severity": "warning", "culprits": [1]}
        for kind in ("straggler", "unwaited_work")
    ]
    with pytest.raises(UsageError, match="nothing was found"):
        Aim.of({"findings": warnings}, ())
    warnings.append({"kind": "misaligned", "severity": "warning", "culprits": [2]})
    aim = Aim.of({"findings": warnings}, ())
    assert (aim.kind.name, aim.culprits, aim.parted) == ("misaligned", {2}, True)


def test_a_warning_that_lines_part_has_ended_nothing() -> None:
    event = {"finding": "misaligned", "time_ns": 7}
    found = {"kind": "misaligned", "severity": "warning", "culprits": [1], "cause": None}
    first, by_lines = recorded.aims({"findings": [found]}, [event])
    assert first.until_ns == by_lines.until_ns == 1 << 63
    assert (first.by_callers, by_lines.by_callers) == (True, False)
