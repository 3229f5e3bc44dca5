"""`distdebug bench`: measures, in one run, what watching costs, against stock torch; what the start
of a run costs, against torchrun; or how fast backends communicate."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..benchmarks import arguments as read
from ..benchmarks import comm_figures, latency_figures, program, start
from ..benchmarks.comm_figures import size_text
from ..errors import UsageError
from ..hook import loading
from . import flags
from .base import Command

SCHEMA = "distdebug.bench/1"
COMM_SCHEMA = "distdebug.bench.comm/1"
START_SCHEMA = "distdebug.bench.start/1"
REPLICAS_SCHEMA = "distdebug.bench.replicas/1"
REPLICAS_WAYS = ("run", "every_tenth", "every", "values")
BEATS_PER_S = 10
_WORLDS = (2, 4)
_DETAIL_WORLDS = (2, 4, 8)
_OVERHEAD_EPILOG = """\
The cost per call on the fake backend and on gloo (2 and 4 ranks; 4 B, 64 KiB, 16 MiB), and of a
small DDP training step; and of what comes before each call at DETAIL, against what torch itself
does there. Takes about two minutes. stock is torch without the layer, record the layer at OFF.

examples:
  distdebug bench overhead
  distdebug bench overhead --json overhead.json"""


_COMM_EPILOG = """\
The backends take turns: each round measures every one of them once, so that what else the machine
does hits all alike. Time is the median round, and in it the slowest rank's mean; sizes, algbw and
busbw are those of nccl-tests. A backend that this torch does not have is left out.
mpi runs in processes of its own (pip install 'distdebug[mpi]'), by Open MPI's settings: shared
memory within a host, and more ranks than cores allowed. Only, its ranks are not bound to cores and
yield while they wait: bound and spinning they suffer from whatever else runs.

examples:
  distdebug bench comm
  distdebug bench comm --backends mpi,tcp,gloo -n 2
  distdebug bench comm --backends tcp,gloo --ops all_reduce --sizes 1M:64M --factor 2 -n 2
  distdebug bench comm --backends tcp,tcp/tcp,gloo --ops all_reduce --sizes 4:64M --factor 4
  distdebug bench comm --sizes 4,64K,16M -n 2 --budget 30 --json comm.json
  distdebug bench comm --latency -n 2"""


_START_EPILOG = """\
A program with one call on two ranks is run by torchrun and by `distdebug run`, in turn, which takes
ten seconds a round. CPU time is that of all processes together. import is `import
torch.distributed` in the first rank, and modules are those of ours that it has before its first
group. Ratios and differences are of the two runs of a round; the figures are medians.

examples:
  distdebug bench start
  distdebug bench start -n 4 --rounds 9 --json start.json"""


_REPLICAS_EPILOG = """\
A small transformer is trained on gloo by DDP, FSDP2 and tensor parallel, ten steps at a time each
way in turn: by torch alone, below `run`, with `--check replicas --check-every 10` (every tenth),
with `--check replicas` (every), and with `--values --values-every 10` (values). Figures are medians
of the ratios to torch alone in the same round; on a busy machine trust those of CPU time.

