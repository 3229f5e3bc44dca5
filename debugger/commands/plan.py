"""`distdebug plan`: run every rank's program on this machine, without its peers, and match them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UsageError
from ..record.runs.run_directory import RunDirectory
from . import flags, inject_flags, plan_sizes
from .base import Command
from .flags import add_link_flags, link_of

if TYPE_CHECKING:
    from ..faults.plan import Plan
    from ..launch.launchers import LauncherJob
    from ..launch.torchrun_flags import RunRequest
    from ..plan.program import Program
    from ..record.requests.plan_request import Request

WORD = "exec"
_RANKS = re.compile(r"-n.*|--nproc[-_]per[-_]node(=.*)?")
_NODES = re.compile(r"--(nodes|local[-_]size)(=.*)?")
_SCALE = re.compile(r"--scale(=.*)?")


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a command line of `plan`. `job` is what the command behind `exec` would start;
    None without it."""

    request: RunRequest
    job: LauncherJob | None = None
    command: tuple[str, ...] = ()

    @property
    def shown(self) -> list[str]:
        """The words behind `plan`, for reports."""
        if self.job is None:
            return self.request.command_line
        return [*self.request.own_arguments, WORD, "--", *self.command]


def read(argv: Sequence[str], own: argparse.ArgumentParser) -> Asked:
    """Raises UsageError as `split_command_line` does, and for a command that cannot be planned."""
    # Imported here, so that `--help` of other commands answers at once.
    from ..launch import launchers
    from ..launch.torchrun_flags import split_at_script, split_command_line

    if argv[:1] == [WORD] and argv[1:2] in (["-h"], ["--help"]):
        argv = argv[1:]
    if argv[:1] in (["-h"], ["--help"]) or WORD not in argv:
        return Asked(split_command_line(argv, own))
    given, rest = split_at_script(argv, own)
    if rest == [WORD] and not os.path.exists(WORD):
        raise UsageError(
            "no command was given; write one after `--`, "
            "for example: distdebug plan exec -- torchrun --nproc-per-node 8 train.py"
        )
    if rest[:1] != [WORD] or "--" not in rest:
        return Asked(split_command_line(argv, own))
    # `plan exec -n 4 -- CMD` means the same as `plan -n 4 exec -- CMD`.
    at = rest.index("--")
    more, behind = split_at_script(rest[1:at], own)
    if behind:
        raise UsageError(f"plan exec: write `--` before the command, not {behind[0]!r}")
    given = [flag for flag in given if flag != "--"] + more
    job = launchers.read(rest[at + 1 :])
    scaled = any(map(_SCALE.fullmatch, given))
    if job.starts_itself:
        if any(map(_RANKS.fullmatch, given)) or scaled:
            raise UsageError(
                "plan exec: the script says how many ranks it starts, so leave -n and --scale out"
            )
    elif not any(map(_RANKS.fullmatch, given)) and not scaled:
        if job.ranks is None:
            raise UsageError(f"how many ranks? {job.unsaid}: write `plan exec -n 64 -- ...`")
        given += ["-n", str(job.ranks)]
    if job.local_size is not None and not any(map(_NODES.fullmatch, given)):
        given += ["--local-size", str(job.local_size)]
    return Asked(split_command_line([*given, *job.program], own), job, tuple(rest[at + 1 :]))


PLAN_JSON = "plan.json"
SCHEMA = "distdebug.plan/1"
_TWO_SIZES = re.compile(r"([1-9]\d{0,6}):([1-9]\d{0,6})", re.ASCII)


class Scale(NamedTuple):
    """The number of ranks that run, and of those that are planned."""

    run: int
    plan: int

    @classmethod
    def parse(cls, text: str) -> Scale:
        """Reads `8:1024`. Raises UsageError."""
        found = _TWO_SIZES.fullmatch(text)
        if found is None:
            raise UsageError(f"--scale takes two numbers of ranks, such as 8:1024, not {text!r}")
        return cls(int(found[1]), int(found[2]))


