"""The flags that `run` and `exec` share: of judging and looking, of breakpoints, of the other nodes
of a job, of what is reported."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnosis.limits import Limits
from ..errors import UsageError
from ..nodes.several import MOST, Agreed, AgreedError, Several, job_key, place
from ..record import kinds
from ..record.log_file import DEBUG_LEVELS, DEFAULT_MAX_MB, INFO
from ..record.requests.breakpoints import BreakAt, canonical_file, lines_with_code, parse_break
from ..supervisor.terminal_app import need_terminal
from . import flags, inject_flags

if TYPE_CHECKING:
    from ..launch.launchers import NodesOfLauncher  # `run --help` does without
    from ..supervisor.run_options import Options


def places(
    texts: Sequence[str], command: Sequence[str], world_size: int | None = None
) -> tuple[str, ...]:
    """Returns what the ranks of this command are told: with absolute names of files. `world_size`:
    where it is known, a rank beyond it is refused. Raises UsageError."""
    found = tuple(_place(text, command) for text in texts)
    for text, asked in zip(texts, found, strict=True):
        if world_size is not None and asked.rank is not None and asked.rank >= world_size:
            raise UsageError(
                f"--break {text}: there is no rank {asked.rank}; ranks count from 0 to "
                f"{world_size - 1}"
            )
    return tuple(map(str, found))


def _place(text: str, command: Sequence[str]) -> BreakAt:
    try:
        asked = parse_break(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if asked.op:
        return asked
    found = next((one for one in _candidates(asked.file, command) if one.is_file()), None)
    if found is None:
        raise UsageError(
            f"--break {text}: there is no file {asked.file} here, beside the script, or where "
            "Python looks for modules"
        )
    try:
        lines = lines_with_code(found.read_text(encoding="utf-8"), str(found))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"--break {text}: {found} cannot be read as Python: {error}") from None
    if asked.line not in lines:
        after = min((line for line in lines if line > asked.line), default=max(lines, default=0))
        near = f"; line {after} has" if after else ""
        raise UsageError(f"--break {text}: line {asked.line} has no code at which to stop{near}")
    return replace(asked, file=canonical_file(str(found)))


def _candidates(file: str, command: Sequence[str]) -> Iterator[Path]:
    yield Path(file)
    if not os.path.isabs(file):
        for word in command:
            if word.endswith(".py"):
                yield Path(word).parent / file
        folders = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
        yield from (Path(folder) / file for folder in folders if folder)


def of_launcher(nodes: NodesOfLauncher | None, interface: str) -> Several | None:
    """Returns what the launcher's flags say of the job's nodes; `interface`: where to listen, if
    that was said."""
    if nodes is None:
        return None
    return Several(nodes.fewest, nodes.most, interface, nodes.node, nodes.ranks)


def with_head(args: argparse.Namespace, several: Several | None) -> Several | None:
    """Returns what is known of the job's nodes, and where they meet if that was said. Raises
    UsageError."""
    if args.head is None:
        if args.job_key is not None:
            raise UsageError("--job-key is of --head HOST:PORT, which was not given")
        return several
    try:
        host, port = place(args.head)
        agreed = Agreed(host, port, job_key(args.job_key, os.environ))
    except AgreedError as error:
        raise UsageError(str(error)) from None
    several = several or Several(1, MOST, args.interface)
    return replace(several, agreed=agreed, guessed=False)


def add(parser: argparse.ArgumentParser) -> None:
    """Add distdebug's own flags."""
    group = parser.add_argument_group("distdebug")
    group.add_argument(
        "--hang-timeout",
        type=flags.seconds,
        default=60.0,
        metavar="S",
        help="report a rank as late when others have waited this many seconds for it (default 60)",
    )
    group.add_argument(
        "--notice-after",
        type=flags.seconds,
        default=10.0,
        metavar="S",
        help="print a notice that names a late rank after this many seconds (default 10)",
    )
    group.add_argument(
        "--on-finding",
        choices=("stop", "report"),
        default="stop",
        help="stop the run at an error (default), or let it go on and report at the end",
    )
    group.add_argument(
        "--on-finding-run",
        type=_words_of_a_program,
        default=(),
        metavar="CMD",
        help="start this program for each finding, with the finding as JSON on its standard "
        "input; no shell reads CMD, and it may take 30 s",
    )
    group.add_argument(
        "--debug-level",
        choices=DEBUG_LEVELS,
        type=str.upper,
        help="OFF records calls, INFO also compares them, DETAIL compares them before they are "
        "made; overrides TORCH_DISTRIBUTED_DEBUG (default INFO)",
    )
    group.add_argument(
        "--check",
        default="",
        metavar="NAMES",
        help=f"check the data that are communicated: {', '.join(kinds.CHECKS)}, or all (which "
        "leaves out nan-origin)",
    )
    group.add_argument(
        "--check-every",
        type=flags.steps,
        default=1,
        metavar="K",
        help="with --check replicas: compare at one step in K (default 1)",
    )
    group.add_argument(
        "--log-max-mb",
        type=flags.mebibytes(0.01, 1e6),
        default=DEFAULT_MAX_MB,
        metavar="MB",
        help="keep only the last MB MiB of each rank's stdout, of its stderr, and of its log "
        f"(default {DEFAULT_MAX_MB:.0f})",
    )
    group.add_argument(
        "--break",
        dest="breaks",
        action="append",
        default=[],
        metavar="PLACE",
        help=(
            "stop before FILE:LINE, or before call #SEQ of any group if it is an OP, such as "
            "all_reduce#12; with @RANK at the end only that rank stops (may be repeated)"
        ),
    )
    group.add_argument(
        "--pdb",
        action="store_true",
        help="stop where an uncaught exception was raised, on the first rank that raises one",
    )
    group.add_argument(
        "--debugger",
        choices=("pdb", "debugpy"),
        default="pdb",
        help="what breakpoints wait for: `distdebug attach` (default), or an editor",
    )
    inject_flags.add(group)
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="the folder for the record")
    group.add_argument(
        "--keep-runs", type=flags.count, metavar="N", help="remove older runs without findings"
    )
    group.add_argument(
        "--interface",
        default="",
        metavar="NAME",
        help="the network interface on which the supervisors of the nodes connect (default: the "
        "one that leads to the other nodes)",
    )
    group.add_argument(
        "--head",
        metavar="HOST:PORT",
        help=(
            "where the supervisors of the nodes connect if the job has no store that all nodes "
            "reach: the same on all nodes; the node that is HOST listens (needs --job-key or "
            "DISTDEBUG_JOB_KEY)"
        ),
    )
    group.add_argument(
        "--job-key",
        type=Path,
        metavar="FILE",
        help="with --head: a file with a secret that all nodes share; only its owner may read it",
    )
    group.add_argument(
        "--why",
        action="store_true",
        help="keep which branches of the program's own files each rank takes, so that a report "
        "says why a rank decided otherwise; costs little from Python 3.12 on, and makes a "
        "program's own code many times slower before",
    )
    group.add_argument(
        "--values",
        action="store_true",
        help="record per step digest, norm, minimum and maximum of losses, results of collectives, "
        "gradients, optimizer state, parameters and buffers, for `distdebug compare --values`",
    )
    group.add_argument(
        "--values-every",
        type=flags.steps,
        default=1,
        metavar="K",
        help="with --values: record the first step and each K-th (default 1); a rank keeps its "
        "last 32 to 64 MiB",
    )
    group.add_argument("--strict", action="store_true", help="a warning makes the run fail, too")
    group.add_argument(
        "--allow-unwatched",
        action="store_true",
        help="do not fail a run in which no rank was seen (without this flag: exit code 2)",
    )
    group.add_argument(
        "--prom",
        type=Path,
        metavar="FILE",
        help="write metrics into FILE, a Prometheus textfile, every 10 s",
    )
    flags.add_ci(group)
    group.add_argument("--tui", action="store_true", help="open the terminal app on the run")
    group.add_argument(
        "--native-stacks", action="store_true", help="show C and C++ frames in stacks"
    )
    group.add_argument(
        "--ptrace-any",
        action="store_true",
        help="allow all your processes to read the stacks of the ranks even if ptrace_scope is 1",
    )


