"""What the stances of ranks let one suspect, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distdebug.inspection.judging import at_work, judge
from distdebug.inspection.look import Limits, Look, Stance
from distdebug.record.snapshot import CallSite
from distdebug.record.wording import RankState

LIMITS = Limits()


def waits(op: str, line: int = 10, still_s: float = 30.0, **more: Any) -> Stance:
    """A rank that has waited in a collective of the default group."""
    more = {"doing": RankState.COLLECTIVE, "group": "", "call": f"{op}()", **more}
    return Stance(op=op, site=CallSite("train.py", line, "step"), still_s=still_s, **more)


def message(op: str, peer: int, tag: int = 0) -> Stance:
    name = "dst" if op == "send" else "src"
    arguments = {name: str(peer), "tag": str(tag)}
    return waits(op, doing=RankState.MESSAGE, group=None, arguments=arguments)


def makes(call: str, ranks: str) -> Stance:
    arguments = {"ranks": ranks}
    return waits("new_group", doing=RankState.JOIN, call=f"{call}()", arguments=arguments)


def works(still_s: float, running: bool = False, cause: str = "user_code") -> Stance:
    site = CallSite("train.py", 30, "load")
    return Stance(RankState.CODE, site=site, still_s=still_s, running=running, cause=cause)


def verdict(*stances: Stance, **more: Any) -> tuple[str, list[int]] | None:
    found = judge(Look(dict(enumerate(stances)), world_size=len(stances), **more), LIMITS)
    assert all(not one.proven and "suspected: " in one.message for one in found)
    return (found[0].kind, sorted(found[0].culprits)) if found else None


@pytest.mark.parametrize(
    ("absent", "limit_s"),
    [
        (works(20.0), LIMITS.still_s),
        (works(20.0, running=True), LIMITS.busy_s),
        (replace(works(20.0, running=True), computes=True), LIMITS.moving_s),
        (works(0.0), LIMITS.busy_s),
        (works(0.0, running=True), LIMITS.moving_s),
        (works(20.0, cause="stopped"), LIMITS.waiting_s),
        (replace(works(2.0), moves_data=True), LIMITS.moving_s),  # a checkpoint is written
        (replace(works(20.0, cause="stopped"), moves_data=True), LIMITS.waiting_s),
        (replace(works(20.0), at_work=True), LIMITS.moving_s),  # its data loader's workers are
        (replace(works(20.0, cause="lock"), at_work=True), LIMITS.moving_s),
        (replace(works(0.0), at_work=True), LIMITS.moving_s),  # it computes between short waits
    ],
)
def test_who_is_absent_is_late_after_its_limit(absent: Stance, limit_s: float) -> None:
    early, late = (waits("all_reduce", still_s=limit_s + by_s) for by_s in (-0.1, 0.1))
    assert verdict(early, absent, early) is None
    assert verdict(late, absent, late) == ("missing_rank", [1])


@pytest.mark.parametrize(
    "at_work", [works(1.2, running=True), works(3.0), works(0.0), works(3.0, cause="lock")]
)
def test_where_others_have_just_come_to_wait_the_job_moves(at_work: Stance) -> None:
    """The first stage of a pipeline waits until all others have been at work."""
    first, newest = waits("recv", still_s=LIMITS.moving_s - 1), waits("recv", still_s=0.5)
    assert verdict(first, newest, at_work) is None
    assert verdict(first, first, at_work) == ("missing_rank", [2])
    longer = replace(first, still_s=LIMITS.moving_s)
    assert verdict(longer, newest, at_work) == ("missing_rank", [2])
    assert verdict(first, newest, works(LIMITS.still_s)) == ("missing_rank", [2])


def test_who_is_ready_first_ends_first() -> None:
    """The other clients of a server are at work."""
    server, client = waits("recv", still_s=5.0), works(0.0, running=True)
    assert verdict(server, client, missing=(2,)) is None
    assert verdict(server, replace(client, cause="stopped"), missing=(2,)) == ("early_exit", [2])
    assert verdict(server, server, missing=(2,)) == ("early_exit", [2])
    server = waits("recv", still_s=LIMITS.moving_s)
    assert verdict(server, client, missing=(2,)) == ("early_exit", [2])


@pytest.mark.parametrize(
    "held_up", [works(20.0, cause="lock"), works(0.0), works(20.0, cause="store"), works(20.0)]
)
def test_who_waits_for_one_that_is_at_work_is_not_late(held_up: Stance) -> None:
    """Each in its turn works under a lock; one polls for the file that another one writes."""
    early, late = (waits("barrier", still_s=LIMITS.moving_s + by_s) for by_s in (-0.1, 0.1))
    naps = replace(works(15.0), wakes_in_s=0.1)
    for comes in (works(0.0, running=True), replace(works(9.0), moves_data=True)):
        assert verdict(early, held_up, comes) is None
        assert verdict(late, held_up, comes) == ("missing_rank", [1, 2])
    assert verdict(waits("barrier", still_s=15.0), held_up, naps) is None
    stopped = works(20.0, cause="stopped")
    assert verdict(early, held_up, works(0.0, running=True), stopped) == ("missing_rank", [3])
    assert verdict(early, held_up, replace(works(9e3), serves="::")) == ("missing_rank", [1])
    assert verdict(early, held_up, Stance(RankState.UNREADABLE)) == ("missing_rank", [1])


def test_who_is_first_through_a_call_waits_in_the_next_one() -> None:
    """A broadcast of gigabytes: its root is in the barrier behind it, for seconds."""
    for still_s, found in ((2.0, None), (LIMITS.still_s, ("op_mismatch", [0]))):
        beyond = waits("barrier", still_s=still_s)
        assert verdict(beyond, *[waits("broadcast", still_s=still_s)] * 2) == found
    spins = replace(waits("broadcast", still_s=1.2), running=True)  # as MPI waits
    assert verdict(waits("barrier"), spins, spins) == ("op_mismatch", [0])


def test_who_is_not_waited_for_is_not_named() -> None:
    in_pair = waits("all_reduce", group="pair")
    outside = replace(works(9.0), not_in=("pair",))
    assert verdict(in_pair, works(9.0), outside) == ("missing_rank", [1])
    assert verdict(in_pair, in_pair, outside) is None
    assert verdict(message("recv", 1), works(9.0), works(9.0)) == ("missing_rank", [1])
    assert verdict(in_pair, in_pair, missing=(2,)) != ("early_exit", [2])
    assert verdict(in_pair, waits("barrier"), missing=(2,)) == ("early_exit", [2])
    assert verdict(in_pair, in_pair, works(9.0)) == ("missing_rank", [2])


def test_a_server_without_clients_is_not_late() -> None:
    """Those that wait for it wait for work, for hours."""
    worker, server = waits("broadcast", still_s=9e3), replace(works(9e3), serves="0.0.0.0:8000")
    assert verdict(server, worker, worker) is None
    look = Look(dict(enumerate((server, worker, worker))), world_size=3)
    assert "rank 0 waits for somebody to connect at 0.0.0.0:8000; nothing is wrong" in at_work(look)
    assert verdict(replace(server, cause="stopped"), worker, worker) == ("missing_rank", [0])
    assert verdict(server, works(9e3), worker) == ("missing_rank", [1])


def test_who_sleeps_until_a_time_comes_by_itself() -> None:
    worker, naps = waits("broadcast", still_s=15.0), replace(works(15.0), wakes_in_s=16.0)
    assert verdict(naps, worker, worker) is None
    assert verdict(replace(naps, wakes_in_s=900.0), worker) == ("missing_rank", [0])
    assert verdict(replace(naps, wakes_in_s=None), worker) == ("missing_rank", [0])
    polls = replace(works(2.0), wakes_in_s=1.0)
    assert verdict(polls, worker, worker) == ("missing_rank", [0])
    longer = waits("broadcast", still_s=LIMITS.moving_s)
    assert verdict(naps, longer, longer) == ("missing_rank", [0])


def test_who_has_gone() -> None:
    stuck = waits("barrier")
    found = judge(Look({0: stuck, 1: stuck}, missing=(2,), world_size=3), LIMITS)
    assert (found[0].kind, found[0].culprits, found[0].missing) == ("early_exit", (2,), (2,))
    joins = waits("init_process_group", doing=RankState.JOIN)
    assert verdict(joins, joins, missing=(2,)) == ("join_timeout", [2])
    assert verdict(joins, joins, twice=(1,)) == ("join_timeout", [1])


def test_nobody_is_left_to_send_to_who_waits_for_anybody() -> None:
    server = waits("recv", doing=RankState.MESSAGE, group=None)
    gone = Stance(RankState.GONE)
    assert verdict(server, missing=(1, 2)) == ("unmatched_p2p", [0])
    assert verdict(server, gone, gone) == ("unmatched_p2p", [0])
    assert verdict(server, message("recv", 2), missing=(2,)) == ("early_exit", [2])
    assert verdict(message("recv", 1), missing=(1,)) == ("early_exit", [1])
    # On other hosts there are further ranks that may send one.
    assert judge(Look({0: server}, missing=(1,), world_size=4), LIMITS) == []


def test_who_has_not_been_started_yet_is_not_gone() -> None:
    """Ranks may be started one after the other."""
    joins = waits("init_process_group", doing=RankState.JOIN, still_s=LIMITS.still_s - 0.1)
    assert verdict(joins, joins, missing=(2,)) is None
    stuck = waits("barrier", still_s=LIMITS.waiting_s + 0.1)
    assert verdict(stuck, stuck, missing=(2,)) == ("early_exit", [2])


def test_who_dials_a_store_again_and_again_has_not_waited_long() -> None:
    """Then the age of the job tells that nobody else is still to come."""
    joins = waits("init_process_group", doing=RankState.JOIN, still_s=LIMITS.waiting_s + 0.1)
    assert verdict(joins, missing=(1,), age_s=LIMITS.moving_s - 1) is None
    assert verdict(joins, missing=(1,), age_s=LIMITS.moving_s) == ("join_timeout", [1])


def test_who_does_not_come_to_the_store() -> None:
    """As elastic's barrier waits: nobody is in a call."""

    def in_store(still_s: float) -> Stance:
        site = CallSite("train.py", 20, "step")
        return Stance(RankState.STORE, "store", "barrier()", site, still_s, cause="store")

    early, late = (in_store(LIMITS.still_s + by_s) for by_s in (-0.1, 0.1))
    absent = works(20.0)
    assert verdict(early, early, absent) is None
    assert verdict(late, late, absent) == ("missing_rank", [2])
    assert verdict(late, late, works(0.0, running=True)) is None
    (found,) = judge(Look({0: late, 1: late}, missing=(2,), world_size=3), LIMITS)
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (2,), (0, 1))
    assert "ranks 0,1 wait in barrier() at train.py:20 in step" in found.message


