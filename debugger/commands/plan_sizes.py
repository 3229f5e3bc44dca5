"""`distdebug plan --sizes`: the same program at many sizes of the job, and the smallest that fails.

Many faults need a size: a last stage that is the first one, too, a batch that does not divide, a
group of one rank. Each size is planned by itself, the smallest first.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..record.wording import counted
from .base import Parser

RANKS = "ranks"
"""The axis of a `--sizes 2..16`, which names none."""
MOST = 1000
_PART = re.compile(r"(?:([A-Za-z]\w*)=)?([1-9]\d{0,6})(?:\.\.([1-9]\d{0,6}))?", re.ASCII)
_RANKS = re.compile(r"-n[ =]?(\d+\.\.\d+)", re.ASCII)

Axes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the job has a number for each axis; their product is the number of ranks."""

    of: Mapping[str, int]

    @property
    def ranks(self) -> int:
        return math.prod(self.of.values())

    def __str__(self) -> str:
        axes = ",".join(f"{name}={number}" for name, number in self.of.items() if name != RANKS)
        return f"{axes} ({counted(self.ranks, 'rank')})" if axes else counted(self.ranks, "rank")

    @property
    def folder(self) -> str:
        """The name of its run directory below the one that was asked for."""
        return "-".join(f"{name}{number}" for name, number in self.of.items())

    def filled_in(self, word: str) -> str:
        """The word of a command line with the numbers in place of `{dp}` and the like."""
        for name, number in self.of.items():
            word = word.replace(f"{{{name}}}", str(number))
        return word


def parse(text: str) -> Axes:
    """Reads `dp=1..8,tp=1,2,4`, or `2..16` for a number of ranks. Raises UsageError."""
    axes: dict[str, list[int]] = {}
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None or found[1] in axes:
            raise UsageError(
                f"--sizes takes ranges such as 2..16, or dp=1..8,tp=1,2,4, not {text!r}"
            )
        name = found[1] or next(reversed(axes), RANKS)
        first, last = int(found[2]), int(found[3] or found[2])
        if last < first:
            raise UsageError(f"--sizes {text}: {part} has no number in it")
        axes.setdefault(name, []).extend(range(first, min(last, first + MOST) + 1))
    if math.prod(map(len, axes.values())) > MOST:
        raise UsageError(f"--sizes {text}: more than {MOST} sizes")
    return axes


def divide(
    argv: Sequence[str], split: Callable[[Sequence[str]], tuple[list[str], list[str]]]
) -> tuple[Axes, list[str], list[str]]:
    """Divides a command line into its sizes (none where it names none), the flags that each of them
    has, and the program. `split` divides words at the script; `-n 2..16`, which it would refuse, is
    another way to write `--sizes 2..16`."""
    words, ranks, at = list(argv), None, 0
    for at, word in enumerate(argv):
        ranks = _RANKS.fullmatch(" ".join(argv[at : at + 2]) if word == "-n" else word)
        if ranks is not None:
            words[at : at + 1 + (word == "-n")] = [f"--sizes={ranks[1]}"]
            break
    flags, program = split(words)
    if ranks is not None and at >= len(flags):  # it is the program's
        flags, program = split(argv)
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--sizes", action="append", default=[])
    said, kept = parser.parse_known_args(flags)
    if not said.sizes:
        return {}, flags, program
    if said.sizes[1:] or any(re.fullmatch(r"-n.*|--nproc[-_]per[-_]node.*", one) for one in kept):
        raise UsageError("--sizes says how many ranks are planned: say it once, and leave -n out")
    return parse(said.sizes[0]), kept, program


def command_lines(
    axes: Axes, flags: Sequence[str], program: Sequence[str]
) -> Iterator[tuple[Size, list[str]]]:
    """Each size, the smallest first, with the words behind `plan` for it. Raises UsageError where
    the program would not know of an axis."""
    untold = [name for name in axes if not any(f"{{{name}}}" in word for word in program)]
    if len(untold) > 1:  # one of them follows from the others and the number of ranks
        name = untold[-1]
        raise UsageError(
            f"--sizes: the script is told neither {untold[0]} nor {name}: write {{{name}}} where "
            f"its arguments have that number, such as train.py --{name} {{{name}}}"
        )
    sizes = [
        Size(dict(zip(axes, numbers, strict=True))) for numbers in itertools.product(*axes.values())
    ]
    for size in sorted(sizes, key=lambda one: one.ranks):
        yield size, ["-n", str(size.ranks), *flags, *map(size.filled_in, program)]


def conclusion(outcomes: Sequence[tuple[Size, int]]) -> str:
    """The last sentence: how many sizes fail, and the smallest of them."""
    failed = [size for size, code in outcomes if code]
    of = counted(len(outcomes), "size")
    if not failed:
        return f"all right at {of}"
    others = f": {', '.join(map(str, failed[1:9]))}{', ...' * (len(failed) > 9)}"
    more = f"; it fails at {len(failed) - 1} more of {of}{others}" if failed[1:] else f" (of {of})"
    return f"the smallest size that fails is {failed[0]}{more}"
