"""The fault matrix: what is made to go wrong, and what must be said of it.

Ctrl-C, a killed launcher, a killed supervisor, and faults of the tool itself (its run directory is
gone, its disk is full) are in `tests/e2e/test_ending.py`, for they are about no rank.

Each case is run on each of its backends with 2 and with 4 ranks. What it must come to is the kind,
the cause, the culprits and the exit code; all within a bound that is generous, for machines are
busy. Its twin, the same program without the fault, must end with 0 and nothing said.
"""

from __future__ import annotations

from dataclasses import dataclass

GLOO, TCP = "gloo", "tcp"
BOTH = (GLOO, TCP)
SIZES = (2, 4)
HANGS = ("--hang-timeout", "5")
"""Longer than a rank stands still on a crowded machine."""
NAN = ("--check", "nan")
REPLICAS = ("--check", "replicas")
SLOWLY = ("--pause", "0.05", "--steps", "60")
"""Three seconds, so that after two of them all groups are made, on a crowded machine as well."""
HALVES = {2: "partition({0}|{1})", 4: "partition({0,1}|{2,3})"}

ALONE = ("alone",)
"""The faulty rank, 1, against all others: of two ranks, nobody can tell which."""
ALL = ("all",)
ACROSS = ("across",)
"""Ranks of both halves: those at the ends of the connections that the program uses when the time of
the fault has come, which is one of them or all."""


