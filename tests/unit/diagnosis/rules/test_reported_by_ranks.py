"""What ranks at DETAIL have found themselves is the report's finding, and told once."""

from __future__ import annotations

from dataclasses import replace

from ..builder import WORLD, Run, all_reduce, all_to_all, broadcast, send

MESSAGE = 'ranks disagree at collective #1 of group "default_pg" (3 ranks): ...'


def disputed(run: Run, *ranks: int, seq: int = 1, culprit: int = 1) -> None:
    """These ranks put the finding on record, and raise it."""
    run[ranks].notes_down(
        "finding",
        MESSAGE,
        finding="shape_mismatch",
        culprits=[culprit],
        victims=[rank for rank in range(3) if rank != culprit],
        group=[WORLD, 0],
        seq=seq,
    )
    run[ranks].notes_down("finding_raised", "shape_mismatch")


def test_a_shape_is_an_error_where_the_ranks_say_so() -> None:
    """Elsewhere it is a warning: the count is the same."""
    run = Run(3)
    run.each(all_reduce(4))
    run[0, 2].calls(all_reduce(4), waits=True)
    run[1].calls(all_reduce(2, 2), waits=True)
    (warning,) = run.diagnose().findings
    assert (warning.kind, warning.severity) == ("shape_mismatch", "warning")
    disputed(run, 0, 1, 2)
    (found,) = run.diagnose().findings
    assert (found.kind, found.severity, found.culprits) == ("shape_mismatch", "error", (1,))
    assert (found.victims, found.seq, found.message) == ((0, 2), 1, MESSAGE)
    assert found.group is not None
    assert (found.group.desc, found.group.ranks) == ("default_pg", (0, 1, 2))
    assert found.ranks[1].call == "all_reduce(sum, float32[2,2])"
    assert found.ranks[1].location is not None


def test_another_warning_stays() -> None:
    run = Run(3)
    run[0, 2].calls(all_reduce(4))
    run[1].calls(all_reduce(2, 2))
    run.each(all_reduce(4))
    disputed(run, 0, seq=7)
    assert sorted(found.severity for found in run.diagnose().findings) == ["error", "warning"]


def test_the_records_show_it_as_well() -> None:
    """One finding, not two."""
    run = Run(3)
    run.each(all_reduce(4))
    run[0, 2].calls(all_reduce(4), waits=True)
    run[1].calls(broadcast(4), waits=True)
    disputed(run, 2)
    run[2].exits(1)
    (found,) = run.errors()
    assert found.kind == "op_mismatch"


def test_ranks_of_other_hosts() -> None:
    """Their calls are not on record here."""
    run = Run(3)
    run[0].calls(all_reduce(4), waits=True)
    for rank in (1, 2):
        del run.ranks[rank]
    disputed(run, 0, seq=0)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("shape_mismatch", (1,), (0, 2))


def test_whom_a_call_waits_for_that_must_be_agreed_on() -> None:
    """The root of a broadcast waits for nobody, but for the agreement."""
    for agrees in (False, True):
        run = Run(3)
        # It may take a second until so much is sent.
        run[0, 1].calls(broadcast(25_000_000), waits=True, agrees=agrees)
        run[2].exits(0)
        assert [one.kind for one in run.errors()] == (["early_exit"] if agrees else [])


def test_the_message_that_a_finding_is_about_stands_at_its_own_line() -> None:
    """The rank has gone on since: it waits for the message elsewhere, and computes."""
    run = Run(2)
    run[0].calls(send(1, 4), is_async=True, line=50)
    run[0].calls(send(1, 8), is_async=True, line=51)
    run[0].notes_down(
        "finding",
        "rank 0: a buffer of send(dst=1, float32[4]) was written",
        line=50,
        finding="inflight_write",
        culprits=[0],
        victims=[1],
        group=[WORLD, 0],
        seq=None,
    )
    (found,) = run.diagnose().findings
    own = found.ranks[0]
    assert (own.call, own.location.line) == ("send(dst=1, float32[4])", 50)


def test_a_nan_that_came_from_another_rank() -> None:
    """Of a run that goes on: each rank tells what it gives; so does one that overflows before."""
    run = Run(3)
    for rank, kind in ((1, "overflow"), (2, "nan"), (0, "nan")):
        run.each(all_reduce(4))
        run[rank].notes_down(
            "finding",
            f"rank {rank} contributes nan",
            line=50 + rank,
            finding=kind,
            culprits=[rank],
            victims=[],
            group=[WORLD, 0],
            seq=rank,
        )
    (found,) = run.diagnose().findings
    assert (found.kind, found.culprits) == ("overflow", (1,))


def test_two_races_are_two_causes() -> None:
    run = Run(2)
    for seq, kind in enumerate(("nan", "inflight_write")):
        run.each(all_reduce(4))
        run[0].notes_down(
            "finding",
            kind,
            line=50 + seq,
            finding=kind,
            culprits=[0],
            victims=[1],
            group=[WORLD, 0],
            seq=seq,
        )
    assert [found.kind for found in run.diagnose().findings] == ["nan", "inflight_write"]


def refused(run: Run, culprit: int, seq: int) -> None:
    """All ranks come to a call that this one makes otherwise, are told so, and catch the error."""
    for rank in range(3):
        run[rank].calls(broadcast(4) if rank == culprit else all_reduce(4), agrees=True)
    disputed(run, 0, 1, 2, seq=seq, culprit=culprit)


def test_a_disagreement_after_one_that_was_caught() -> None:
    """Nothing of the first call was sent, so that those who agreed in it still do."""
    run = Run(3)
    run.each(all_reduce(4))
    refused(run, 1, seq=1)
    run.each(all_reduce(4))
    refused(run, 2, seq=3)
    assert [(one.culprits, one.seq) for one in run.errors()] == [((1,), 1), ((2,), 3)]


def test_a_disagreement_after_splits_that_did_not_add_up() -> None:
    run = Run(3)
    for rank in range(3):
        call = all_to_all([2, 2, 1 if rank == 1 else 2], [2, 2, 2])
        run[rank].calls(replace(call, tensors=(("float32", (6,)),)), agrees=True)
    told = {"culprits": [1], "victims": [0, 2], "group": [WORLD, 0], "seq": 0}
    run[0, 1, 2].notes_down("finding", MESSAGE, finding="invalid_argument", **told)
    run.each(all_reduce(4))
    refused(run, 2, seq=2)
    assert [(one.kind, one.culprits, one.seq) for one in run.errors()] == [
        ("invalid_argument", (1,), 0),
        ("op_mismatch", (2,), 2),
    ]


def test_the_same_rank_is_out_of_step_ever_after() -> None:
    run = Run(3)
    for seq in range(4):
        refused(run, 1, seq)
    assert [(one.culprits, one.seq) for one in run.errors()] == [((1,), 0)]


def test_what_was_made_explains_the_disagreements_after_it() -> None:
    """Below DETAIL calls meet whatever comes: who differs later may have got what was not his."""
    run = Run(3)
    run[0, 2].calls(all_reduce(4))
    run[1].calls(broadcast(4))
    disputed(run, 0, 1, 2, seq=3, culprit=2)
    assert [(one.culprits, one.seq) for one in run.errors()] == [((1,), 0)]
