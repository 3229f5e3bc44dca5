"""`distdebug runs`: lists the recorded runs, newest first, or removes old ones."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from typing import Any

from ..record.runs.recorded_runs import list_runs, prune, size_bytes
from ..record.runs.run_directory import BASE, nearest
from ..record.safe_text import clean
from ..record.wording import counted
from . import flags
from .base import Command


class RunsCommand(Command):
    name = "runs"
    epilog = (
        "A run that is still going on is never removed.\n"
        "\n"
        "examples:\n"
        "  distdebug runs\n"
        "  distdebug runs --prune 10        keep the newest 10"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--prune",
            type=flags.between(0, flags.MOST, "the number of runs to keep"),
            metavar="KEEP",
            help="remove all but the newest KEEP runs",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        base = nearest()
        if args.prune is not None:
            removed = prune(base, args.prune)
            kept = len(list_runs(base))
            if args.json:
                print(json.dumps({"removed": [str(path) for path in removed], "kept": kept}))
            else:
                print(f"removed {counted(len(removed), 'run')}, kept {counted(kept, 'run')}")
            return 0
        rows: list[dict[str, Any]] = [
            {
                "name": entry.path.name,
                "path": str(entry.path),
                "started_s": entry.started_s,
                "live": entry.live,
                "outcome": clean(entry.outcome, 40) or ("running" if entry.live else "killed"),
                "command": [clean(word) for word in entry.command],
                "size_bytes": size_bytes(entry.path),
            }
            for entry in list_runs(base)
        ]
        if args.json:
            print(json.dumps(rows, indent=2))
        elif not rows:
            print(f"there is no run below {BASE}/ yet; start one with `distdebug run`")
        else:
            _print(rows)
        return 0


def _print(rows: list[dict[str, Any]]) -> None:
    outcome = max(len("outcome"), *(len(row["outcome"]) for row in rows))
    name = max(len(row["name"]) for row in rows)
    print(f"{'run':<{name}}   {'started':<16}   {'outcome':<{outcome}}   {'size':>8}   command")
    for row in rows:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started_s"]))
        count = row["size_bytes"]
        size = f"{count / 2**20:.1f} MiB" if count >= 1 << 20 else f"{(count + 1023) >> 10} KiB"
        print(
            f"{row['name']:<{name}}   {started:<16}   {row['outcome']:<{outcome}}   "
            f"{size:>8}   {shlex.join(row['command'])}"
        )
