"""Ranks that left, died, raised, or are late; consequences; and the twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdebug.diagnosis.facts.evidence import standing
from distdebug.diagnosis.facts.world import World
from distdebug.diagnosis.limits import Limits
from distdebug.diagnosis.rules.late_rank import refine_cause
from distdebug.record.layout import Activity, Phase
from distdebug.record.snapshot import CallSite
from distdebug.record.wording import RankState

from ..builder import Run, all_gather, all_reduce, barrier, broadcast, recv, send

CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def waiting(size: int = 3, limits: Limits | None = None) -> Run:
    """All but the last rank wait in their second call."""
    run = Run(size, limits=limits)
    run.each(all_reduce(8))
    run[: size - 1].calls(all_reduce(8), waits=True, line=88)
    return run


class TestLeft:
    """early_exit."""

    def test_finished(self) -> None:
        run = waiting()
        run[2].exits(0)
        assert run.errors(settled=False) == []  # their backend is about to refuse the call, maybe
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("early_exit", (2,), (0, 1))
        assert found.proven
        assert found.message == (
            "rank 2 finished after 1 call in the group, but ranks 0,1 wait for it in "
            'all_reduce(sum, float32[8]) #1 of group "default_pg"'
        )

    def test_who_waited_has_caught_what_its_backend_raised(self) -> None:
        """What a program catches is its own business, however late we look."""
        run = waiting(2)
        run[1].exits(0)
        assert run.errors(settled=False) == []
        run[0].waits.clear()
        assert run.errors() == []

    @pytest.mark.parametrize("code", [0, 3])
    def test_its_end_takes_long(self, code: int) -> None:
        """Others fail as soon as it begins to leave; its process ends much later."""
        run = waiting()
        run[2].begins_to_exit()
        run[0, 1].raises(CLOSED, communication=True)
        run.passes(5)
        assert run.errors() == []
        run[2].exits(code)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died" if code else "early_exit", (2,))

    def test_it_leaves_after_an_exception(self) -> None:
        """What another rank lost earlier is no consequence of this end."""
        run = waiting()
        run[0].raises(CLOSED, communication=True)
        run.passes(5)
        run[2].begins_to_exit()
        run.passes(5)
        run[2].exits(0)
        assert run.errors()[0].kind == "rank_exception"

    def test_the_call_that_one_rank_made_too_many(self) -> None:
        """All calls are alike: only the lines tell which of them is the extra one."""
        run = Run(3)
        run.each(all_reduce(8), line=88)
        run[1].calls(all_reduce(8), line=61)
        run[0, 2].calls(all_reduce(8), line=88)
        run[1].calls(all_reduce(8), line=88, waits=True)
        for rank in (0, 2):
            run[rank].exits(0)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (0, 2))
        assert found.details[0] == (
            "the ranks' lines part at #1: rank 1 at train.py:61 in step, "
            "ranks 0,2 at train.py:88 in step"
        )
        assert found.data["parted_at"] == 1

    def test_who_waits_for_the_one_that_waits_for_the_leaver(self) -> None:
        """Rank 2 shards over the wrong axis: rank 3, which has finished, was never to meet it."""
        run = Run(4)
        for axis, rows in (("dp", ((0, 2), (1, 3))), ("tp", ((0, 1), (2, 3)))):
            for number, row in enumerate(rows):
                for rank in row:
                    run[rank].has_group(f"{axis}{number}", list(row), desc=f"mesh_{axis}")
        run[1, 3].calls(all_reduce(8), group="dp1")
        run[0].calls(all_reduce(8), group="dp0", line=88, waits=True)
        run[2].calls(all_reduce(8), group="tp1", line=88, waits=True)
        run[3].exits(0)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("early_exit", (3,), (2,))
        assert found.details[-1] == (
            'meanwhile rank 0 in all_reduce(sum, float32[8]) #0 of group "mesh_dp" at '
            "train.py:88 in step waits for rank 2"
        )

    def test_no_line_is_told_where_all_are_alike(self) -> None:
        run = Run(3)
        run.each(all_reduce(8), line=88)
        run[1].calls(all_reduce(8), line=88, waits=True)
        for rank in (0, 2):
            run[rank].exits(0)
        (found,) = run.errors()
        assert not any("lines" in detail for detail in found.details)

    def test_out_of_data(self) -> None:
        run = waiting()
        run[2].notes_down("data_exhausted", batches=6)
        run[2].exits(0)
        (found,) = run.errors()
        assert found.cause == "data_exhausted"
        assert "ran out of data after 6 batches" in found.message

    def test_destroyed_the_group(self) -> None:
        run = waiting()
        run[2].destroys()
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (2,))
        assert "destroyed the group" in found.message

    def test_a_thread_that_its_own_rank_leaves_behind_waits_for_nobody(self) -> None:
        """It listens as long as the program runs; rank 0 has left first."""
        for leaves in (False, True):
            run = Run(2)
            run.new_group("control", (0, 1))
            run[1].calls(broadcast(0), group="control", waits=True, thread=7)
            if leaves:
                run[1].waits_in(Activity.DESTROY)
            run[0].destroys()
            run[0].destroys("control")
            assert [found.kind for found in run.errors()] == ([] if leaves else ["early_exit"])

    def test_the_others_failed_because_of_it(self) -> None:
        run = waiting()
        run[2].destroys()
        run[0].raises(CLOSED, communication=True)
        run[1].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (2,))

    def test_the_one_that_failed_is_still_on_its_way_out(self) -> None:
        run = waiting(2)
        run[1].exits(0)
        run[0].waits.clear()
        run[0].calls(all_reduce(8), fails=True)
        run[0].raises(CLOSED, exits=False, communication=True)
        (found,) = run.errors(settled=False)
        assert (found.kind, found.culprits) == ("early_exit", (1,))
        assert "rank 0 needed it in all_reduce" in found.message


class TestOnAGpu:
    """Calls return there before they are over, and a lost peer is told of by an abort."""

    @pytest.mark.parametrize("backend", ["nccl", "gloo"])
    def test_the_watchdogs_of_those_that_lost_it(self, backend: str) -> None:
        """Rank 2 was through with the last call, and ended; the others were still in it."""
        run = Run(3)
        run.each(all_reduce(8))
        run[2].calls(all_reduce(8))
        run[0, 1].calls(all_reduce(8), waits=True)
        if backend == "nccl":
            run.on_nccl()
        run[2].exits(0)
        run[0, 1].exits(signal=6)
        found = run.errors()[0]
        assert (found.kind, found.culprits) == (
            ("early_exit", (2,)) if backend == "nccl" else ("rank_died", (0,))
        )

    def test_an_abort_after_the_last_call(self) -> None:
        """The twin: the others have lost nothing."""
        run = Run(3)
        run.each(all_reduce(8))
        run.on_nccl()
        run[2].exits(0)
        run[0].exits(signal=6)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (0,))

    def _ended_well(self, makes: bool) -> Run:
        """Ranks 0 and 1 end before their last call is over; rank 2 makes it, or does not."""
        run = Run(3)
        run.each(all_reduce(8))
        run[0, 1].calls(all_reduce(8), is_async=True)
        if makes:
            run[2].calls(all_reduce(8))
        for rank in (0, 1):
            run[rank].notes_down("unfinished", numbers=[1])
        for rank in range(3):
            run[rank].exits(0)
        return run

    def test_a_call_that_one_never_made(self) -> None:
        """All end with status 0, for nobody has asked what came of it."""
        (found,) = self._ended_well(makes=False).errors()
        assert (found.kind, found.culprits, found.victims) == ("early_exit", (2,), (0, 1))
        assert "ranks 0,1 needed it in all_reduce(sum, float32[8]) #1" in found.message
        stood = found.ranks[0]
        assert (stood.state, stood.location.line) == ("finished before the end of", 88)

    def test_one_that_lost_the_others_before_it_could_make_that_call(self) -> None:
        """Rank 1's process was slow: the end of the others has broken an earlier call for it."""
        run = Run(4)
        run.each(all_reduce(8))
        run[0, 1, 2].calls(all_reduce(8), is_async=True)
        run[0, 2].calls(all_reduce(8), is_async=True)
        run.on_nccl()
        run[3].calls(all_reduce(8))
        for rank in (0, 2):
            run[rank].notes_down("unfinished", numbers=[1, 2])
        for rank in (3, 0, 2):
            run[rank].exits(0)
        run[1].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (3,))

    @pytest.mark.parametrize("whole", [True, False])
    def test_the_end_of_all_groups_waits_for_it(self, whole: bool) -> None:
        """Where one group alone is destroyed, nobody knows whether it waits for this call."""
        run = Run(3)
        run.each(all_reduce(8))
        run[0, 1].calls(all_reduce(8), is_async=True)
        run.on_nccl()
        run[0, 1].waits_in(Activity.DESTROY, whole=whole)
        run[2].exits(0)
        early = [one.culprits for one in run.errors() if one.kind == "early_exit"]
        assert early == ([(2,)] if whole else [])

    def test_a_call_that_all_have_made(self) -> None:
        assert self._ended_well(makes=True).errors() == []

    def test_messages(self) -> None:
        """What was never sent is never there; what was sent may arrive."""
        for sent in (False, True):
            run = Run(2)
            if sent:
                run[0].calls(send(1, 8), is_async=True)
                run[0].notes_down("unfinished", numbers=[0])
            run[1].calls(recv(0, 8), is_async=True)
            run[1].notes_down("unfinished", numbers=[0])
            for rank in range(2):
                run[rank].exits(0)
            assert [one.kind for one in run.errors()] == ([] if sent else ["unmatched_p2p"])