examples:
  distdebug bench replicas
  distdebug bench replicas -n 4 --budget 300 --json replicas.json"""


@dataclass(frozen=True)
class BenchKind:
    """A kind of measurement: `distdebug bench NAME`."""

    help: str
    epilog: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class BenchCommand(Command):
    name = "bench"
    epilog = (
        "`distdebug bench WHAT --help` says more.\n"
        "\n"
        "examples:\n"
        "  distdebug bench overhead\n"
        "  distdebug bench comm --backends tcp,gloo --ops all_reduce"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
        for name, kind in KINDS.items():
            one = parsers.add_parser(
                name,
                help=kind.help,
                description=kind.help[:1].upper() + kind.help[1:] + ".",
                epilog=kind.epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            kind.configure(one)

    def run(self, args: argparse.Namespace) -> int:
        return KINDS[args.what].run(args)


def _overhead(args: argparse.Namespace) -> int:
    read.check_file(args.json)
    measured = measure()
    print("\n".join(table(measured)))
    program.write(args.json, measured)
    return 0


def measure() -> dict[str, Any]:
    """All figures. Raises DistdebugError when a measuring program fails or takes too long."""
    calls: list[dict[str, Any]] = []
    detail: list[dict[str, Any]] = []
    step: dict[str, Any] = {}
    request = {"backends": ["gloo"], "worlds": _WORLDS, "detail_worlds": _DETAIL_WORLDS}
    _, *rows = program.start(loading.command("benchmarks.overhead"), request)
    for row in rows:
        what, size = row["what"], row["world_size"]
        for name, costs in row["costs"].items():
            if what == "fake":
                # A wait is an entry into the layer of its own; torch's `send` is a call and a wait.
                entries = 2 if name == "send" or "wait" in name else 1
                where = {"backend": "fake", "world_size": 2, "op": name, "size_bytes": 64}
                calls.append({**where, "entries": entries, **costs})
            elif what == "calls":
                where = {"backend": "gloo", "world_size": size, "op": "all_reduce"}
                calls.append({**where, "size_bytes": int(name), "entries": 1, **costs})
            elif what == "detail":
                detail.append({"world_size": size, "size_bytes": int(name), **costs})
        if what == "step":
            step = row["costs"]
    percent = {"median": _percent(step, "added_us"), "fastest": _percent(step, "best_added_us")}
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "calls": calls,
        "detail": detail,
        "ddp_step": {"backend": "gloo", "world_size": 2, "info_percent": percent, **step},
    }


def table(measured: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    yield f"{'µs for one execution':44}{'median':^30}{'added by record and by INFO':^40}"
    yield f"{'':44}{'stock':>10}{'record':>10}{'INFO':>10}{'median round':^20}{'fastest round':^20}"
    for row in measured["calls"]:
        where = f"{row['backend']} x{row['world_size']}"
        yield _row(f"{where:9}{row['op']:27}{size_text(row['size_bytes']):>8}", row)
    step = measured["ddp_step"]
    yield _row("gloo x2  DDP training step", step)
    yield from _detail_table(measured["detail"])
    fake = [row for row in measured["calls"] if row["backend"] == "fake"]
    yield ""
    for name, key in (("median", "added_us"), ("fastest", "best_added_us")):
        yield (
            f"{name + ' round:':16}on the fake backend a synchronous call costs "
            f"{_span(fake, key, waited_for=False)} µs more, an asynchronous one that is waited for "
            f"{_span(fake, key, waited_for=True)} µs, the training step "
            f"{_percent(step, key):+.1f} %"
        )


def _span(rows: Sequence[dict[str, Any]], key: str, waited_for: bool) -> str:
    """Tells what INFO adds to the calls that are waited for by their handles, or to the synchronous
    ones, in µs: "2.9 to 3.4"."""
    added = [
        row["info"][key]
        for row in rows
        if (row["entries"] > 1) == waited_for and not row["op"].endswith("async")
    ]
    return f"{min(added):.1f} to {max(added):.1f}" if added else "?"


def _detail_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield ""
    yield (
        f"{'all_reduce, µs (median)':26}{'stock':>10}{'DETAIL':>10}{'torch DETAIL':>14}"
        f"{'added':>10}{'of torch':>10}{'of stock':>10}"
    )
    for row in rows:
        stock, ours, torch = row["stock"], row["detail"], row["torch_detail"]
        added = ours["added_us"]
        yield (
            f"gloo x{row['world_size']}{size_text(row['size_bytes']):>19}{stock['median_us']:11.1f}"
            f"{ours['median_us']:10.1f}{torch['median_us']:14.1f}{added:+10.1f}"
            f"{added / torch['added_us']:10.1%}{added / stock['median_us']:10.1%}"
        )


def _percent(step: dict[str, Any], key: str) -> float:
    """Returns what INFO adds to a step. The heartbeat beats beside stock's steps as well, so its
    share of a core comes on top."""
    stock_us: float = step["stock"]["median_us" if key == "added_us" else "best_us"]
    beats: float = step["heartbeat_us"] * BEATS_PER_S / 1e6
    added_us: float = step["info"][key]
    return (added_us / stock_us + beats) * 100


def _row(name: str, costs: dict[str, Any]) -> str:
    medians = "".join(f"{costs[way]['median_us']:10.1f}" for way in ("stock", "record", "info"))
    added = "".join(
        f"{costs[way][key]:+10.1f}"
        for key in ("added_us", "best_added_us")
        for way in ("record", "info")
    )
    return f"{name:44}{medians}{added}"


def _add_comm(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench comm`."""
    read.add_backends(parser, read.BACKENDS)
    parser.add_argument(
        "--ops",
        metavar="NAMES",
        help="of " + ", ".join(comm_figures.OPS) + " (default: all)",
    )
    parser.add_argument(
        "--sizes",
        default="4:64M",
        metavar="SIZES",
        help="bytes, such as 4,64K,1M; 4:64M is 4, 4*FACTOR, ... up to 64M (default: 4:64M)",
    )
    parser.add_argument(
        "--latency",
        action="store_true",
        help="measure ping-pongs: the median and the 99th percentile of one way, beside a wake-up "
        "and a copy of the data by this machine",
    )
    parser.add_argument("--factor", type=int, default=16, help="see --sizes (default: 16)")
    read.add_ranks(parser, "2,4,8")
    read.add_budget(parser, default_s=120.0)
    read.add_json(parser)


