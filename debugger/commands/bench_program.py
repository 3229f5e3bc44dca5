"""What the kinds of `distdebug bench` with ranks share: running the program, and what is kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DistdebugError, UsageError


def start(program: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run one of `debugger.benchmarks` that `forked` describes; what it prints: the first line says
    what is measured, each other one is a row. Raises DistdebugError when it fails."""
    module = f"{__package__.rpartition('.')[0]}.benchmarks.{program}"
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("DISTDEBUG_", "TORCH_D"))}
    variables["OMP_NUM_THREADS"] = "1"  # as torchrun does
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=variables,
        )
        assert process.stdout is not None
        try:
            for text in process.stdout:
                found: dict[str, Any] = json.loads(text)
                if "error" in found:
                    raise DistdebugError(f"{module}: {found['error']}")
                yield found
            if process.wait() < 0:
                raise DistdebugError(f"{module} was ended by signal {-process.returncode}")
            if process.returncode != 0:
                complaints.seek(0)
                said = complaints.read().decode(errors="backslashreplace").strip().splitlines()
                last = (said or ["it said nothing"])[-1]
                raise DistdebugError(f"{module} ended with {process.returncode}: {last[:300]}")
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its ranks
            process.wait()
            process.stdout.close()


def print_skipped(began: dict[str, Any]) -> None:
    """Say of each backend that is left out why; `began` is the first line of `start`."""
    for skipped in began["skipped"]:
        print(f"{skipped['backend']} is left out: {skipped['why']}")


def collect(
    lines: Iterator[dict[str, Any]],
    summarise: Callable[[dict[str, Any]], dict[str, Any]],
    line: Callable[[dict[str, Any]], str],
) -> tuple[list[dict[str, Any]], DistdebugError | None]:
    """Summarise the rows that remain of `lines`, printing each as it comes, and what ended them
    early: what was measured before is to be written nevertheless."""
    rows = []
    try:
        for row in lines:
            rows.append(summarise(row))
            print(line(rows[-1]), flush=True)
    except DistdebugError as error:
        return rows, error
    return rows, None


def described(began: dict[str, Any]) -> dict[str, Any]:
    """Where and with what was measured, as the JSON files of all kinds begin."""
    return {
        "python": platform.python_version(),
        "torch": began["torch"],
        "cores": os.cpu_count(),
        "backends": began["backends"],
        "skipped": began["skipped"],
    }


def write(file: Path | None, text: str) -> None:
    """Write a file that the user asked for, if so. Raises UsageError where it cannot be."""
    if file is None:
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