class TestDeaths:
    """rank_died, rank_exception, invalid_argument."""

    def test_killed(self) -> None:
        run = waiting()
        run[2].exits(signal=9)
        (found,) = run.errors(settled=False)
        assert (found.kind, found.culprits, found.exit_code) == ("rank_died", (2,), 94)
        assert "killed by SIGKILL" in found.message

    def test_out_of_memory(self) -> None:
        run = waiting()
        run[2].exits(signal=9, oom=True)
        (found,) = run.errors()
        assert found.cause == "oom"
        assert "out of memory" in found.message

    def test_status(self) -> None:
        run = waiting()
        run[2].exits(7)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))
        assert "exited with status 7" in found.message

    def test_two_at_once_are_one_finding(self) -> None:
        run = waiting(4)
        run[1, 3].exits(signal=9)
        (found,) = run.errors()
        assert found.culprits == (1, 3)

    def test_an_exception_and_its_consequences(self) -> None:
        run = waiting()
        run[2].raises("ValueError: bad batch", line=33)
        run[0, 1].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.exit_code) == ("rank_exception", (2,), 1)
        assert found.ranks[2].location.line == 33

    def test_the_peers_notice_a_death_before_we_do(self) -> None:
        run = waiting()
        run[0].raises(CLOSED, communication=True)
        run[2].exits(signal=11)
        run[1].exits(signal=15)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))

    def test_an_abort_is_seen_before_it_is_reaped(self) -> None:
        run = waiting()
        run[0, 1].raises(CLOSED, communication=True)
        run[2].exits(signal=6)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))

    def test_a_lost_connection_waits_a_moment_for_its_cause(self) -> None:
        run = waiting()
        run[0].raises(CLOSED, communication=True)
        assert run.errors(settled=False) == []
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_exception", (0,))

    def test_the_launcher_ends_the_others(self) -> None:
        run = waiting()
        run[0].raises(CLOSED, communication=True)
        run.passes(0.4)
        run[1, 2].exits(signal=15)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_exception", (0,))

    def test_the_first_of_several_exceptions(self) -> None:
        run = Run(3)
        for rank in (1, 0, 2):
            run[rank].raises("KeyError: 'lr'", line=50 + rank)
        (found,) = run.errors()
        assert found.culprits == (1,)

    def test_a_wrong_argument(self) -> None:
        run = waiting()
        run[2].raises("ValueError: list of the wrong length", invalid_argument=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("invalid_argument", (2,))

    def test_of_different_models_the_one_that_is_alone(self) -> None:
        """DistributedDataParallel raises on every rank; the first is the wrong one by chance."""
        run = Run(3)
        run.each(all_gather(1))
        words = "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, "
        words += "while rank {} has inconsistent {} params."
        run[0].raises(words.format(0, 4, 2, 3), line=10)
        assert run.errors(settled=False) == []  # rank 1 may yet side with rank 2
        run[1].raises(words.format(1, 4, 2, 3), line=10)
        run[2].raises(words.format(2, 3, 0, 4), line=10)
        (found,) = run.errors(settled=False)
        assert (found.kind, found.culprits, found.victims) == ("rank_exception", (2,), (0, 1))
        assert found.message.startswith(
            "ranks wrap different models: rank 2 has 3 parameters, ranks 0,1 have 4 parameters: "
            "rank 0 raised RuntimeError: DDP expects same model"
        )

    def test_different_models_in_a_group_are_told_by_its_numbers(self) -> None:
        run = Run(4)
        for rank in (1, 3):
            run[rank].has_group("g", [1, 3])
            run[rank].calls(all_gather(1), group="g")
        words = "RuntimeError: Rank {} has {} params, while rank {} has inconsistent {} params."
        run[3].raises(words.format(1, 4, 0, 3))
        run[1].raises(words.format(0, 3, 1, 4))
        (found,) = run.errors()
        assert found.culprits == (1, 3)

    @pytest.mark.parametrize("alike", [(1, 0, 2), (1, 0)])
    def test_an_exception_of_all_is_no_single_ranks(self, alike: tuple[int, ...]) -> None:
        run = Run(3)
        run.each(all_gather(1))
        for rank in alike:
            assert run.errors(settled=False) == []  # the others are about to raise it
            run[rank].raises(f"RuntimeError: rank {rank} has 3 params", type="RuntimeError")
        (found,) = run.errors(settled=len(alike) < 3)
        if len(alike) == 3:
            assert (found.culprits, found.victims) == ((0, 1, 2), ())
            assert found.message.startswith("all 3 ranks raised RuntimeError")
        else:
            assert (found.culprits, found.victims) == ((1,), (0, 2))
            assert found.message.startswith("rank 1 raised RuntimeError")

    def test_who_waits_raises_nothing_of_its_own(self) -> None:
        """Then the exception is told at once."""
        run = waiting()
        run[2].raises("ValueError: no")
        (found,) = run.errors(settled=False)
        assert found.culprits == (2,)

    @pytest.mark.parametrize(("failed", "culprits"), [([1], (3,)), ([0, 1], (1, 3)), ([7], (1,))])
    def test_an_exception_that_says_who_failed(
        self, failed: list[int], culprits: tuple[int, ...]
    ) -> None:
        """In the numbers of the group; who is not in it cannot have been meant."""
        run = Run(4)
        for rank in (1, 3):
            run[rank].has_group("g", [1, 3])
            run[rank].calls(all_gather(1), group="g")
            run[rank].raises("CheckpointException, caused by OSError: disk full", failed=failed)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_exception", culprits)
        assert found.message.startswith("rank 3 failed: rank 1 raised") == (failed == [1])

    def test_a_fault_of_this_tool_is_nobody_elses(self) -> None:
        run = waiting()
        run[2].raises("AttributeError: 'NoneType' object has no attribute 'x'", own_fault=True)
        run[0].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.exit_code) == ("tool_error", (2,), 96)
        assert "distdebug itself failed in rank 2" in found.message
        assert "report it" in found.details[0]

    def test_a_rank_that_is_still_leaving_explains_a_lost_connection(self) -> None:
        run = waiting()
        run[2].phase = Phase.ENDED
        run[2].exit_code = 0
        run[0].raises(CLOSED, communication=True)
        assert run.errors() == []
        run[2].exits(0)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("early_exit", (2,))

    def test_gone_without_a_trace(self) -> None:
        run = waiting()
        run[2].exits(None)
        assert run.errors(settled=False) == []
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))


