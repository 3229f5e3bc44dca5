"""Tests of others, and torch's own: on stock torch, below the layer, and on distcore's backends.

    python -m tests.conformance.suites [--ranks N] [--mode MODE] [--limit SECONDS]
    python -m tests.conformance.suites FOLDER [--all] [--file NAME] [--mode MODE] [--limit SECONDS]

Runs torch's own suite, as it lies in the wheel; or the files of `suites.txt` that lie in FOLDER, or
with --all every test_*.py there. Prints a table; below it the tests that stock torch passes and
another mode does not, each with its reason where it cannot, and the files that the list names and
FOLDER has not. Exit code 1 if such a test has no reason, 2 if there is such a file. Nobody judges
the ranks: what is compared is what the tests themselves say.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from distdebug.hook import environment

from . import outcomes, wheel
from .outcomes import DETAIL, INFO, MODES, MPI, PASSED, STOCK, TCP, Outcome

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("suites.txt")
ONE_FILE = Path(__file__).with_name("one_file.py")
ENDED_BY_ITSELF = (0, 1, 5)
"""pytest's exit codes where all tests have been run: passed, failed, none."""
ON_TCP = ROOT / "tests" / "support" / "on_tcp"
TEST_LIMIT_S = 180
FILE_LIMIT_S = 3600.0
NOT_RUN = "not run"
RANKS = (2,)


def listed(folder: Path) -> tuple[list[Path], list[str]]:
    """The files of the list that lie in this folder; and those that do not, though it is the folder
    of their repository: files were renamed there, or the list names them wrongly."""
    found, missing = [], []
    for rows in by_folder().values():
        there = [folder / name for name in rows if (folder / name).is_file()]
        found += there
        if len(there) * 2 > len(rows):  # another repository may have a file of the same name
            missing += [name for name in rows if not (folder / name).is_file()]
    return found, missing