def exchanges(*peers: int, still_s: float = 30.0) -> Stance:
    return waits("wait", doing=RankState.MESSAGE, group=None, peers=peers, still_s=still_s)


def test_handles_of_which_the_source_tells_the_peers() -> None:
    assert verdict(exchanges(1), waits("barrier"), waits("barrier")) == ("deadlock", [0, 1])
    assert verdict(exchanges(), waits("barrier"), waits("barrier")) == ("deadlock", [0, 1, 2])
    # Of two that exchange messages nobody knows which these are: at first they are under way.
    assert verdict(exchanges(1, still_s=9.0), exchanges(0, still_s=9.0)) is None
    assert verdict(exchanges(1), exchanges(0)) == ("deadlock", [0, 1])
    # Rank 1 waits for 0, which has gone on, or for 2, whose messages are not for it.
    ring = (waits("barrier"), exchanges(0, 2), exchanges(0))
    assert verdict(*ring) == ("deadlock", [0, 1, 2])


def connects(port: int, **more: Any) -> Stance:
    arguments = {"hostname": "head", "port": str(port)}
    return waits("init_process_group", doing=RankState.JOIN, arguments=arguments, **more)


def test_nobody_serves_the_store() -> None:
    client = connects(29500, still_s=2.0)
    assert verdict(client, client, unserved="head:29500") == ("stalled", [0, 1])
    assert verdict(client, client) is None  # a large job that comes together
    assert verdict(client, works(0.0, running=True), unserved="head:29500") is None
    one_of_two = Look({0: client}, world_size=2, unserved="head:29500")
    assert judge(one_of_two, LIMITS) == []