class TestFolding:
    """One cause is one finding."""

    def test_a_mismatch_and_what_the_backend_makes_of_it(self) -> None:
        run = Run(4)
        run[0, 1, 3].calls(all_reduce(8), waits=True)
        run[2].calls(all_gather(8), waits=True)
        run[0].exits(signal=6)
        run[1].raises(CLOSED, communication=True)
        run[3].exits(signal=15)
        run[2].exits(0)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("op_mismatch", (2,))

    def test_a_mismatch_that_is_held_back_hides_its_consequences(self) -> None:
        run = Run(4)
        run[0].calls(all_reduce(8), waits=True)
        run[1].calls(all_reduce(9), waits=True)
        run[0].exits(signal=6)
        assert run.errors(settled=False) == []
        run.passes(1.5)
        (found,) = run.errors()
        assert found.kind == "shape_mismatch"

    def test_ranks_that_this_tool_stopped(self) -> None:
        run = waiting()
        run[2].calls(all_gather(8), waits=True)
        for rank in range(3):
            run[rank].notes_down("finding_raised")
            run[rank].exits(1)
        assert [found.kind for found in run.errors()] == ["op_mismatch"]

    def test_what_came_before_a_death_is_a_cause_of_its_own(self) -> None:
        run = Run(4)
        run.new_group("1", [0, 1])
        run[0].calls(all_reduce(8), group="1", waits=True)
        run[1].calls(all_gather(8), group="1", waits=True)
        run[3].exits(signal=9)
        assert [found.kind for found in run.errors()] == ["op_mismatch", "rank_died"]


