"""The answers of a plan beside its verdict: what the calls would cost on links, and, with `--scale
8:1024`, where the program depends on the number of its ranks: a real run beside the plan."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..record.runs.run_directory import RunDirectory
from .traffic_flags import add_link_flags, link_of

if TYPE_CHECKING:
    from ..plan.program import Program

PLAN_JSON = "plan.json"
SCHEMA = "distdebug.plan/1"
_SCALE = re.compile(r"([1-9]\d{0,6}):([1-9]\d{0,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of ranks that run, and of those that are planned."""

    run: int
    plan: int


def add_flags(group: argparse._ArgumentGroup) -> None:
    """`--scale`, and the link of the table."""
    group.add_argument(
        "--scale",
        type=_scale,
        metavar="A:B",
        help="run A ranks for real, plan B, and tell where the program depends on their number",
    )
    add_link_flags(group)


def _scale(text: str) -> Scale:
    found = _SCALE.fullmatch(text)
    if found is None:
        raise UsageError(f"--scale takes two numbers of ranks, such as 8:1024, not {text!r}")
    return Scale(int(found[1]), int(found[2]))


def planned_size(request: Any) -> int | None:
    """Returns how many ranks `--scale` has planned; None without it."""
    scale = request.own.scale
    if scale is None:
        return None
    if "nproc_per_node" in request.given:
        raise UsageError("--scale says how many ranks are planned: leave -n out")
    return int(scale.plan)


def run_really(request: Any) -> tuple[int, Path]:
    """Run the smaller number of ranks, as `distdebug run` does: the exit code, and the run
    directory."""
    from .run import RunCommand

    own = request.own
    words = ["-n", str(own.scale.run)]
    if own.run_dir is not None:
        words += ["--run-dir", str(_beside(own.run_dir, own.scale.run))]
    words += ["-m"] * bool(request.torchrun.module)
    words += [request.script, *request.script_arguments]
    command = RunCommand()
    code = command.run(command.parse(command.parser(), words))
    if own.run_dir is not None:
        return code, Path(_beside(own.run_dir, own.scale.run))
    return code, RunDirectory.latest()


def _beside(run_dir: Path, ranks: int) -> Path:
    return run_dir.with_name(f"{run_dir.name}-run-of-{ranks}")


def check(own: argparse.Namespace) -> None:
    """Raises UsageError for a link that cannot be, before anything runs."""
    link_of(own)


def tell(
    directory: RunDirectory,
    programs: Mapping[int, Program],
    report: Mapping[str, Any],
    own: argparse.Namespace,
    run: Path | None,
) -> None:
    """Write plan.json and traffic.txt; print the table where nothing is wrong, and the comparison
    where there is a run to compare with."""
    from ..plan.traffic import calls, document, table

    ranks = calls.of_programs(programs)
    found = table.traffic(ranks, link_of(own))
    written: dict[str, Any] = {
        "schema": SCHEMA,
        **{name: report.get(name) for name in ("plan", "undecided", "classes")},
        "traffic": document.as_json(found),
    }
    table_lines = list(document.lines(found))
    directory.write_text(directory.traffic_text.name, "\n".join(table_lines) + "\n")
    lines = table_lines if report["outcome"] == "ok" else []
    if run is not None:
        from ..plan.compare import document as comparison
        from ..plan.compare.comparison import compare
        from .compare import read

        side, real = read(str(run))
        compared = compare(real, ranks, link=link_of(own))
        sides = (side, comparison.Side(str(directory.path), is_plan=True))
        written["scale"] = comparison.as_json(compared, sides)
        lines += comparison.lines(compared, sides)
    directory.write_json(PLAN_JSON, written)
    if lines:
        sys.stderr.write("\n".join(lines) + "\n")
