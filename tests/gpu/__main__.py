"""What `make gpu` runs: `python -m tests.gpu [--dry-run] [--only PART,...] [--out DIR]`.

Ends with 0 if all parts passed or were skipped, 1 if not, 2 if it was not begun.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from . import parts
from .runner import ROOT, Part, Runner, kill_descendants, table

DRIVER = Path("/dev/nvidiactl")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", default="", metavar="PART,...")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-results", metavar="DIR")
    asked = parser.parse_args()
    every = parts.parts(sys.executable)
    only = set(filter(None, asked.only.split(",")))
    if unknown := only - {part.name for part in every}:
        print(f"gpu: no such part: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [part for part in every if not only or part.name in only or part.needed]
    if asked.dry_run:
        print(plan(chosen), end="")
        return 0
    if not DRIVER.exists():
        print(
            "gpu: this machine has no NVIDIA GPU (`make gpu DRY=1` shows the parts)",
            file=sys.stderr,
        )
        return 2
    if not parts.WHEELS.is_dir():
        text = (
            f"gpu: there is no {parts.WHEELS.name}: bring it from where `make gpu-wheels` can run"
        )
        print(text, file=sys.stderr)
        return 2
    # A plugin of pytest's that only this machine has may warn, and warnings are errors.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # Ended from outside, it leaves nothing behind that keeps the GPU.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = Runner(asked.out, parts.TOTAL_S).run(chosen)
    finally:
        kill_descendants()
    print(table(results), end="")
    print(f"gpu: kept in {os.path.relpath(asked.out)}")
    return 0 if all(one.result in ("passed", "skipped") for one in results) else 1


def plan(chosen: list[Part]) -> str:
    """What would be run, and for how long at most."""
    rows = [f"{part.name:12} {part.limit_s:4.0f} s  {part.what}" for part in chosen]
    return "\n".join([*rows, f"{'all':12} {parts.TOTAL_S:4.0f} s"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