class TestLate:
    """missing_rank, and the notice before it."""

    def test_first_a_notice_then_a_suspicion(self) -> None:
        run = waiting()
        run.passes(13)
        result = run.diagnose()
        assert not result.findings
        (notice,) = result.notices
        assert notice.text == (
            'rank 2 is late for all_reduce(sum, float32[8]) #1 of group "default_pg" (14 s); '
            "it is at train.py:40 in step"
        )
        run.passes(46)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("missing_rank", (2,), (0, 1))
        assert (found.proven, found.cause) == (False, "user_code")
        assert found.ranks[2].location.line == 40

    def test_the_chain_is_followed_to_its_root(self) -> None:
        run = waiting(4)
        run[3].calls(recv(2), waits=True)
        run[2].goes_on()
        run.passes(61)
        (found,) = run.errors()
        assert found.culprits == (2,)

    def test_waits_for_a_gpu_that_are_guessed_raise_a_suspicion_and_prove_nothing(self) -> None:
        run = waiting(4)
        run[3].calls(recv(2), waits=True)
        run[2].goes_on()
        for rank in (0, 1, 3):
            run[rank].waits[1] = replace(run[rank].waits[1], inferred=True, guessed=True)
            run[rank].free_threads = 1
        run.passes(30)
        assert run.errors() == []
        run.passes(31)
        (found,) = run.errors()
        assert (found.kind, found.proven, found.culprits) == ("missing_rank", False, (2,))

    @pytest.mark.parametrize("guessed", [False, True])
    def test_a_cycle_of_guessed_waits_is_no_proof(self, guessed: bool) -> None:
        run = Run(2)
        for rank in (0, 1):
            run[rank].calls(recv(1 - rank), waits=True)
            if guessed:
                run[rank].waits[1] = replace(run[rank].waits[1], inferred=True, guessed=True)
                run[rank].free_threads = 1
        assert [found.kind for found in run.errors()] == ([] if guessed else ["deadlock"])

    @pytest.mark.parametrize("cause", ["stopped", "store", "gil_held", "unknown"])
    def test_causes(self, cause: str) -> None:
        run = waiting()
        if cause == "stopped":
            run[2].is_stopped()
        elif cause == "store":
            run[2].waits_in(Activity.STORE, key="ready")
        elif cause == "gil_held":
            run[2].heartbeat_ns = run.now_ns
        else:
            run[2].location = None
        run.passes(61)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.cause) == ("missing_rank", (2,), cause)

    def test_a_lock_is_seen_on_the_stack(self) -> None:
        run = waiting()
        run.passes(61)
        (found,) = run.errors()
        locked = refine_cause(found, {2: RankState.WAITS_FOR_LOCK})
        assert locked.cause == "lock"
        assert refine_cause(found, {2: RankState.RUNS}) == found

    def test_a_rank_stopped_inside_the_call(self) -> None:
        run = Run(3)
        for rank in range(3):
            run[rank].calls(all_reduce(8), waits=True)
        run[1].is_stopped()
        run.passes(61)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.cause) == ("missing_rank", (1,), "stopped")

    def test_two_absent_ranks(self) -> None:
        run = Run(4)
        run[0, 2].calls(barrier(), waits=True)
        run.passes(61)
        (found,) = run.errors()
        assert found.culprits == (1, 3)

    def test_the_programs_own_timeout(self) -> None:
        run = waiting()
        run[0].raises("RuntimeError: Timed out waiting 8000ms for recv", communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("missing_rank", (2,))

    def test_the_launcher_ended_the_late_rank_before_anybody_looked(self) -> None:
        """`raise SystemExit(main())`: what the rank swallowed counts only once its status is known,
        and by then the launcher has ended all others."""
        run = waiting()
        timed_out = "RuntimeError: Timed out waiting 8000ms for recv"
        run[0].notes_down("caught_exception", timed_out, 88, communication=True)
        run[0].exits(2)
        for rank in (1, 2):
            run[rank].exits(signal=15)
        run.finished = True
        run.passes(3.0)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("missing_rank", (2,), (0, 1))
        assert found.cause == "user_code"

    @pytest.mark.parametrize("failed", [True, False])
    def test_nobody_tells_how_any_rank_has_ended(self, failed: bool) -> None:
        """The same below mpiexec, which keeps its ranks' statuses to itself: what was swallowed
        counts only where its own is one of failure."""
        run = waiting(limits=Limits(failed=failed))
        self.gives_up_unseen(run)
        run[1, 2].exits(None)
        run.finished = True
        found = [(one.kind, one.culprits, one.victims, one.cause) for one in run.errors()]
        late = ("missing_rank", (2,), (0, 1), "user_code")
        assert (found == [late]) is failed

    def test_a_rank_that_left_while_nobody_tells_how_any_has_ended_is_not_late(self) -> None:
        run = waiting(limits=Limits(failed=True))
        run[2].begins_to_exit()
        run[2].exits(None)
        self.gives_up_unseen(run)
        run[1].exits(None)
        run.finished = True
        assert "missing_rank" not in [one.kind for one in run.errors()]

    def test_what_was_swallowed_before_other_calls_is_nothing_when_another_rank_fails(self) -> None:
        run = Run(2, limits=Limits(failed=True))
        run.each(all_reduce(8))
        run[0].notes_down("caught_exception", "RuntimeError: Timed out waiting", communication=True)
        run.each(all_reduce(8))
        run[0, 1].begins_to_exit()
        run[0, 1].exits(None)
        run.finished = True
        assert run.errors() == []

    @staticmethod
    def gives_up_unseen(run: Run) -> None:
        """Rank 0 swallows its timeout and ends with `raise SystemExit(2)`, whose status it does
        not know itself."""
        timed_out = "RuntimeError: Timed out waiting 8000ms for recv"
        run[0].notes_down("caught_exception", timed_out, 88, communication=True)
        run[0].begins_to_exit()
        run[0].exit_code = 0
        run[0].exits(None)

    def test_a_rank_that_had_ended_before_is_not_late_but_dead(self) -> None:
        run = waiting()
        run[2].exits(signal=15)
        timed_out = "RuntimeError: Timed out waiting 8000ms for recv"
        run[0].notes_down("caught_exception", timed_out, 88, communication=True)
        run[0].exits(2)
        run[1].exits(signal=15)
        run.finished = True
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))

    def test_what_was_swallowed_before_a_good_end_is_nothing(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[0].notes_down("caught_exception", "RuntimeError: Timed out waiting", communication=True)
        for rank in (0, 1):
            run[rank].exits(0)
        run.finished = True
        assert run.errors() == []

    def test_all_wait_for_store_keys(self) -> None:
        run = Run(2)
        run[0, 1].waits_in(Activity.STORE, key="ready")
        run.passes(61)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.cause) == ("missing_rank", (0, 1), "store")

    def test_ranks_on_nodes_that_we_cannot_see_are_not_suspected(self) -> None:
        run = Run(4)
        del run.ranks[3]
        run[0, 1].calls(barrier(), waits=True)
        run.size = 0
        run.passes(61)
        (found,) = run.errors()
        assert found.culprits == (2,)

    def test_a_breakpoint_stops_the_clock(self) -> None:
        run = waiting()
        run[2].waits_in(Activity.PAUSED)
        run.passes(100)
        result = run.diagnose()
        assert not result.findings
        assert not result.notices

    def test_a_rank_that_died_at_its_breakpoint_stops_no_clock(self) -> None:
        run = waiting()
        run[2].waits_in(Activity.PAUSED)
        run[2].exits(None, signal=9)
        run.passes(100)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (2,))
        assert found.ranks[0].state == "waits in"

    def test_the_others_wait_for_the_breakpoint(self) -> None:
        run = waiting()
        run[2].waits_in(Activity.PAUSED)
        world = World(run.snapshot(), None, Limits())
        assert world.at_breakpoint == (2,)
        assert standing(world, 2).state == "at a breakpoint"
        assert standing(world, 0).state == "waiting for breakpoint on rank 2"


