"""Every kind of call is on record with its signature and line, and its result is stock's own."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch.distributed as dist

from distdebug.record.layout import CallState, GroupState
from distdebug.record.signature import MASK
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPTS = Path(__file__).parents[1] / "scripts"
CALLS = SCRIPTS / "calls.py"


@pytest.fixture(scope="module", params=["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def observed(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    torch_loaded: TorchLoaded,
) -> ranks.Ranks:
    run = ranks.forked(torch_loaded, tmp_path_factory.mktemp("observed"), 2, CALLS)
    run.extra = {"DISTDEBUG_LEVEL": request.param, "DISTDEBUG_CHECK": "nan,overflow,inflight"}
    assert run.run() == 0, run.explain()
    return run


def promised(rank: int) -> dict[int, list[str]]:
    """What the script's comments say; torch 2.15 gathers objects into one tensor."""
    calls = ranks.expected(CALLS, rank)
    if "all_gather_single(" not in inspect.getsource(dist.all_gather_object):
        return calls
    of_objects = ["all_gather(int64[1])", "all_gather(uint8[24])"]
    in_one = [one.replace("all_gather", "all_gather_into_tensor") for one in of_objects]
    return {line: in_one if made == of_objects else made for line, made in calls.items()}


def test_signatures_and_lines(observed: ranks.Ranks) -> None:
    for view in observed.views():
        made: dict[int, list[str]] = {}
        for call in ranks.calls(view, CALLS):
            made.setdefault(call.site.line if call.site else 0, []).append(str(call.signature))
        assert made == promised(view.rank), observed.explain()


def test_sequence_numbers_have_no_gaps(observed: ranks.Ranks) -> None:
    for view in observed.views():
        assert view.history is not None
        for key, group in view.groups.items():
            collectives = view.history.recent(group.issued, key)
            assert [call.seq for call in collectives] == list(range(group.issued))
            assert group.state is GroupState.DESTROYED
        for channel in view.channels:
            for seq in range(channel.issued):
                message = view.history.message(channel, seq)
                assert message is not None
                assert (message.seq, message.signature.peer) == (seq, channel.peer)


def test_chains_agree_between_the_ranks(observed: ranks.Ranks) -> None:
    zero, one = observed.views()
    both = set(zero.groups) & set(one.groups)
    assert len(both) == 4  # the default group twice, and two that both ranks are in
    for key in both:
        a, b = zero.groups[key], one.groups[key]
        assert (a.issued, a.chain, a.exact) == (b.issued, b.chain, b.exact), key
        assert (a.balance + b.balance) % 2**64 == 0, key


def test_completion(observed: ranks.Ranks) -> None:
    for view in observed.views():
        for call in ranks.calls(view, CALLS):
            if call.state is not CallState.COMPLETED:  # the one whose handle was dropped
                assert call.site is not None
                assert "async_op=True)" in CALLS.read_text().splitlines()[call.site.line - 1]
                assert call.state is CallState.STARTED
                continue
            assert 0 < call.issued_ns <= call.started_ns <= call.completed_ns


def test_results_are_those_of_stock_torch(
    observed: ranks.Ranks, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    stock = ranks.forked(torch_loaded, tmp_path, 2, CALLS, observed=False)
    assert stock.run() == 0, stock.explain()
    ours = sorted((observed.log(0) + observed.log(1)).splitlines())
    assert sorted(stock.stdout.splitlines()) == ours
    assert len(ours) > 30
    assert stock.views() == []


def test_a_call_that_is_refused_at_once_counts_for_nothing(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path / "run", 2, SCRIPTS / "refused.py")
    run.extra = {"DISTDEBUG_LEVEL": "INFO"}
    assert run.run() == 0, run.explain()
    first, second = run.views()
    (group,) = first.groups.values()
    (other,) = second.groups.values()
    assert (group.issued, group.chain, group.exact) == (other.issued, other.chain, other.exact)
    assert group.issued == 7
    assert (group.balance + other.balance) & MASK == 0
    (sent,) = [channel for channel in first.channels if channel.issued]
    (received,) = [channel for channel in second.channels if channel.issued]
    assert (sent.issued, sent.chain) == (received.issued, received.chain)
    assert first.history is not None
    made = first.history.recent(100)
    assert [call.state for call in made].count(CallState.FAILED) == 5
    assert [call.seq for call in first.history.recent(8, group.key)] == list(range(7))


def test_the_hash_of_a_reduce_op_is_its_number() -> None:
    """The hot path takes the one for the other."""
    for member in dist.ReduceOp.RedOpType.__members__.values():
        if member.name != "PREMUL_SUM":  # made by a factory of its own, for NCCL only
            options = dist.AllreduceOptions()
            options.reduceOp = member
            assert hash(options.reduceOp) == int(member.value)


def test_a_blocking_message_is_waited_for_where_it_is_made(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """gloo's handles must not be waited for twice; torch's recv asks some for their source."""
    run = ranks.forked(torch_loaded, tmp_path / "run", 2, SCRIPTS / "blocking_messages.py")
    run.extra = {"DISTDEBUG_LEVEL": "INFO"}
    assert run.run() == 0, run.explain()
    for view in run.views():
        assert view.history is not None
        made = [call for call in view.history.recent(100) if call.signature.op in ("send", "recv")]
        assert len(made) == 7
        assert all(call.state is CallState.COMPLETED for call in made)
        background = [call.is_async for call in made]
        # A handle that is asked for its source goes to torch's recv as it is.
        assert background == ([False] * 6 if view.rank == 0 else [True, False] * 3) + [True]
        assert not view.waits
