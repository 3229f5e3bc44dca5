"""The flags that `run` and `exec` share."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from ..diagnosis.limits import Limits
from ..errors import UsageError
from .terminal_app import need_terminal

LEVELS = ("OFF", "INFO", "DETAIL")
CHECKS = ("nan", "overflow", "inflight")


def add(parser: argparse.ArgumentParser) -> None:
    """Add distdebug's own flags."""
    group = parser.add_argument_group("distdebug")
    group.add_argument(
        "--hang-timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="suspect a rank that is late by this many seconds (default 60)",
    )
    group.add_argument(
        "--notice-after",
        type=_seconds,
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
    group.add_argument(
        "--debug-level",
        choices=LEVELS,
        type=str.upper,
        help="as TORCH_DISTRIBUTED_DEBUG, which it overrides (default INFO)",
    )
    group.add_argument(
        "--check",
        default="",
        metavar="NAMES",
        help=f"look at the data of each call: {', '.join(CHECKS)}, or all",
    )
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="where to keep the record")
    group.add_argument("--strict", action="store_true", help="a warning fails the run too")
    group.add_argument("--tui", action="store_true", help="open the terminal app on the run")
    group.add_argument(
        "--native-stacks", action="store_true", help="show C and C++ frames in stacks"
    )


def common(args: argparse.Namespace) -> dict[str, Any]:
    """The shared flags as arguments for `session.Options`. Raises UsageError."""
    level = args.debug_level or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() or "INFO"
    if level not in LEVELS:
        raise UsageError(f"TORCH_DISTRIBUTED_DEBUG is {level!r}; it may be {', '.join(LEVELS)}")
    if args.tui:
        need_terminal()
    return {
        "run_dir": args.run_dir,
        "limits": Limits(hang_timeout_s=args.hang_timeout, notice_after_s=args.notice_after),
        "level": level,
        "checks": _checks(args.check),
        "on_finding": args.on_finding,
        "strict": args.strict,
        "tui": args.tui,
        "native_stacks": args.native_stacks or os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1",
    }


def _checks(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*CHECKS, "all"):
            raise UsageError(f"--check {text}: {name!r} is none of {', '.join(CHECKS)}, all")
    return CHECKS if "all" in names else tuple(dict.fromkeys(names))


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0 or math.isinf(value):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return value