class TestRecorded:
    """What ranks put on record themselves."""

    def test_not_in_group_is_a_warning_once_per_line(self) -> None:
        run = Run(2)
        for _ in range(3):
            run[1].notes_down("not_in_group", "all_reduce on a group this rank is not in")
        (found,) = run.diagnose().findings
        assert (found.kind, found.severity, found.culprits) == ("not_in_group", "warning", (1,))

    def test_forked(self) -> None:
        run = Run(2)
        run[0].notes_down("forked", "a forked child called all_reduce")
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.exit_code) == ("forked", (0,), 93)

    def test_text_from_a_rank_stays_on_one_line(self) -> None:
        run = Run(2)
        run[0].raises("ValueError: first\nsecond\x1b[31m")
        (found,) = run.errors()
        assert "\n" not in found.message
        assert "\x1b" not in found.message


def calling_in_vain(passed_s: float, times: int = 3) -> Run:
    """Rank 0 catches that its calls fail since the others have finished, and tries again."""
    run = Run(3)
    run.each(all_reduce(8))
    run[1, 2].exits(0)
    run.passes(passed_s)
    for _ in range(times):
        run[0].calls(all_reduce(8), fails=True)
    return run


def test_a_rank_that_tries_again_and_again() -> None:
    (found,) = calling_in_vain(61).errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (1, 2), (0,))
    assert found.message == (
        "ranks 1,2 finished after 1 call in the group, but rank 0 needed it in "
        'all_reduce(sum, float32[8]) #3 of group "default_pg"'
    )


