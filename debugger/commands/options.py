"""The flags that `run` and `exec` share."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnosis.limits import Limits
from ..errors import UsageError
from ..record import kinds
from ..record.log_file import DEBUG_LEVELS, DEFAULT_MAX_MB, INFO
from ..reports import prometheus
from ..supervisor.terminal_app import need_terminal
from . import break_flags, ci_flags, head_flags, inject_flags, numbers


def add(parser: argparse.ArgumentParser) -> None:
    """Add distdebug's own flags."""
    group = parser.add_argument_group("distdebug")
    _add_judging(group)
    _add_looking(group)
    break_flags.add(group)
    inject_flags.add(group)
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="where to keep the record")
    group.add_argument(
        "--keep-runs", type=numbers.count, metavar="N", help="remove older runs without findings"
    )
    group.add_argument(
        "--interface",
        default="",
        metavar="NAME",
        help="where the nodes' supervisors speak (default: the one that leads to the other nodes)",
    )
    head_flags.add(group)
    _add_reporting(group)


def _add_judging(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--hang-timeout",
        type=numbers.seconds,
        default=60.0,
        metavar="S",
        help="suspect a rank that is late by this many seconds (default 60)",
    )
    group.add_argument(
        "--notice-after",
        type=numbers.seconds,
        default=10.0,
        metavar="S",
        help="say who is late after this many seconds (default 10)",
    )
    group.add_argument(
        "--on-finding",
        choices=("stop", "report"),
        default="stop",
        help="stop the run at an error (default), or let it go on and report at the end",
    )


def _add_looking(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--debug-level",
        choices=DEBUG_LEVELS,
        type=str.upper,
        help="as TORCH_DISTRIBUTED_DEBUG, which it overrides (default INFO)",
    )
    group.add_argument(
        "--check",
        default="",
        metavar="NAMES",
        help=f"look at the data: {', '.join(kinds.CHECKS)}, or all (then replicas of DDP "
        "models only)",
    )
    group.add_argument(
        "--check-every",
        type=numbers.steps,
        default=1,
        metavar="K",
        help="with --check replicas: look after one step in K (default 1)",
    )
    group.add_argument(
        "--log-max-mb",
        type=numbers.mebibytes(0.01, 1e6),
        default=DEFAULT_MAX_MB,
        metavar="MB",
        help=f"keep at most the last MB MiB of each rank's records (default {DEFAULT_MAX_MB:.0f})",
    )


def _add_reporting(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--strict", action="store_true", help="a warning fails the run too")
    group.add_argument(
        "--allow-unwatched",
        action="store_true",
        help="a run in which no rank was seen may pass (else it ends with exit code 2)",
    )
    group.add_argument(
        "--prom",
        type=Path,
        metavar="FILE",
        help="keep FILE, a Prometheus textfile, up to date: written anew every 10 s",
    )
    ci_flags.add(group)
    group.add_argument("--tui", action="store_true", help="open the terminal app on the run")
    group.add_argument(
        "--native-stacks", action="store_true", help="show C and C++ frames in stacks"
    )
    group.add_argument(
        "--ptrace-any",
        action="store_true",
        help="any process of yours may read the ranks' stacks, though ptrace_scope is 1",
    )


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
    if args.tui:
        need_terminal()
    return {
        "run_dir": args.run_dir,
        "keep_runs": args.keep_runs,
        "limits": Limits(hang_timeout_s=args.hang_timeout, notice_after_s=args.notice_after),
        "level": level,
        "level_asked": bool(asked),
        "checks": _checks(args.check),
        "log_max_mb": args.log_max_mb,
        "breaks": break_flags.places(args.breaks, command, world_size),
        "post_mortem": args.pdb,
        "debugger": args.debugger,
        "check_every": args.check_every,
        "on_finding": args.on_finding,
        "strict": args.strict,
        "allow_unwatched": args.allow_unwatched,
        "tui": args.tui,
        "ci": ci_flags.chosen(args),
        "prom": _prom(args.prom),
        "faults": inject_flags.plan(args, world_size),
        "own_network": inject_flags.own_network(args, world_size),
        "ptrace_any": args.ptrace_any,
        "inspect": _inspect,
        "native_stacks": args.native_stacks or os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1",
    }


def _inspect(pids: Sequence[int], limit_s: float) -> Any:
    from ..inspection.inspect import of_processes  # which a run whose ranks are watched never needs

    return of_processes(pids, limit_s)


def _prom(path: Path | None) -> Path | None:
    if path is not None:
        prometheus.check(path)
    return path and path.absolute()


def _checks(text: str) -> tuple[str, ...]:
    try:
        return kinds.chosen_checks(text)
    except ValueError as error:
        raise UsageError(f"--check {text}: {error}") from None
