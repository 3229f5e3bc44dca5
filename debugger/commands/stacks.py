"""`distdebug stacks`: shows where every rank stands, as one tree of all their stacks."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..diagnosis.facts.evidence import standing
from ..diagnosis.facts.world import World
from ..diagnosis.limits import Limits
from ..errors import DistdebugError, UsageError
from ..record.requests.breakpoints import stops
from ..record.requests.control import ControlError, ask
from ..record.requests.supervision import is_live
from ..record.runs.run_directory import RunDirectory, nearest
from ..record.safe_files import MOST_JSON_BYTES, read_regular
from ..record.safe_text import clean, whole_number
from ..record.snapshot import Snapshot
from ..system import proc
from ..system.processes import Tree
from .base import Command, add_run_argument
from .whole_job import opened_whole

TIMEOUT_S = 20.0
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class StacksCommand(Command):
    name = "stacks"
    epilog = (
        "Of a live run, or of the Python processes below any launcher's pid, the stacks are taken\n"
        "now, without stopping anybody; of a finished run they are those of its verdict.\n"
        "\n"
        "examples:\n"
        "  distdebug stacks\n"
        "  distdebug stacks 4711 --native      4711: the pid of torchrun, mpiexec, ..."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser, "; or the pid of any launcher")
        parser.add_argument(
            "--native", action="store_true", help="show C and C++ frames (pauses each rank shortly)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON, with every frame")

    def run(self, args: argparse.Namespace) -> int:
        pid = args.run or ""
        if pid.isdigit() and len(pid) < 8 and not (nearest() / pid).exists():
            ranks = ranks_below(int(pid))
            if ranks:
                return _show(ranks, "rank", args.native, args.json)
            found = {one: one for one in python_below(int(pid))}
            return _show(found, "pid", args.native, args.json)
        with opened_whole(args.run) as directory:
            if is_live(directory.path):
                return _live(directory, args.native, args.json)
            return _stored(directory, args.json)


def _stored(directory: RunDirectory, as_json: bool) -> int:
    text = _read(directory.stacks_text)
    shown = _read(directory.stacks_json) if as_json else text
    # The tree of no stacks is a JSON document, too: whether there are any the text tells.
    if not (text.strip() and shown.strip()):
        raise UsageError(
            f"{directory.path} has ended and holds no stacks: they are taken when a finding or "
            "Ctrl-C ends a run, of the ranks that are alive then"
        )
    sys.stdout.write(clean(shown, newlines=True))
    return 0


def _read(path: Path) -> str:
    """The text of a stored file; empty where there is none. Raises UsageError."""
    try:
        return read_regular(path, MOST_JSON_BYTES).decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _live(directory: RunDirectory, native: bool, as_json: bool) -> int:
    from ..record.exits import ExitLog
    from ..record.reading.records import Records
    from ..supervisor.machine.processes import ProcessTable

    records = Records(directory.ranks)
    records.look()
    snapshots = records.snapshots(ProcessTable(ExitLog(directory.exits)).observe)
    here = socket.gethostname()
    alive = {
        number: rank
        for snapshot in snapshots
        for number, rank in snapshot.ranks.items()
        if rank.process.alive
    }
    if not as_json:
        _show_breakpoints(directory.path, snapshots)
    if any(rank.node for rank in alive.values()):
        try:  # its supervisor has them taken on every node
            ask(directory.path, "stacks", {"native": native})
        except ControlError as error:
            raise DistdebugError(f"no stacks of the ranks on other nodes: {error}") from None
        return _stored(directory, as_json)
    pids = {rank.pid: number for number, rank in alive.items() if rank.host in ("", here)}
    if not pids:
        raise UsageError(f"no rank of {directory.path} is running on this host yet")
    return _show(pids, "rank", native, as_json, directory.stacks)


def _show_breakpoints(directory: Path, snapshots: Sequence[Snapshot]) -> None:
    """Prints which ranks stand at a breakpoint, and which wait for that."""
    for stop in stops(directory):
        print(stop.notice(str(directory)))
    for snapshot in snapshots:
        world = World(snapshot, None, Limits())
        for number in snapshot.ranks if world.paused else ():
            state = standing(world, number).state
            if number not in world.at_breakpoint:
                print(f"rank {number}: {clean(state)}")


def ranks_below(pid: int) -> dict[int, int]:
    """pid -> rank, of the processes at or below `pid` that a launcher has given a rank.

    A rank's own children inherit its environment: the process nearest to `pid` is the rank.
    """
    found: dict[int, int] = {}
    for one in python_below(pid):
        rank = None
        with contextlib.suppress(OSError):
            rank = whole_number(proc.environment(one).get("RANK"))
        if rank is not None and rank not in found.values():
            found[one] = rank
    return found


def python_below(pid: int) -> list[int]:
    """The Python processes at or below `pid`, parents before their children; without the launcher
    itself where it has any. Raises UsageError when there is no such process, or no Python."""
    tree = Tree()
    if not tree.lives(pid):
        raise UsageError(f"there is no process {pid}, and no run of that name")
    found = []
    for one in (pid, *tree.below(pid)):
        with contextlib.suppress(OSError):  # it has ended
            words = proc.command_line(one)
            helper = any(name in word for word in words for name in _HELPERS)
            found += [one] * (proc.is_python(one) and not helper)
    if not found:
        raise UsageError(f"neither process {pid} nor any below it is a Python process of yours")
    return found[1:] if found[0] == pid and len(found) > 1 else found


def _show(
    pids: Mapping[int, int], word: str, native: bool, as_json: bool, directory: Path | None = None
) -> int:
    from ..supervisor.stacks import stack_tree
    from ..supervisor.stacks.stacks import ThreadStack, capture

    problems: list[str] = []
    found = capture(pids, native, TIMEOUT_S, directory, problems)
    stacks: dict[int, Sequence[ThreadStack]] = {pids[pid]: found[pid] for pid in pids}
    for problem in problems:
        print(f"distdebug: {clean(problem)}", file=sys.stderr)
    if not any(stacks.values()):
        raise DistdebugError("no process could be looked at: they have ended meanwhile")
    if as_json:
        print(json.dumps({**stack_tree.to_json(stacks), "keys": word}, indent=2))
    else:
        sys.stdout.write(stack_tree.render(stacks, word))
    return 0