def _words_of_a_program(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"{text!r} names no program that can be run")
    return tuple(words)


_AS_GIVEN = (
    *("run_dir", "keep_runs", "log_max_mb", "debugger", "check_every", "on_finding", "strict"),
    *("allow_unwatched", "tui", "ptrace_any", "on_finding_run", "why"),
    *("values", "values_every"),
)
"""The flags whose values are options of a run as they are."""


def common(
    args: argparse.Namespace, command: Sequence[str], world_size: int | None
) -> dict[str, Any]:
    """The shared flags as arguments for `run_options.Options`; `command` is what is run, on
    `world_size` ranks where that is known. Raises UsageError."""
    other = getattr(args, "python", None)  # of which the rank itself says it
    if args.debugger == "debugpy" and not other and importlib.util.find_spec("debugpy") is None:
        raise UsageError("debugpy is not installed; install it with: pip install debugpy")
    asked = args.debug_level or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper()
    level = asked or INFO
    if level not in DEBUG_LEVELS:
        raise UsageError(
            f"TORCH_DISTRIBUTED_DEBUG is {level!r}; it may be {', '.join(DEBUG_LEVELS)}"
        )
    try:
        checks = kinds.chosen_checks(args.check)
    except ValueError as error:
        raise UsageError(f"--check {args.check}: {error}") from None
    if args.check_every != 1 and "replicas" not in checks:
        raise UsageError("--check-every needs --check replicas")
    if args.values_every != 1 and not args.values:
        raise UsageError("--values-every needs --values")
    if args.interface and getattr(args, "hostfile", None) is None:  # else it is the hosts' own
        from ..nodes.interfaces import InterfaceError, address_of

        try:
            address_of(args.interface)
        except InterfaceError as error:
            raise UsageError(str(error)) from None
    if args.tui:
        need_terminal()
    if args.prom is not None:
        from ..reports import prometheus

        prometheus.check(args.prom)

    def of_processes(pids: Sequence[int], limit_s: float) -> Any:
        from ..inspection import inspect  # which a run whose ranks are watched never needs

        return inspect.of_processes(pids, limit_s)

    return {
        **{name: getattr(args, name) for name in _AS_GIVEN},
        "limits": Limits(hang_timeout_s=args.hang_timeout, notice_after_s=args.notice_after),
        "level": level,
        "level_asked": bool(asked),
        "checks": checks,
        "breaks": places(args.breaks, command, world_size),
        "post_mortem": args.pdb,
        "ci": flags.ci_of(args),
        "prom": args.prom and args.prom.absolute(),
        "faults": inject_flags.plan(args, world_size),
        "own_network": inject_flags.own_network(args, world_size),
        "inspect": of_processes,
        "native_stacks": args.native_stacks or os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1",
    }


def supervise(asked: Options) -> int:
    """Runs a command to its end, watched; returns the exit code of `distdebug`."""
    from ..supervisor.begin import begun

    with begun(asked) as run:
        from ..supervisor.supervisor import Supervisor  # while the command's launcher starts

        return Supervisor(run).run()