def by_folder() -> dict[tuple[str, str], list[str]]:
    """The files of the list, by repository and folder in it. Raises ValueError where a row of the
    list is not one of these, or stands there twice."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in LIST.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        repository, folder, name, *more = [*line.split(), "", ""]
        names = found.setdefault((repository, folder), [])
        if not name.endswith(".py") or any(more) or name in names:
            raise ValueError(f"{LIST.name}: not a repository, a folder and a new file: {line!r}")
        names.append(name)
    return found


def run(path: Path, folder: Path, mode: str, limit_s: float = FILE_LIMIT_S) -> Outcome:
    """One file, in processes of its own."""
    if mode == MPI:
        # Its tests start their ranks themselves, and MPI's ranks are mpiexec's to start.
        return Outcome(why="-")
    scratch = Path(tempfile.mkdtemp(prefix="distdebug-suites-"))
    try:
        return _run(path, folder, mode, limit_s, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(path: Path, folder: Path, mode: str, limit_s: float, scratch: Path) -> Outcome:
    results, log = scratch / "outcomes", scratch / "log"
    command = [
        *(sys.executable, str(ONE_FILE), "-q", str(path)),
        *("-c", os.devnull, "--rootdir", str(imported_from(folder)), "-p", "no:cacheprovider"),
        *("-p", "no:distdebug", "-p", "no:xdist", f"--timeout={TEST_LIMIT_S}"),
        *("-W", "default"),
    ]
    names = {**surroundings(mode, folder, scratch), outcomes.FILE: str(results)}
    code = outcomes.run_within(limit_s, command, names, imported_from(path.parent), log)
    found = outcomes.read(results)
    if code is None:
        return Outcome(found, f"not over in {limit_s:g} s")
    if code not in ENDED_BY_ITSELF:
        return Outcome(found, f"ended with {code}: {_last_line(log)}")
    return Outcome(found)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def imported_from(folder: Path) -> Path:
    """Where the modules of this folder are found: beside the package that it is in, if it is in
    one, whose own modules may be named like the standard library's (torchft has `multiprocessing`).
    """
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def surroundings(mode: str, folder: Path, scratch: Path) -> dict[str, str]:
    """The environment of the tests in this mode."""
    names = {name: value for name, value in os.environ.items() if name != "CI"}
    found = imported_from(folder)
    names["PYTHONPATH"] = os.pathsep.join([str(found), names.get("PYTHONPATH", "")]).strip(":")
    names |= {"OMP_NUM_THREADS": "1", "TEMP_DIR": str(scratch), "BACKEND": "gloo"}
    names["PYTHONHASHSEED"] = "0"  # tests that are made from a set are named alike in every mode
    if mode in (INFO, DETAIL):
        for part in ("ranks", "logs", "stacks"):
            (scratch / part).mkdir(mode=0o700)
        names = environment(names, scratch, "")
        names |= {"DISTDEBUG_LEVEL": mode, "DISTDEBUG_RAISE_OWN_FAULTS": "1"}
    if mode == TCP:
        names["PYTHONPATH"] = os.pathsep.join([str(ON_TCP), names["PYTHONPATH"], str(ROOT)])
        names["ON_TCP_EVERYWHERE"] = "1"
    return names


def worse(stock: Outcome, other: Outcome) -> list[str]:
    """The tests that stock torch passes, and this mode does not."""
    if other.why == "-":
        return []
    passed = (name for name, result in stock.tests.items() if result == PASSED)
    return sorted(name for name in passed if other.tests.get(name) != PASSED)


def table(rows: Mapping[str, Mapping[str, Outcome]], modes: Sequence[str]) -> str:
    """For people: a row a file, a column a mode; `*` where it is worse than stock."""
    lines = [("file", *modes)]
    for name, row in rows.items():
        marks = {mode: "*" if worse(row[STOCK], row[mode]) else "" for mode in modes}
        lines.append((name, *(f"{row[mode]}{marks[mode]}" for mode in modes)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(modes) + 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


Runs = Mapping[str, Callable[[str, Outcome], Outcome]]
"""By the name of a row: what runs it in a mode, given what came of it on stock torch (nothing, when
that is what is run)."""
Explained = Mapping[tuple[str, str], str]


def compare(rows: Runs, modes: Sequence[str], explained: Explained | None = None) -> int:
    """Run all and print the table, also of what had come when somebody interrupts it; 1 where a
    mode is worse than stock, and that is not `explained`, or where not all was run."""
    found = {name: {mode: Outcome(why=NOT_RUN) for mode in modes} for name in rows}
    try:
        for name, run_in in rows.items():
            for mode in modes:
                stock = Outcome() if mode == STOCK else found[name][STOCK]
                found[name][mode] = run_in(mode, stock)
                sys.stderr.write(f"{name} {mode}: {found[name][mode]}\n")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    sys.stdout.write(table(found, modes) + "\n")
    lost = [
        (f"{name} {mode}: {test}", test in row[mode].tests, (explained or {}).get((mode, test), ""))
        for name, row in found.items()
        for mode in modes
        for test in worse(row[STOCK], row[mode])
    ]
    if lost:
        lines = (_lost(*one) for one in lost)
        sys.stdout.write("\nWorse than stock:\n" + "\n".join(lines) + "\n")
    whole = all(one.why in ("", "-") for row in found.values() for one in row.values())
    return 0 if whole and all(ran and why for _, ran, why in lost) else 1


def _lost(what: str, ran: bool, why: str) -> str:
    if not ran:
        return f"{what}: {NOT_RUN}"
    return f"{what} ({why})" if why else what


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="suites", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the tests of others are")
    parser.add_argument("--all", action="store_true", help="every test_*.py of the folder")
    parser.add_argument("--file", action="append", default=[], help="this one alone; repeatable")
    parser.add_argument("--ranks", action="append", type=int, help="of torch's own; repeatable")
    parser.add_argument("--mode", action="append", choices=MODES[1:], help="repeatable")
    parser.add_argument("--limit", type=float, default=FILE_LIMIT_S, help="seconds for a file")
    asked = parser.parse_args(arguments)
    modes = (STOCK, *(asked.mode or MODES[1:]))
    if asked.folder is None:
        return compare(_of_the_wheel(asked.ranks or RANKS, asked.limit), modes, wheel.EXPLAINED)
    folder = asked.folder.expanduser().resolve()
    if asked.file:
        files, absent = [folder / name for name in asked.file], []
    else:
        files, absent = sorted(folder.rglob("test_*.py")), []
        if not asked.all:
            files, absent = listed(folder)
    missing = [str(path) for path in files if not path.exists()]
    if missing or not files:
        sys.stderr.write(f"no such tests: {', '.join(missing) or folder}; see {LIST}\n")
        return 2
    code = compare(_of_files(folder, files, asked.limit), modes)
    if absent:
        sys.stdout.write(f"\nNot run, for they are not in {folder}:\n" + "\n".join(absent) + "\n")
    return code or (2 if absent else 0)


def _of_the_wheel(ranks: Iterable[int], limit_s: float) -> Runs:
    """Two in three of its tests are for a GPU, and start ranks to say so: stock alone has them."""

    def run_in(number: int, mode: str, stock: Outcome) -> Outcome:
        tests = sorted(stock.those(PASSED))
        if mode != STOCK and not tests:  # without a list of tests, all would be run
            return Outcome(why=NOT_RUN)
        return wheel.run(wheel.ENVIRONMENTS[mode], number, tests=tests, limit_s=limit_s)

    return {f"torch's own, {number} ranks": partial(run_in, number) for number in ranks}


def _of_files(folder: Path, files: Iterable[Path], limit_s: float) -> Runs:
    def run_in(path: Path, mode: str, _: Outcome) -> Outcome:
        return run(path, folder, mode, limit_s)

    return {str(path.relative_to(folder)): partial(run_in, path) for path in files}


if __name__ == "__main__":
    sys.exit(main())