def run_really(request: Any) -> tuple[int, Path]:
    """Run the smaller number of ranks, as `distdebug run` does: the exit code, and the run
    directory."""
    from .run import RunCommand

    own = request.own
    words = ["-n", str(own.scale.run)]
    beside = None
    if own.run_dir is not None:
        beside = own.run_dir.with_name(f"{own.run_dir.name}-run-of-{own.scale.run}")
        words += ["--run-dir", str(beside)]
    words += ["-m"] * bool(request.torchrun.module)
    words += [request.script, *request.script_arguments]
    command = RunCommand()
    code = command.run(command.parse(command.parser(), words))
    return code, RunDirectory.latest() if beside is None else beside


def tell(
    directory: RunDirectory,
    programs: Mapping[int, Program],
    report: Mapping[str, Any],
    own: argparse.Namespace,
    run: Path | None,
) -> None:
    """Write plan.json and traffic.txt; print the table where nothing is wrong, and the comparison
    where there is a run to compare with."""
    from ..plan import traffic

    ranks = traffic.of_programs(programs)
    found = traffic.traffic(ranks, link_of(own))
    written: dict[str, Any] = {
        "schema": SCHEMA,
        **{name: report.get(name) for name in ("plan", "undecided", "classes")},
        "traffic": traffic.as_json(found),
    }
    table_lines = list(traffic.lines(found))
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


UNDECIDED = ("likely", "true", "false")
ACCELERATORS = ("auto", "none", "cuda")


