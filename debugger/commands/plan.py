"""`distdebug plan`: run every rank's program on this machine, without its peers, and match them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from . import ci_flags, inject_flags, numbers, plan_exec, plan_scale
from .base import Command

if TYPE_CHECKING:
    from ..faults.plan import Plan
    from ..plan.program import Program
    from ..record.requests.plan_request import Request
    from ..record.runs.run_directory import RunDirectory
    from .plan_exec import Asked

UNDECIDED = ("likely", "true", "false")
ACCELERATORS = ("auto", "none", "cuda")


class PlanCommand(Command):
    name = "plan"
    epilog = (
        "examples:\n"
        "  distdebug plan -n 64 train.py --epochs 1\n"
        "  distdebug plan -n 1024 --local-size 8 --steps 2 -m package.train\n"
        "  distdebug plan --scale 8:1024 train.py      # run 8, plan 1,024, and compare them\n"
        "  distdebug plan exec -- torchrun --nnodes 4 --nproc-per-node 8 train.py\n"
        "  distdebug plan exec -- python spawn_train.py   # which starts its ranks itself\n"
        "\n"
        "Every rank's program runs, a few at a time; nothing goes over a wire. Small values that\n"
        "steer a program are exchanged for real, all others are stood in for. A decision that\n"
        "depends on one of those is told as undecided, with its line."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = (
            "distdebug plan -n N [flags] script [arguments]\n"
            "       distdebug plan exec [flags] -- command [arguments]"
        )
        parser.add_argument("-n", metavar="N", dest="nproc", help="ranks of the whole job")
        group = parser.add_argument_group("distdebug")
        _add_which(group)
        _add_how(group)
        group.add_argument("--strict", action="store_true", help="fail for warnings, too")
        group.add_argument(
            "--inject",
            dest="injected",
            action="append",
            default=[],
            metavar="SPEC",
            help="what would it do if: ACTION(rank=N, ...) @ MOMENT, such as "
            "'skip(rank=7) @ all_reduce#5' (may be repeated)",
        )
        ci_flags.add(group)
        plan_scale.add_flags(group)
        group.add_argument("--run-dir", type=Path, metavar="DIR", help="where to keep the record")

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Everything behind the script is the script's, so argparse must not see it."""
        return argparse.Namespace(asked=plan_exec.read(argv, parser))

    def run(self, args: argparse.Namespace) -> int:
        # Imported here, so that `plan --help` answers at once.
        from ..record.runs.run_directory import RunDirectory
        from ..reports import text
        from ..supervisor.output.lines import colour_wanted

        own = args.asked.request.own
        asked = _request(args.asked)
        ci = ci_flags.chosen(argparse.Namespace(**vars(own), breaks=(), pdb=False, tui=False))
        faults = inject_flags.plan(_with_no_other_faults(own), asked.world_size or None)
        run = None
        if own.scale is not None:
            code, run = plan_scale.run_really(args.asked.request)
            if code:
                return code
        directory = RunDirectory.create(explicit=own.run_dir)
        try:
            programs, report = _planned(directory, args.asked, asked, faults)
        finally:
            directory.close()
        sys.stderr.write(text.render(report, ci is None and colour_wanted(sys.stderr)))
        plan_scale.tell(directory, programs, report, own, run)
        for failure in directory.failures:
            _say(failure)
        if ci is not None:
            ci.finish(directory, report, _say)
        return int(report["exit_code"])


def _request(asked: Asked) -> Request:
    """Returns what the planner is asked for. Raises UsageError where the flags do not fit each
    other."""
    from ..plan.planner import chosen_ranks
    from ..record.requests.plan_request import Request

    request, job = asked.request, asked.job
    own = request.own
    plan_scale.check(own)
    if job is not None and job.starts_itself:
        plan_exec.check_of_itself(own)
        size, local_size = 0, own.local_size or 0
    else:
        size = plan_scale.planned_size(request) or _world_size(request)
        local_size = _local_size(own, size)
    try:
        ranks = chosen_ranks(own.ranks, size) if own.ranks else ()
    except ValueError as error:
        raise UsageError(f"--ranks {own.ranks}: {error}") from error
    return Request(
        target=request.script,
        arguments=tuple(request.script_arguments),
        world_size=size,
        is_module=bool(request.torchrun.module),
        local_size=local_size,
        ranks=ranks,
        environment={} if job is None else job.environment,
        steps=own.steps,
        jobs=own.jobs,
        real_bytes=own.real_bytes,
        undecided=own.undecided,
        time_s=own.time_limit,
        memory_bytes=int(own.memory * (1 << 20)),
        accelerator=own.accelerator,
    )


