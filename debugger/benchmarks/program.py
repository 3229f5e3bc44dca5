"""The part that kinds of `distdebug bench` with ranks share: running the program, and what is
kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DistdebugError, UsageError
from .comm_figures import baseline


def start(words: Sequence[str], request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a program of the kind that `forked` describes; what it prints: the first line says
    what is measured, each other one is a row. Raises DistdebugError when it fails."""
    module = words[-1]
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("DISTDEBUG_", "TORCH_D"))}
    variables["OMP_NUM_THREADS"] = "1"  # as torchrun does
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [*words, json.dumps(request)],
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


def begin(
    words: Sequence[str], request: dict[str, Any]
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """`start` the program and say which backends are left out, and why: where and with what is
    measured, as the JSON files of all kinds begin, and the rows as they come."""
    lines = start(words, request)
    began = next(lines)
    for skipped in began["skipped"]:
        print(f"{skipped['backend']} is left out: {skipped['why']}")
    return {
        "python": platform.python_version(),
        "torch": began["torch"],
        "cores": os.cpu_count(),
        "backends": began["backends"],
        "skipped": began["skipped"],
    }, lines


def compare(
    words: Sequence[str], request: dict[str, Any], schema: str, figures: Any, file: Path | None
) -> None:
    """Measure the backends in turns within request["budget_s"], print each row of the table as it
    comes, and write the `file` that the user asked for. `figures` is a module that makes figures of
    a row (`summarise`), the `heading` of the table, and its `line` of these figures. Raises
    DistdebugError when the measuring ended early, after what it had is written."""
    described, lines = begin(words, request)
    backends: list[str] = described["backends"]
    print("\n".join(figures.heading(backends)), flush=True)
    rows: list[dict[str, Any]] = []
    failure = None
    try:
        for row in lines:
            rows.append(figures.summarise(row, backends))
            print(figures.line(rows[-1]), flush=True)
    except DistdebugError as error:
        failure = error
    measured = {
        "schema": schema,
        **described,
        "budget_s": request["budget_s"],
        "baseline": baseline(backends),
        "rows": rows,
        "error": None if failure is None else str(failure),
    }
    write(file, measured)
    if failure is not None:
        raise failure


def write(file: Path | None, measured: dict[str, Any]) -> None:
    """Write the JSON file that the user asked for, if so. Raises UsageError where it cannot be."""
    if file is None:
        return
    try:
        file.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