class PlanCommand(Command):
    name = "plan"
    epilog = (
        "examples:\n"
        "  distdebug plan -n 64 train.py --epochs 1\n"
        "  distdebug plan -n 1024 --local-size 8 --steps 2 -m package.train\n"
        "  distdebug plan --scale 8:1024 train.py      # run 8, plan 1,024, and compare them\n"
        "  distdebug plan --sizes dp=1..4,tp=1..2 train.py --tp {tp}   # the smallest that fails\n"
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
        group.add_argument(
            "--nodes", type=flags.count, metavar="M", help="spread the ranks over M nodes"
        )
        group.add_argument(
            "--local-size",
            type=flags.count,
            metavar="K",
            help="ranks on a node (default 8, or all)",
        )
        group.add_argument(
            "--steps",
            type=flags.count,
            default=0,
            metavar="K",
            help="end each rank after K steps of an optimizer (default: run the whole program)",
        )
        group.add_argument(
            "--ranks",
            default="",
            metavar="LIST",
            help="plan only these ranks, such as 0-7,1016-1023",
        )
        group.add_argument(
            "--jobs", type=flags.count, default=0, metavar="J", help="run J ranks at a time"
        )
        group.add_argument(
            "--real-bytes",
            type=flags.size_bytes,
            default=65536,
            metavar="B",
            help="exchange tensors of integers of up to B bytes for real (default 65536)",
        )
        group.add_argument(
            "--undecided",
            choices=UNDECIDED,
            default="likely",
            help="which branch to take if a condition depends on a value that the plan does not "
            "know: the likely one (default), or as if all such conditions were true, or false",
        )
        group.add_argument(
            "--time-limit",
            type=flags.seconds,
            default=120.0,
            metavar="S",
            help="stop a rank that runs for longer than S seconds (default 120)",
        )
        group.add_argument(
            "--memory",
            type=flags.mebibytes(1, 1e8),
            default=0.0,
            metavar="MB",
            help="memory for all ranks that wait for others (default: half of what is free, up to "
            "2.5 GiB, or an eighth of it); ranks beyond that are run again later",
        )
        group.add_argument(
            "--accelerator",
            choices=ACCELERATORS,
            default="auto",
            help="pretend on the CPU that there are GPUs: if the program is written for GPUs "
            "(default), never, or always",
        )
        group.add_argument(
            "--buffered-sends",
            type=flags.size_bytes,
            metavar="N",
            help="let sends return before their receives, up to N bytes for each pair of ranks "
            "(default: 0 on gloo, 8192 on tcp, 65536 on other backends)",
        )
        group.add_argument("--strict", action="store_true", help="fail for warnings, too")
        group.add_argument(
            "--orders",
            action="store_true",
            help="look at every order in which messages may come (for up to 200 s), and print the "
            "faults for `run --inject` that bring about one in which ranks are stuck",
        )
        group.add_argument(
            "--inject",
            dest="injected",
            action="append",
            default=[],
            metavar="SPEC",
            help="plan with a fault: ACTION(rank=N, ...) @ MOMENT, such as "
            "'skip(rank=7) @ all_reduce#5' (may be repeated)",
        )
        flags.add_ci(group)
        group.add_argument(
            "--scale",
            type=Scale.parse,
            metavar="A:B",
            help="run A ranks for real, plan B ranks, and print where their calls differ",
        )
        group.add_argument(
            "--sizes",
            type=plan_sizes.parse,
            metavar="LIST",
            help="plan many sizes, such as 2..16 ranks, or dp=1..8,tp=1,2,4 with {dp} and {tp} "
            "in the arguments of the script, and name the smallest that fails",
        )
        add_link_flags(group)
        group.add_argument("--run-dir", type=Path, metavar="DIR", help="where to keep the record")

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Everything behind the script is the script's, so argparse must not see it."""
        from ..launch.torchrun_flags import split_at_script

        if argv[:1] not in (["-h"], ["--help"]):
            axes, kept, rest = plan_sizes.divide(argv, lambda words: split_at_script(words, parser))
            if axes:
                if rest[:1] == [WORD] and not os.path.exists(WORD):
                    raise UsageError("--sizes plans a script: leave exec out")
                lines = plan_sizes.command_lines(axes, kept, rest)
                sizes = [(size, read(words, parser)) for size, words in lines]
                return argparse.Namespace(asked=sizes[0][1], sizes=sizes)
        return argparse.Namespace(asked=read(argv, parser), sizes=[])

    def run(self, args: argparse.Namespace) -> int:
        # Imported here, so that `plan --help` answers at once.
        from ..reports import text
        from ..supervisor.output.lines import colour_wanted

        own = args.asked.request.own
        if args.sizes:
            return _run_sizes(args.sizes)
        asked = _request(args.asked)
        ci = flags.ci_of(argparse.Namespace(**vars(own), breaks=(), pdb=False, tui=False))
        faults = _faults(own, asked)
        run = None
        if own.scale is not None:
            code, run = run_really(args.asked.request)
            if code:
                return code
        with closing(RunDirectory.create(explicit=own.run_dir)) as directory:
            programs, report = _planned(directory, args.asked, asked, faults)
        sys.stderr.write(text.render(report, ci is None and colour_wanted(sys.stderr)))
        tell(directory, programs, report, own, run)
        for failure in directory.failures:
            _say(failure)
        if ci is not None:
            ci.finish(directory, report, _say)
        return int(report["exit_code"])


def _run_sizes(sizes: Sequence[tuple[plan_sizes.Size, Asked]]) -> int:
    """Plans each size; tells how each ends, and all of the smallest that fails."""
    from ..reports import text
    from ..supervisor.output.lines import colour_wanted

    own = sizes[0][1].request.own
    for flag, given in (("--scale", own.scale), ("--ci", own.ci)):
        if given:
            raise UsageError(f"{flag} is for one size: leave it out, or --sizes")
    if own.run_dir is not None:
        own.run_dir.mkdir(mode=0o700, exist_ok=True)
    width = max(len(str(size)) for size, _ in sizes)
    outcomes: list[tuple[plan_sizes.Size, int]] = []
    smallest: Mapping[str, Any] | None = None
    for size, asked in sizes:
        request = _request(asked)
        place = None if own.run_dir is None else own.run_dir / size.folder
        with closing(RunDirectory.create(explicit=place)) as directory:
            programs, report = _planned(directory, asked, request, _faults(own, request))
            tell(directory, programs, {**report, "outcome": ""}, own, None)
        verdict = text.verdict_of(report)
        said = f"{verdict['title']}  {verdict['headline']}" if verdict else report["outcome"]
        print(f"{size!s:{width}}  {said}", file=sys.stderr)
        for failure in directory.failures:
            _say(failure)
        outcomes.append((size, int(report["exit_code"])))
        if report["exit_code"]:
            smallest = smallest or report
        elif place is None:
            shutil.rmtree(directory.path, ignore_errors=True)
    if smallest is not None:
        sys.stderr.write("\n" + text.render(smallest, colour_wanted(sys.stderr)))
    _say(plan_sizes.conclusion(outcomes))
    return 0 if smallest is None else int(smallest["exit_code"])


def _faults(own: argparse.Namespace, asked: Request) -> Plan | None:
    """A plan has no links, and nothing in it happens by chance."""
    chance = dict.fromkeys(("inject_file", "inject_random", "seed"))
    wanted = argparse.Namespace(injected=own.injected, inject_backend="gloo", netns=False, **chance)
    return inject_flags.plan(wanted, asked.world_size or None)


def _request(asked: Asked) -> Request:
    """Returns what the planner is asked for. Raises UsageError where the flags do not fit each
    other."""
    from ..plan.planner import chosen_ranks
    from ..record.requests.plan_request import Request

    request, job = asked.request, asked.job
    own = request.own
    if own.orders and own.ranks:
        raise UsageError("--orders needs the messages of all ranks: leave --ranks out")
    link_of(own)  # which may be one that cannot be: that is said before anything runs
    if job is not None and job.starts_itself:
        for flag, given in (("--ranks", own.ranks), ("--nodes", own.nodes)):
            if given:
                raise UsageError(
                    f"{flag} needs the number of ranks, which the script says: leave it out"
                )
        size, local_size = 0, own.local_size or 0
    else:
        size = _world_size(request)
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
    from ..plan.limits import ORDERS_S
    from ..plan.planner import plan_ranks, shown
    from ..plan.program import read_programs
    from ..plan.schedules import look_for_orders
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
        joined = any(program.groups for program in programs.values())
        ends = [program.events[-1] if program.events else None for program in programs.values()]
        well = all(
            getattr(end, "exit_code", 0) == 0 and getattr(end, "signal", None) is None
            for end in ends
        )
        if well and not joined:
            raise UsageError(
                f"none of the {len(programs)} processes that the script starts joined a group"
            )
        directory.write_json("run.json", {**told, "world_size": outcome.world_size})
    model = Model(own.buffered_sends, buffers=outcome.buffers)
    schedule = None
    if own.orders:

        def plan_again(specs: Sequence[str]) -> Mapping[int, Program]:
            """In a place of its own, which is not kept."""
            # A TemporaryDirectory would be removed by any process forked meanwhile, at its end.
            place = Path(tempfile.mkdtemp(dir=directory.path))
            try:
                with closing(RunDirectory.create(place / "base", place / "run")) as other:
                    injected = argparse.Namespace(injected=[*own.injected, *specs])
                    found = Injection(_faults(injected, request), other, lambda _: None)
                    its = {**request.environment, **found.environment}
                    its_request = replace(request, environment=its)
                    plan_ranks(other, its_request, itself, launch.run_leaving_nothing)
                    return read_programs(other.path)
            finally:
                shutil.rmtree(place, ignore_errors=True)

        until_s = time.monotonic() + ORDERS_S
        schedule = look_for_orders(programs, model, plan_again, until_s)
    facts = replace(facts, seconds=(time.time_ns() - started_ns) / 1e9)
    return programs, conclude(directory, programs, model, facts, injection.settle, schedule)


def _say(sentence: str) -> None:
    print(f"distdebug: {sentence}", file=sys.stderr)


def _world_size(request: RunRequest) -> int:
    if request.own.scale is not None:
        if "nproc_per_node" in request.given:
            raise UsageError("--scale says how many ranks are planned: leave -n out")
        return int(request.own.scale.plan)
    given = request.torchrun.nproc_per_node
    if not str(given).isdigit() or int(given) < 1:
        raise UsageError(f"-n {given}: a plan needs the number of all ranks, such as -n 64")
    if "nproc_per_node" not in request.given:
        raise UsageError("say how many ranks the job has, such as: distdebug plan -n 64 train.py")
    return int(given)


def _local_size(own: argparse.Namespace, size: int) -> int:
    nodes, local = own.nodes, own.local_size
    if nodes is None:
        return int(local) if local else min(8, size)
    if size % nodes:
        raise UsageError(f"--nodes {nodes}: {size} ranks are not the same number on each")
    if local and local * nodes != size:
        raise UsageError(f"--nodes {nodes} and --local-size {local} do not make {size} ranks")
    return int(size // nodes)