def _planned(
    directory: RunDirectory, asked: Asked, request: Request, faults: Plan | None
) -> tuple[Mapping[int, Program], dict[str, Any]]:
    """The ranks are run into this directory; their programs, and the report on them."""
    from ..diagnosis.facts.blocking import Model
    from ..plan.conclusion import PlanFacts, conclude
    from ..plan.planner import plan_ranks, shown
    from ..plan.program import read_programs
    from ..supervisor.command import launch
    from ..supervisor.injection import Injection

    own = asked.request.own
    itself = asked.job is not None and asked.job.starts_itself
    started_ns = time.time_ns()
    command = shown(asked.shown)
    told = {"command": command, "world_size": request.world_size, "started_ns": started_ns}
    directory.write_json("run.json", told)
    injection = Injection(faults, directory, _say)
    environment = {**request.environment, **injection.environment}
    request = replace(request, environment=environment)
    # A plan is a simulation: of the daemons of its programs, too, nothing may be left.
    outcome = plan_ranks(directory, request, itself, launch.run_leaving_nothing)
    facts = PlanFacts(
        command=command,
        of=request.world_size or outcome.world_size,
        cores=own.jobs or len(os.sched_getaffinity(0)),
        seconds=(time.time_ns() - started_ns) / 1e9,
        steps=own.steps,
        strict=own.strict,
        accelerator=outcome.accelerator,
    )
    programs = read_programs(directory.path)
    if itself:
        plan_exec.check_programs(programs)
        directory.write_json("run.json", {**told, "world_size": outcome.world_size})
    model = Model(own.buffered_sends, unbuffered=outcome.unbuffered)
    return programs, conclude(directory, programs, model, facts, injection.settle)


def _with_no_other_faults(own: argparse.Namespace) -> argparse.Namespace:
    """A plan has no links, and nothing in it happens by chance."""
    return argparse.Namespace(
        injected=own.injected,
        inject_file=None,
        inject_random=None,
        inject_backend="gloo",
        netns=False,
        seed=None,
    )


def _say(sentence: str) -> None:
    print(f"distdebug: {sentence}", file=sys.stderr)


def _world_size(request: object) -> int:
    given = getattr(request, "torchrun").nproc_per_node  # noqa: B009
    if not str(given).isdigit() or int(given) < 1:
        raise UsageError(f"-n {given}: a plan needs the number of all ranks, such as -n 64")
    if "nproc_per_node" not in getattr(request, "given"):  # noqa: B009
        raise UsageError("say how many ranks the job has, such as: distdebug plan -n 64 train.py")
    return int(given)


def _add_which(group: argparse._ArgumentGroup) -> None:
    """Adds the flags for which ranks, how far, and how many at a time."""
    group.add_argument(
        "--nodes", type=numbers.count, metavar="M", help="spread the ranks over M nodes"
    )
    group.add_argument(
        "--local-size",
        type=numbers.count,
        metavar="K",
        help="ranks on a node (default 8, or all)",
    )
    group.add_argument(
        "--steps",
        type=numbers.count,
        default=0,
        metavar="K",
        help="end each rank after K steps of an optimiser (default: where it ends by itself)",
    )
    group.add_argument(
        "--ranks",
        default="",
        metavar="LIST",
        help="plan these only, such as 0-7,1016-1023; nothing is known of the others",
    )
    group.add_argument(
        "--jobs", type=numbers.count, default=0, metavar="J", help="run J ranks at a time"
    )


def _add_how(group: argparse._ArgumentGroup) -> None:
    """Adds the flags for how a rank runs without its peers."""
    group.add_argument(
        "--real-bytes",
        type=numbers.size_bytes,
        default=65536,
        metavar="B",
        help="exchange tensors of integers of up to B bytes for real (default 65536)",
    )
    group.add_argument(
        "--undecided",
        choices=UNDECIDED,
        default="likely",
        help="which way to go where a decision depends on a value that a plan does not have: "
        "the likely one (default), or as if every such condition were true, or false",
    )
    group.add_argument(
        "--time-limit",
        type=numbers.seconds,
        default=120.0,
        metavar="S",
        help="give a rank up that runs for longer than S seconds (default 120)",
    )
    group.add_argument(
        "--memory",
        type=numbers.mebibytes(1, 1e8),
        default=0.0,
        metavar="MB",
        help="what all ranks that wait for others may have together (default: half of what "
        "is free, up to 2.5 GiB, or an eighth of it); those beyond it are run again later",
    )
    group.add_argument(
        "--accelerator",
        choices=ACCELERATORS,
        default="auto",
        help="answer calls for cuda, on the CPU: where the program, as its script and its own "
        "modules say, is for GPUs (default), never, or always",
    )
    group.add_argument(
        "--buffered-sends",
        type=numbers.size_bytes,
        metavar="N",
        help="sends of up to N bytes a channel do not wait for their receives (default: as the "
        "backend does: none on gloo and tcp, which never send before, 65536 on others)",
    )


def _local_size(own: argparse.Namespace, size: int) -> int:
    nodes, local = own.nodes, own.local_size
    if nodes is None:
        return int(local) if local else min(8, size)
    if size % nodes:
        raise UsageError(f"--nodes {nodes}: {size} ranks are not the same number on each")
    if local and local * nodes != size:
        raise UsageError(f"--nodes {nodes} and --local-size {local} do not make {size} ranks")
    return int(size // nodes)
