"""`--inject` and its like: makes the plan of a run, and tells what is wrong with it before a rank
starts."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.safe_text import clean
from . import flags

if TYPE_CHECKING:
    from ..faults.plan import Fault, Plan

MOST_RANDOM = 1000
_ALL_FAULTS = "tcp"
"""The backend on which every fault can be."""


def add(parser: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    parser.add_argument(
        "--inject",
        dest="injected",
        action="append",
        default=[],
        metavar="SPEC",
        help=(
            "make a fault happen: ACTION(rank=N, ...) @ MOMENT, such as "
            "'kill(rank=1) @ all_reduce#5' (may be repeated)"
        ),
    )
    parser.add_argument(
        "--inject-file", type=Path, metavar="FILE", help="read faults from a TOML file"
    )
    parser.add_argument(
        "--inject-random",
        type=flags.between(1, MOST_RANDOM, f"from 1 to {MOST_RANDOM} faults"),
        metavar="N",
        help="draw N faults from --seed, and print them as --inject flags",
    )
    parser.add_argument(
        "--inject-backend",
        metavar="NAME",
        help="the backend of the program: a fault that is not possible on it is refused at once",
    )
    parser.add_argument(
        "--netns",
        action="store_true",
        help=(
            "give each rank its own network namespace (needs root), so that faults of links work "
            "on every backend"
        ),
    )
    parser.add_argument(
        "--seed",
        type=flags.seed,
        metavar="S",
        help="the seed for everything random in faults (default: a new one)",
    )


def plan(args: argparse.Namespace, world_size: int | None) -> Plan | None:
    """The plan that the flags ask for; None where they ask for none. Raises UsageError.

    `world_size`: the number of ranks, where it is known.
    """
    seed: int | None = args.seed
    if not args.injected and args.inject_file is args.inject_random is seed is None:
        return None
    from ..faults import plan_file  # most runs are without: they start sooner
    from ..faults.plan import Plan
    from ..faults.spec import SpecError, parse

    faults: list[Fault] = []
    # In a network of the ranks' own no backend rules out a fault.
    backend = None if args.netns else args.inject_backend
    if args.inject_file is not None:
        path: Path = args.inject_file
        try:
            from_file, file_seed = plan_file.read(path, world_size, backend)
        except SpecError as error:
            raise UsageError(f"--inject-file {path}: {error}", error.below) from None
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"--inject-file {path} cannot be read: {why}") from None
        except ValueError as error:
            raise UsageError(f"--inject-file {path}: {error}") from None
        faults += from_file
        seed = file_seed if seed is None else seed
    for text in args.injected:
        try:
            faults.append(parse(text, len(faults), world_size, backend))
        except SpecError as error:
            raise UsageError(f"--inject: {error}", error.below) from None
    if args.inject_random is not None:
        seed = secrets.randbits(32) if seed is None else seed
        drawn_for = _ALL_FAULTS if args.netns else backend
        faults += _random(args.inject_random, seed, world_size, drawn_for, len(faults))
    if not faults:
        if args.seed is not None:
            raise UsageError("--seed is of --inject, --inject-file or --inject-random; give one")
        return None
    return Plan(tuple(faults), seed or 0, bool(args.netns))


def own_network(args: argparse.Namespace, world_size: int | None) -> int:
    """The number of ranks that --netns gives a network of their own; 0 without it. Raises
    UsageError where that cannot be."""
    if not args.netns:
        return 0
    from ..record.network import MOST_ADDRESSES
    from ..supervisor.rank_network import switch

    why = switch.why_impossible()
    if why:
        raise UsageError(
            f"--netns {why}; without it faults of links work on the backend tcp alone, which needs "
            "nothing of the kind"
        )
    if world_size is None:
        raise UsageError(
            "--netns needs the number of ranks, on one host, before they start; use `distdebug run "
            "-n N`, or set WORLD_SIZE"
        )
    if world_size > MOST_ADDRESSES:
        raise UsageError(f"--netns has room for {MOST_ADDRESSES} ranks, not for {world_size}")
    if args.debugger != "pdb":
        raise UsageError(
            "--netns: no editor reaches a rank that has a network of its own; leave out "
            f"--debugger {args.debugger}"
        )
    return world_size


def _random(
    count: int, seed: int, world_size: int | None, backend: str | None, first: int
) -> list[Fault]:
    if world_size is None:
        raise UsageError(
            "--inject-random needs the number of ranks, which is not known before the command "
            f"runs; set WORLD_SIZE, or name the faults with --inject (here: seed {seed})"
        )
    from ..faults import random_plan

    drawn = random_plan.draw(count, seed, world_size, backend, first)
    flags = " ".join(f"--inject {shlex.quote(fault.text)}" for fault in drawn)
    print(f"distdebug: seed {seed}: {clean(flags, 100_000)}", file=sys.stderr)
    return drawn