def _comm(args: argparse.Namespace) -> int:
    read.check_seconds(args.budget, "--budget")
    sizes, ranks = read.read_sizes(args.sizes, args.factor), read.read_ranks(args.ranks)
    backends = read.read_backends(args.backends)
    by_mpi = read.MPI_BACKEND in backends
    # A rank's two buffers, those of its partner below mpiexec, and what a backend sets aside.
    read.check_memory(max(sizes), max(ranks), 5 if by_mpi else 3)
    read.check_file(args.json)
    if args.latency and (args.ops or set(backends) & set(read.GPU_BACKENDS)):
        raise UsageError(
            "--latency measures ping_pong and nothing else, on the CPU; leave out --ops and "
            "backends of a GPU"
        )
    ops = comm_figures.PING_PONG if args.latency else args.ops or ",".join(comm_figures.OPS)
    request = {
        "backends": backends,
        "ops": read.read_names(ops, "--ops", list(comm_figures.OPS)),
        "latency": args.latency,
        "sizes": sizes,
        "ranks": ranks,
        "budget_s": args.budget,
    }
    words = loading.command("benchmarks.mpi" if by_mpi else "benchmarks.comm_ranks")
    figures = latency_figures if args.latency else comm_figures
    program.compare(words, request, COMM_SCHEMA, figures, args.json)
    return 0


def _add_start(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench start`."""
    parser.add_argument(
        "-n",
        type=flags.between(1, 64, "from 1 to 64 ranks"),
        default=2,
        metavar="N",
        dest="ranks",
        help="ranks (default: 2)",
    )
    parser.add_argument(
        "--rounds",
        type=flags.between(1, 1000, "from 1 to 1000 rounds"),
        default=5,
        metavar="N",
        help="pairs of runs that count (default: 5)",
    )
    read.add_json(parser)


def _start(args: argparse.Namespace) -> int:
    read.check_file(args.json)
    rows = list(start.rounds(args.ranks, args.rounds))
    figures = start.summary(rows)
    print("\n".join(_start_table(figures)))
    described = {"python": platform.python_version(), "cores": os.cpu_count(), "ranks": args.ranks}
    measured = {"schema": START_SCHEMA, **described, **figures, "rounds": rows}
    program.write(args.json, measured)
    return 0


def _start_table(figures: dict[str, dict[str, float]]) -> Iterator[str]:
    yield f"{'':24}{'torchrun':>10}{'distdebug':>11}{'added':>9}{'ratio':>8}"
    for name, words in (("wall_s", "wall, s"), ("cpu_s", "CPU, s"), ("import_s", "import, s")):
        one = figures[name]
        yield (
            f"{words:24}{one['torchrun']:10.2f}{one['distdebug']:11.2f}{one['added']:+9.2f}"
            f"{one['ratio']:8.2f}"
        )
    modules = figures["modules"]["distdebug"]
    yield f"{'modules of ours':24}{'':10}{modules:11.0f}"


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench replicas`."""
    ranks = flags.between(2, 64, "from 2 to 64 ranks")
    parser.add_argument(
        "-n", type=ranks, default=2, metavar="N", dest="ranks", help="ranks (default: 2)"
    )
    read.add_budget(parser, default_s=120.0)
    read.add_json(parser)


def _over_stock(taken: dict[str, list[float]], way: str) -> float:
    """Returns by how many percent a way takes more than torch alone: in the median round."""
    return 100 * (median(a / b for a, b in zip(taken[way], taken["stock"], strict=True)) - 1)


def _replicas(args: argparse.Namespace) -> int:
    read.check_seconds(args.budget, "--budget")
    read.check_file(args.json)
    request = {"backends": ["gloo"], "ranks": args.ranks, "budget_s": args.budget}
    described, lines = program.begin(loading.command("benchmarks.checked_training"), request)
    rows = []
    for row in lines:
        percent = {
            name: {key: _over_stock(row[key], name) for key in ("rounds_us", "cpu_us")}
            for name in REPLICAS_WAYS
        }
        rows.append({**row, "percent": percent})
        stock = row["rounds_us"]["stock"]
        print(
            f"{row['kind']}: {median(stock) / 1e4:.1f} ms a step, {len(stock)} rounds", flush=True
        )
        for name in REPLICAS_WAYS:
            wall, cpu = percent[name].values()
            words = name.replace("_", " ")
            print(f"  {words:14}{wall:+7.1f} % of time, {cpu:+7.1f} % of CPU time", flush=True)
    measured = {"schema": REPLICAS_SCHEMA, **described, "rows": rows}
    program.write(args.json, measured)
    return 0


KINDS = {
    "replicas": BenchKind(
        "measure what the check of replicas and values cost a training step",
        _REPLICAS_EPILOG,
        _add_replicas,
        _replicas,
    ),
    "start": BenchKind("measure what starting a run costs", _START_EPILOG, _add_start, _start),
    "overhead": BenchKind(
        "measure what watching costs", _OVERHEAD_EPILOG, read.add_json, _overhead
    ),
    "comm": BenchKind("measure how fast backends communicate", _COMM_EPILOG, _add_comm, _comm),
}