class TestTwins:
    """Correct, but it looks like the faults above."""

    def test_a_rank_that_tries_again_for_a_while(self) -> None:
        assert not calling_in_vain(50).diagnose().findings
        run = calling_in_vain(50)
        run.passes(50)  # it has given up, and goes on alone
        assert not run.diagnose().findings

    def test_a_last_try_that_fails(self) -> None:
        assert not calling_in_vain(61, times=1).diagnose().findings

    def test_a_slow_rank_within_the_limit(self) -> None:
        run = waiting()
        run.passes(50)
        assert not run.diagnose().findings

    def test_all_finish(self) -> None:
        run = Run(3)
        run.each(all_reduce(8))
        run[0, 1, 2].exits(0)
        assert not run.diagnose().findings

    def test_a_rank_that_finishes_early_with_nothing_outstanding(self) -> None:
        run = Run(3)
        run.new_group("1", [0, 1])
        run.each(all_reduce(8))
        run[2].exits(0)
        run[0].calls(all_reduce(8), group="1", waits=True)
        assert not run.diagnose().findings

    def test_a_root_whose_broadcast_a_finished_rank_never_took(self) -> None:
        run = Run(2)
        run[1].exits(0)
        run[0].calls(broadcast(8, root=0))
        assert not run.diagnose().findings

    def test_a_rank_that_fails_after_the_others_have_finished(self) -> None:
        run = Run(3)
        run.each(all_reduce(8))
        run[0, 1].exits(0)
        run[2].raises("OSError: no space left to save the model")
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_exception", (2,))

    def test_a_communication_error_that_the_program_caught(self) -> None:
        run = Run(2)
        run[0].calls(all_reduce(8), fails=True)
        run[1].calls(all_reduce(8), fails=True)
        run.each(barrier())
        run[0, 1].exits(0)
        assert not run.diagnose().findings

    def test_ranks_of_a_destroyed_world(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[1].destroys()
        run[0].destroys()
        for rank in (0, 1):
            run[rank].has_group("0", [0, 1], incarnation=1, desc="default_pg")
        run[0].calls(barrier(), incarnation=1, waits=True)
        assert not run.diagnose().findings

    def test_a_process_that_nobody_saw_end_when_all_others_finished(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[0].exits(None)
        run[1].exits(0)
        assert not run.diagnose().findings


class TestClosedTooSoon:
    """All made the call; one was through with it and closed its connections."""

    def test_destroyed_the_group_first(self) -> None:
        run = Run(2)
        run.each(all_reduce(8))
        run[1].calls(all_reduce(8))
        run[1].destroys()
        run[0].calls(all_reduce(8), fails=True)
        run[0].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits, found.victims) == ("early_exit", (1,), (0,))
        assert "while rank 0 was still in all_reduce(sum, float32[8]) #1" in found.message

    def test_died_in_it(self) -> None:
        run = Run(2)
        run[1].calls(all_reduce(8), waits=True)
        run[1].exits(signal=9)
        run[0].calls(all_reduce(8), fails=True)
        run[0].raises(CLOSED, communication=True)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("rank_died", (1,))


class TestLine:
    """Where a rank that has ended stood last."""

    def test_the_line_of_sys_exit(self) -> None:
        run = waiting()
        run[2].notes_down("exit", "sys.exit(3)", 61)
        run[2].exits(3)
        (found,) = run.errors(settled=False)
        assert (found.kind, found.ranks[2].location.line) == ("rank_died", 61)

    def test_a_sys_exit_that_was_caught_long_ago(self) -> None:
        run = Run(3)
        run[2].notes_down("exit", "sys.exit(3)", 61)
        run.each(all_reduce(8))
        run[2].exits(3)
        (found,) = run.errors(settled=False)
        assert found.ranks[2].location.line != 61

    def test_the_last_call_where_the_heartbeat_is_older(self) -> None:
        run = waiting()
        run[2].heartbeat_ns = run.now_ns - 50_000_000
        run[2].exits(signal=9)
        (found,) = run.errors(settled=False)
        assert found.ranks[2].location.line == 88

    def test_the_last_call_where_the_heartbeat_saw_an_installed_package(self) -> None:
        """pytest, at the end of a run with a failed test."""
        run = waiting()
        file = "/venv/lib/python3.11/site-packages/_pytest/unraisableexception.py"
        run[2].location = CallSite(file, 29, "gc_collect_harder")
        run[2].exits(1)
        (found,) = run.errors(settled=False)
        assert found.kind == "rank_died"
        assert "unraisableexception" not in found.message
        assert found.ranks[2].location.line == 88

    @pytest.mark.parametrize("stopped", [False, True])
    def test_so_of_a_rank_that_lives(self, stopped: bool) -> None:
        """pytest's own `__main__` is the script, and what is left of the stack: no line of the
        user's, who has one in the record."""
        run = waiting()
        file = "/venv/lib/python3.11/site-packages/pytest/__main__.py"
        run[2].location = CallSite(file, 9, "<module>", "_pytest/unraisableexception.py:29")
        if stopped:
            run[2].process = replace(run[2].process, state="stopped")
        row = standing(World(run.snapshot(), None, Limits()), 2)
        assert (row.location, row.call) == (
            CallSite("/home/user/train.py", 88, "step"),
            "all_reduce(sum, float32[8])",
        )

    def test_an_installed_program_without_another_line(self) -> None:
        run = Run(2)
        file = "/venv/lib/python3.11/site-packages/trainer/__main__.py"
        run[0].location = site = CallSite(file, 9, "<module>", "accelerate/state.py:412")
        row = standing(World(run.snapshot(), None, Limits()), 0)
        assert (row.location, row.call) == (site, None)