def test_who_is_at_another_store_and_who_has_never_come() -> None:
    here, there = connects(29500), connects(29501)
    assert verdict(here, there, here) == ("join_timeout", [1])
    joins = waits("init_process_group", doing=RankState.JOIN)
    look = Look({0: joins, 1: joins}, never_came=(2, 3), world_size=4)
    assert not judge(look, LIMITS)  # the other node may start later
    joins = replace(joins, still_s=LIMITS.moving_s)
    for size in (4, 6):  # ranks 4 and 5 of another node may have come
        found = judge(replace(look, ranks={0: joins, 1: joins}, world_size=size), LIMITS)
        kind, culprits, missing = found[0].kind, found[0].culprits, found[0].missing
        assert (kind, culprits, missing) == ("join_timeout", (2, 3), (2, 3))


@pytest.mark.parametrize(
    ("stances", "expected"),
    [
        ([waits("all_reduce"), waits("broadcast"), waits("all_reduce")], ("op_mismatch", [1])),
        ([waits("all_reduce"), waits("broadcast")], ("op_mismatch", [0, 1])),
        ([waits("reduce", arguments={"dst": str(r)}) for r in (0, 1, 0)], ("root_mismatch", [1])),
        ([message("recv", 1), message("recv", 2), message("recv", 0)], ("deadlock", [0, 1, 2])),
        ([message("send", 1), message("send", 0)], ("deadlock", [0, 1])),
        ([message("recv", 1), waits("barrier"), waits("barrier")], ("deadlock", [0, 1])),
        ([message("send", 1, 1), message("recv", 0, 2)], ("p2p_mismatch", [0, 1])),
        ([message("send", 1), message("send", 2), message("send", 3)], ("invalid_argument", [2])),
        ([waits("barrier"), waits("backward", doing=RankState.BACKWARD)], ("op_mismatch", [0])),
        (
            [waits("barrier")] + [waits("backward", doing=RankState.BACKWARD)] * 2,
            ("op_mismatch", [0]),
        ),
        (
            [waits("barrier")] * 2 + [waits("backward", doing=RankState.BACKWARD)],
            ("op_mismatch", [2]),
        ),
        (
            [waits("all_reduce", 20, group="a"), waits("all_reduce", 22, group="b")],
            ("deadlock", [0, 1]),
        ),
        (
            [makes("new_group", ranks) for ranks in "aab"],
            ("group_mismatch", [2]),
        ),
        (  # each makes other groups of one mesh, but for one that has made those of another
            [
                *(makes("init_device_mesh", ranks) for ranks in "abc"),
                waits("all_reduce", group="g"),
            ],
            ("group_mismatch", [3]),
        ),
        ([makes("init_device_mesh", ranks) for ranks in "aab"], ("group_mismatch", [2])),
        (  # the others have gone on without it
            [makes("new_group", "a"), *[waits("barrier", 12)] * 2],
            ("group_mismatch", [0]),
        ),
        (
            [*[waits("barrier", 12)] * 2, *[waits("all_reduce", 11, group="group")] * 2],
            ("deadlock", [2, 3]),
        ),
        ([waits("all_reduce", still_s=90.0)] * 3, ("stalled", [0, 1, 2])),
    ],
)
def test_nobody_is_absent(stances: list[Stance], expected: tuple[str, list[int]]) -> None:
    assert verdict(*stances) == expected


