"""Random faults in random programs: nobody may be blamed who is not to blame.

`python -m tests.faults.chaos --runs N --seed S` makes N runs of 3 ranks, each with one fault, all
drawn from the seed; `--only K` makes run K of them again. What a run must come to is not known in
advance, but this is: it ends, leaves no process, and if anything is found, the rank with the fault
is among the culprits, and alone among them where the kind of finding has one party. A fault that
does harm must be found. The program must have been at work before the fault: one that never
happened proves nothing and is counted apart.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distdebug.faults.plan import Fault
from distdebug.faults.random_plan import draw
from tests.support import runs
from tests.support.zygote import Zygote

from .running import LIMIT_S, PROGRAMS, alive

RANKS = 3
LONGEST_S = 15.0
"""A run of it; on a machine that is busy with other work it may take longer."""
HARMLESS = frozenset(
    {"delay", "fill-disk", "drop-store", "bitflip", "nan", "inf", "duplicate", "reorder"}
)
"""They may pass unseen: they cost time, change data, put a call behind its equal, or (a last call
made twice, when the others destroy their group) come too late to meet anybody."""
HARMLESS_LINKS = frozenset({"delay", "rate"})
OF_MANY = frozenset(
    {
        "deadlock",
        "group_mismatch",
        "p2p_mismatch",
        "reduce_op_mismatch",
        "split_mismatch",
        "unmatched_p2p",
    }
)
"""Findings that name all who take part: a cycle, a pair, or those between whom nobody can tell."""


@dataclass(frozen=True)
class Run:
    """One of them: the how many-th of which seed, and what was drawn for it."""

    seed: int
    number: int
    backend: str
    program: int
    fault: Fault

    @property
    def again(self) -> str:
        """The command that repeats it."""
        return f"python -m tests.faults.chaos --seed {self.seed} --only {self.number}"


def drawn(seed: int, number: int) -> Run:
    """Run `number` of this seed: the same on every machine."""
    source = random.Random(f"chaos {seed} {number}")
    backend = source.choice(("gloo", "tcp"))
    (fault,) = draw(1, source.randrange(1 << 30), RANKS, backend)
    return Run(seed, number, backend, source.randrange(1 << 30), fault)


def make(zygote: Zygote, run: Run, directory: Path) -> runs.Run:
    """Make the run."""
    program = [str(PROGRAMS / "random_calls.py"), run.backend, str(run.program)]
    flags = ["--inject", run.fault.text, "--hang-timeout", "5"]
    return zygote.run(RANKS, program, directory, flags, limit_s=LIMIT_S)


def complaints(run: Run, done: runs.Run) -> Iterator[str]:
    """What must not be."""
    report = done.report
    if survivors := alive(report):
        yield f"still alive: {survivors}"
    if not happened(done):
        if report["outcome"] != "failed":
            yield f"without its fault it came to {report['outcome']}"
        return
    errors = done.errors
    if not errors:
        if not _is_harmless(run.fault):
            yield f"came to {report['outcome']}: the fault was not found"
        return
    to_blame, culprits = _to_blame(run.fault), set(errors[0]["culprits"])
    kind = errors[0]["kind"]
    if not culprits & to_blame:
        yield f"{kind}: blames {sorted(culprits)}, not {sorted(to_blame)}"
    elif culprits - to_blame and kind not in OF_MANY and not _is_wide(run.fault):
        yield f"{kind}: blames {sorted(culprits)}, of whom only {sorted(to_blame)} is to blame"


def happened(done: runs.Run) -> bool:
    """Whether the fault did."""
    return all(one["fired"] for one in done.report["injected"])


def _to_blame(fault: Fault) -> set[int]:
    pairs = fault.arguments.get("pairs", ())
    return {rank for pair in pairs for rank in pair} or set(fault.ranks)


def _is_harmless(fault: Fault) -> bool:
    if fault.action == "link":
        return fault.arguments["what"] in HARMLESS_LINKS
    return fault.action in HARMLESS


def _is_wide(fault: Fault) -> bool:
    """A hang timeout cannot tell which link is silent, only in which group."""
    return fault.action in ("link", "partition")


def main() -> int:
    """1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--only", type=int)
    args = parser.parse_args()
    numbers = range(args.runs) if args.only is None else [args.only]
    print(f"seed {args.seed}")
    zygote = Zygote()
    came_to: Counter[str] = Counter()
    wrong = slow = 0
    for number in numbers:
        run = drawn(args.seed, number)
        with tempfile.TemporaryDirectory() as directory:
            done = make(zygote, run, Path(directory))
            found = list(complaints(run, done))
            report = done.report
            culprits = ",".join(map(str, done.errors[0]["culprits"])) if done.errors else ""
            outcome = report["outcome"] if happened(done) else "never happened"
        came_to[outcome] += 1
        slow += report["duration_s"] > LONGEST_S
        wrong += bool(found)
        print(f"{number:4} {run.backend:5} {run.fault.text:60} {outcome:18} {culprits}", flush=True)
        for sentence in found:
            print(f"     WRONG: {sentence}\n     again: {run.again}\n{done.explain()}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in came_to.most_common()))
    print(f"{len(numbers)} runs, {wrong} wrong, {slow} over {LONGEST_S:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