@dataclass(frozen=True)
class Case:
    """One fault: `specs` are injected, or `does` are arguments that have the program do it by
    itself. `culprits`: ranks, or ALONE, ALL or ACROSS. `cause=None`: not compared. `flags` are
    distdebug's, `arguments` the program's (`programs/<program>.py`), its twin's, too.
    `own_network`: each rank has its own, for faults of links on every backend; needs root.
    `quick`: one of its runs is in `make test`.
    """

    name: str
    specs: tuple[str, ...]
    outcome: str
    culprits: tuple[int | str, ...] = ()
    exit_code: int = 0
    cause: str | None = None
    warnings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    does: tuple[str, ...] = ()
    program: str = "loop"
    backends: tuple[str, ...] = BOTH
    sizes: tuple[int, ...] = SIZES
    own_network: bool = False
    quick: bool = True

    def who(self, size: int) -> set[int]:
        """The culprits among so many ranks."""
        match self.culprits:
            case ("all",) | ("across",):
                return set(range(size))
            case ("alone",):
                return {0, 1} if size == 2 else {1}
            case ranks:
                return {int(rank) for rank in ranks}

    def is_explained_by(self, found: set[int], size: int) -> bool:
        """Whether these are the culprits, among so many ranks."""
        wanted = self.who(size)
        if self.culprits == ACROSS:
            half = set(range(size // 2))
            return found <= wanted and bool(found & half) and bool(found - half)
        # Of faults that happen at once either may be the first; nobody else may be named.
        return found == wanted or (len(self.specs) > 1 and bool(found) and found <= wanted)


def _mismatch(name: str, spec: str, outcome: str, **more: object) -> Case:
    return Case(name, (spec,), outcome, ALONE, 91, **more)  # type: ignore[arg-type]


def _absent(name: str, spec: str, cause: str) -> Case:
    return Case(name, (spec,), "missing_rank", (1,), 93, cause, flags=HANGS)


def _link(name: str, what: str, *, hangs: bool = False) -> Case:
    kind, code = ("missing_rank", 93) if hangs else ("rank_exception", 1)
    spec = (f"link({what}) @ frame 10",)
    flags = HANGS if hangs else ()
    return Case(name, spec, kind, (0, 1), code, flags=flags, backends=(TCP,))


def _partitions(name: str, how: str, outcome: str, **more: object) -> list[Case]:
    """Half of the ranks from the other half: a case for each size."""
    given = {"arguments": SLOWLY, "backends": (TCP,)} | more
    return [
        Case(f"{name}, {size}", (f"{halves} {how}",), outcome, sizes=(size,), **given)  # type: ignore[arg-type]
        for size, halves in HALVES.items()
    ]


def _apart(name: str, spec: str, outcome: str = "ok", **more: object) -> Case:
    """In a network of the ranks' own. There a frame is a packet, and what TCP repairs is silent."""
    code = {"ok": 0, "rank_exception": 1, "missing_rank": 93, "divergence": 95}[outcome]
    given = {"flags": HANGS if outcome == "missing_rank" else (), "backends": (GLOO,)}
    given |= {"quick": False, "own_network": True} | more
    return Case(f"apart: {name}", (spec,), outcome, exit_code=code, **given)  # type: ignore[arg-type]


CASES = (
    # The process.
    Case("killed", ("kill(rank=1) @ all_reduce#5",), "rank_died", (1,), 94),
    Case("segfault", ("kill(rank=1, signal=SEGV) @ broadcast#5",), "rank_died", (1,), 94),
    Case("aborted", ("kill(rank=1, signal=ABRT) @ seq 9",), "rank_died", (1,), 94),
    Case("exit 3", ("exit(rank=1, code=3) @ call 20",), "rank_died", (1,), 94),
    Case("exit 0", ("exit(rank=1) @ all_reduce#5",), "early_exit", (1,), 93),
    Case(
        "exception",
        ('raise(rank=1, "ValueError: bad sample") @ step 3',),
        "rank_exception",
        (1,),
        1,
    ),
    Case("allocation fails", ("oom(rank=1) @ all_reduce#5",), "rank_exception", (1,), 1),
    Case("forked child", ("fork(rank=1) @ all_reduce#5",), "forked", (1,), 93),
    Case("full disk", ("fill-disk(rank=1) @ all_reduce#5",), "ok"),
    Case("store lost in the middle", ("drop-store(rank=1) @ all_reduce#5",), "ok"),
    Case("killed, who has the store", ("kill(rank=0) @ all_reduce#5",), "rank_died", (0,), 94),
    Case(
        "two faults at once",
        ("kill(rank=1) @ all_reduce#5", "kill(rank=0) @ all_reduce#5"),
        "rank_died",
        (0, 1),
        94,
    ),
    # It does not come.
    _absent("stopped", "kill(rank=1, signal=STOP) @ all_reduce#5", "stopped"),
    _absent("holds the GIL", "hang(rank=1, how=gil) @ broadcast#2", "gil_held"),
    _absent("at a lock of its own", "hang(rank=1, how=lock) @ broadcast#2", "lock"),
    _absent("asleep", "hang(rank=1) @ all_gather_into_tensor#2", "user_code"),
    _absent("asleep in C", "hang(rank=1, how=native) @ broadcast#2", "user_code"),
    # It comes late.
    Case("late once", ("delay(rank=1, 1s) @ call 0",), "ok"),
    Case("held once", ("hold(rank=1, until=0, call=1) @ call 1",), "ok"),
    Case("asks once it is over", ("finish(rank=1) @ call 1",), "ok"),
    Case("late for each", ("delay(rank=1, 5ms) @ call 0..200",), "ok", warnings=("straggler",)),
    # Another call.
    _mismatch("call left out", "skip(rank=1) @ broadcast#3", "op_mismatch"),
    _mismatch("call made twice", "duplicate(rank=1) @ broadcast#3", "op_mismatch"),
    _mismatch("calls in another order", "reorder(rank=1) @ broadcast#3", "op_mismatch"),
    _mismatch("another shape", "change(rank=1, shape) @ broadcast#5", "shape_mismatch"),
    _mismatch("another dtype", "change(rank=1, dtype) @ broadcast#5", "dtype_mismatch"),
    _mismatch("another reduce op", "change(rank=1, reduce_op) @ reduce#5", "reduce_op_mismatch"),
    _mismatch("another root", "change(rank=1, root) @ broadcast#5", "root_mismatch"),
    Case(
        "another split",
        ("change(rank=1, split, to=[1, 3]) @ all_to_all_single#5",),
        "split_mismatch",
        (0, 1),
        91,
        sizes=(2,),
    ),
    Case("another tag", ("change(rank=1, tag) @ send#5",), "p2p_mismatch", (0, 1), 91, sizes=(2,)),
    Case(
        "another peer",
        ("change(rank=1, peer, to=3) @ send#5",),
        "deadlock",
        (1, 2, 3),
        92,
        sizes=(4,),
    ),
    Case(
        "another group",
        ("change(rank=1, group) @ all_reduce#4",),
        "deadlock",
        (0, 1),
        92,
        sizes=(4,),
    ),
    # Beginning and end.
    Case(
        "two processes with one rank",
        (),
        "join_timeout",
        (0,),
        93,
        flags=HANGS,
        does=("--twice",),
        sizes=(4,),
    ),
    Case(
        "destroyed with work in flight",
        (),
        "early_exit",
        (1,),
        93,
        warnings=("unwaited_work",),
        does=("--in-flight",),
        sizes=(4,),
    ),
    # Other data.
    Case("nan", ("nan(rank=1) @ all_reduce#5",), "nan", (1,), 95, flags=NAN),
    Case("inf", ("inf(rank=1) @ all_reduce#5",), "nan", (1,), 95, flags=NAN),
    Case(
        "bit flip in a parameter",
        ("bitflip(rank=1, in=parameter) @ step 3",),
        "divergence",
        ALONE,
        95,
        flags=REPLICAS,
        program="replicas",
    ),
    Case("bit flip on the way, unseen", ("bitflip(rank=1) @ all_reduce#5",), "ok"),
    # Links.
    Case("slow link", ("link(0->1, rate=2M)",), "ok", backends=(TCP,)),
    Case("late link", ("link(0->1, delay=5ms)",), "ok", backends=(TCP,)),
    _link("frame lost", "0->1, drop"),
    _link("frame damaged", "0->1, corrupt"),
    _link("frame cut short", "0->1, truncate"),
    _link("frame sent twice", "0->1, duplicate"),
    _link("reset on one side", "0->1, reset"),
    _link("reset on both sides", "0<->1, reset"),
    _link("half open", "0->1, blackhole", hangs=True),
    _link("silent both ways", "0<->1, blackhole", hangs=True),
    *_partitions("partition that heals", "@ 2s for 3s", "ok"),
    *_partitions("partition", "@ 2s", "missing_rank", culprits=ACROSS, exit_code=93, flags=HANGS),
    # Links, in a network of the ranks' own.
    _apart("slow link", "link(0->1, rate=2M)"),
    _apart("late link", "link(0->1, delay=5ms)", sizes=(2,)),
    _apart("frame lost", "link(0->1, drop) @ frame 10"),
    _apart("frame sent twice", "link(0->1, duplicate) @ frame 10"),
    _apart("frame damaged, unseen", "link(0->1, corrupt) @ frame 10"),
    _apart(
        "frames damaged, seen",
        "link(0->1, corrupt) @ frame 30..120",
        "divergence",
        culprits=ALL,
        flags=REPLICAS,
        program="replicas",
        sizes=(2,),
    ),
    _apart("frame cut short", "link(0->1, truncate) @ frame 10", "rank_exception", culprits=(0, 1)),
    _apart(
        "reset",
        "link(0->1, reset) @ frame 10",
        "rank_exception",
        culprits=(0, 1),
        backends=BOTH,
        quick=True,
    ),
    _apart("half open", "link(0->1, blackhole) @ frame 10..", "missing_rank", culprits=ALL),
    _apart("all frames lost", "link(0->1, drop)", "missing_rank", culprits=ALL),
    _apart(
        "partition that heals",
        f"{HALVES[2]} @ 2s for 3s",
        arguments=SLOWLY,
        sizes=(2,),
        quick=True,
    ),
    _apart(
        "partition, 4",
        f"{HALVES[4]} @ 2s",
        "missing_rank",
        culprits=ACROSS,
        arguments=SLOWLY,
        backends=BOTH,
        sizes=(4,),
    ),
)