@pytest.mark.parametrize(
    "stances",
    [
        [waits("all_reduce", still_s=0.2)] * 3,
        [waits("all_reduce")] * 3,  # a large one under way
        [waits("all_reduce"), waits("broadcast", still_s=0.3)],  # which moves
        [works(20.0)] * 2,
        [works(0.0, running=True), waits("barrier")],
        [message("recv", 1), works(0.0, running=True)],
        [message("send", 1), message("recv", 0)],
    ],
)
def test_a_job_at_work_is_left_alone(stances: list[Stance]) -> None:
    assert verdict(*stances) is None
    assert "nothing is wrong that can be seen" in at_work(Look(dict(enumerate(stances))))


def in_store(still_s: float, **more: Any) -> Stance:
    return Stance(
        RankState.STORE, "store", "store.wait(['go'])", still_s=still_s, cause="store", **more
    )


def test_all_wait_for_a_key() -> None:
    assert verdict(in_store(30.0), in_store(12.0)) == ("missing_rank", [0, 1])


@pytest.mark.parametrize(
    "stances",
    [
        [in_store(30.0), in_store(2.0)],  # it has just come
        [in_store(30.0), works(0.0, running=True)],  # it is about to set the key
        [in_store(30.0, running=True)] * 2,
    ],
)
def test_a_key_that_may_come(stances: list[Stance]) -> None:
    assert verdict(*stances) is None


def test_a_handle_whose_peer_no_stack_shows_makes_no_pair_a_cycle() -> None:
    handles = [waits("wait", doing=RankState.MESSAGE)] * 4
    assert verdict(*handles) == ("deadlock", [0, 1, 2, 3])


def test_who_makes_the_store_is_joining() -> None:
    host = waits("TCPStore", doing=RankState.JOIN)
    joins = waits("init_process_group", doing=RankState.JOIN, arguments={"group_name": "0"})
    assert verdict(host, joins, works(20.0)) == ("join_timeout", [2])
    assert verdict(host, joins) is None


def test_one_name_may_be_one_group() -> None:
    """In ranks with two threads that have a group each, the longest waits are in either."""
    of_thread = waits("all_reduce", group="group")
    assert verdict(of_thread, of_thread) is None
    of_another = replace(of_thread, group="other")
    assert verdict(of_thread, of_another) == ("deadlock", [0, 1])
    longer = replace(of_thread, still_s=LIMITS.moving_s)
    assert verdict(longer, longer) == ("deadlock", [0, 1])
