"""`distdebug resume-check`: whether a program that was interrupted goes on as it would have."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..hook import loading
from ..record.runs.run_directory import BASE
from ..record.values import STOP
from ..record.wording import counted
from . import flags
from .base import Command
from .compare import compared, recorded_values, tolerance

if TYPE_CHECKING:
    from ..plan.compare.values_document import ValuesSide
    from ..record.values import RankValues

EXIT_DIFFERENT = 1
MOST_FILES = 200_000
_MOST_OUTPUT = 15
_LEFT_OUT = frozenset({BASE.name, ".git", "__pycache__", ".venv"})


class ResumeCheckCommand(Command):
    name = "resume-check"
    epilog = (
        "The program runs once through, and once more until it has saved, where all ranks end as\n"
        "if they were killed; then it is started again. What it trains is compared: parameters,\n"
        "optimizer state, hyper-parameters, losses. It must be deterministic, save below the\n"
        "present folder, and find no checkpoint there; the files that it makes are moved into the\n"
        "runs' folder. Exit code 0: it goes on as it would have; 1: it does not; 2: bad input.\n"
        "\n"
        "examples:\n"
        "  distdebug resume-check -n 4 train.py\n"
        "  distdebug resume-check -n 4 --save-at 3 --steps 6 train.py --save-every 3\n"
        "  distdebug resume-check -n 4 --resume-args '--resume ckpt.pt' train.py\n"
        "  distdebug resume-check -n 4 --resume-n 2 train.py"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "distdebug resume-check [flags] script [arguments]"
        parser.add_argument(
            "-n", "--nproc-per-node", dest="nproc", default="1", metavar="N", help="ranks to start"
        )
        parser.add_argument(
            "--save-at",
            type=flags.steps,
            metavar="K",
            help="the program saves behind this step (default: the first one behind which "
            "torch.save or torch.distributed.checkpoint was called)",
        )
        parser.add_argument(
            "--steps",
            type=flags.steps,
            metavar="S",
            help="compare up to this step (default: all that the program makes)",
        )
        parser.add_argument(
            "--resume-args",
            default="",
            metavar="'ARGS'",
            help="arguments of the script where it goes on, behind the others",
        )
        parser.add_argument("--resume-n", metavar="N", help="ranks where it goes on (default: -n)")
        parser.add_argument(
            "--rtol",
            type=tolerance,
            default=0.0,
            metavar="R",
            help="take relative differences up to R for rounding",
        )
        parser.add_argument(
            "--run-dir",
            type=Path,
            metavar="DIR",
            help=f"the folder of the three runs (default: a new one below {BASE.name}/)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("-m", action="store_true", help="the script is the name of a module")
        parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, args: argparse.Namespace) -> int:
        from ..plan.compare import values_document as document

        if not args.program:
            raise UsageError("no script given; write: distdebug resume-check -n 2 train.py")
        folder = args.run_dir or BASE / f"resume-check-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise UsageError(f"--run-dir {folder}: {error.strerror}") from None
        program = [*(["-m"] if args.m else []), *args.program]
        runs = Runs(folder, files_here(), quiet=args.json)
        through, one = runs.run("through", args.nproc, program, args.steps)
        last = min(max(values.steps) for values in one.values())
        first = args.save_at or min(_saves(one))
        if first >= last:
            raise UsageError(
                f"the program makes no step behind the save at step {first}: let it run longer"
            )
        runs.move_files("through")
        _, before = runs.run("interrupted", args.nproc, program, first + 1)
        saved = max(_saves(before, first))
        again = [*program, *shlex.split(args.resume_args)]
        number = args.resume_n or args.nproc
        try:
            resumed, other = runs.run("resumed", number, again, last - saved)
        except RunFailedError as error:
            print(f"DIFFERENT  the run that goes on has failed: {error}")
            return EXIT_DIFFERENT
        finally:
            runs.move_files("resumed")
        found = compared(one, other, saved, args.rtol)
        sides = (through, resumed)
        if args.json:
            print(json.dumps({"saved_at": saved} | document.as_json(found, sides), indent=2))
        else:
            print(
                f"A ran through; B went on from what was saved behind step {saved}: its step 1 is "
                f"step {saved + 1} of A\n" + "\n".join(document.lines(found, sides))
            )
        return EXIT_DIFFERENT if found.first else 0


class RunFailedError(UsageError):
    """A run has ended in another way than well."""


@dataclass(frozen=True)
class Runs:
    """The runs of a check, in a `folder`, with what was `before` in the present folder."""

    folder: Path
    before: Mapping[Path, tuple[int, int]]
    quiet: bool

    def run(
        self, name: str, ranks: str, program: Sequence[str], stop: int | None
    ) -> tuple[ValuesSide, dict[int, RankValues]]:
        """Runs the program until it ends, or behind step `stop`. Raises RunFailedError."""
        directory = self.folder / name
        words = ["run", "--values", "--run-dir", str(directory), "-n", ranks, *program]
        if not self.quiet:
            print(f"{name}: distdebug {shlex.join(words)}", flush=True)
        done = subprocess.run(
            loading.command("cli", *words),
            env={**os.environ, **({} if stop is None else {STOP: str(stop)})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        try:
            side, values = recorded_values(str(directory))
        except UsageError:
            values = {}
        reached = min((max(one.steps) for one in values.values()), default=0)
        if not values or (done.returncode and reached != stop):
            last = "\n".join(done.stdout.splitlines()[-_MOST_OUTPUT:])
            if not done.returncode:
                last = "no optimizer has made a step in it"
            raise RunFailedError(f"{name}: exit code {done.returncode}: {last}")
        return side, values

    def move_files(self, name: str) -> None:
        """Moves what the program has made since into the runs' folder. Raises UsageError where it
        has changed what was there."""
        now = files_here()
        changed = [path for path, state in self.before.items() if now.get(path, state) != state]
        runs = self.folder.resolve()  # which may lie in the present folder
        made = [
            path
            for path in now
            if path not in self.before and not path.absolute().is_relative_to(runs)
        ]
        for path in made:
            target = self.folder / f"files-{name}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        for parent in sorted({one for path in made for one in path.parents}, reverse=True):
            if parent != Path() and not any(parent in one.parents for one in self.before):
                _remove_empty(parent)
        if changed:
            raise UsageError(
                f"the program has written {counted(len(changed), 'file')} anew that "
                f"{'was' if len(changed) == 1 else 'were'} there before, such as {changed[0]}: it "
                "may have begun from them; move them away first"
            )


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        print(f"distdebug: {folder} is left: it is not empty", file=sys.stderr)


def files_here() -> dict[Path, tuple[int, int]]:
    """Returns the time of the last change and the size of each file in and below the present
    folder, but for the file that this command's own output goes to. Raises UsageError where there
    are too many."""
    found: dict[Path, tuple[int, int]] = {}
    streams = []
    for one in (1, 2):
        with suppress(OSError):  # it may be closed
            streams.append(os.fstat(one))
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(folder, name)
            state = path.lstat()
            if any(os.path.samestat(state, stream) for stream in streams):
                continue
            found[path] = (state.st_mtime_ns, state.st_size)
        if len(found) > MOST_FILES:
            raise UsageError(
                f"there are more than {MOST_FILES:,} files in and below this folder, and the ones "
                "that the program makes must be told from them: start it in a folder of its own"
            )
    return found


def _saves(ranks: Mapping[int, RankValues], said: int = 0) -> set[int]:
    """The steps behind which the program has saved; `said`: one, if nothing else is known."""
    saves = {step for one in ranks.values() for step in one.saves if step} or {said} - {0}
    if not saves:
        raise UsageError(
            "the program has never called torch.save or torch.distributed.checkpoint behind a "
            "step: if it saves in another way, --save-at says behind which step"
        )
    return saves
