"""`distdebug bench comm`: the definitions, what is refused, table and plot, and the real thing."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdebug.benchmarks import arguments as bench_arguments
from distdebug.benchmarks import comm_figures, comm_ranks, forked, latency_figures, program
from distdebug.errors import DistdebugError
from tests.benchmarks import comm_plot
from tests.support.torch_loaded import TorchLoaded
from tests.unit.benchmarks.bench_command import bench_command, refusal

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather_into_tensor", 4, 0.75),
        ("reduce_scatter_tensor", 2, 0.5),
        ("all_to_all_single", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("send_recv", 4, 1.0),
    ],
)
def test_bus_factor(op: str, ranks: int, factor: float) -> None:
    assert comm_figures.OPS[op].moved(ranks) == factor


@pytest.mark.parametrize(
    ("text", "factor", "sizes"),
    [
        ("4:64M", 16, [4, 64, KIB, 16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB]),
        ("4:4K", 4, [4, 16, 64, 256, KIB, 4 * KIB]),
        ("4:100", 10, [4, 40]),
        ("64k, 4,1MiB,4", 16, [4, 64 * KIB, MIB]),
        ("1G", 2, [1 << 30]),
    ],
)
def test_sizes(text: str, factor: int, sizes: list[int]) -> None:
    assert bench_arguments.read_sizes(text, factor) == sizes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "4:6X"], "--sizes 4:6X: '6X' is no size; write bytes, or with K, M, G, "),
        (["--sizes", ""], "--sizes : '' is no size"),
        (["--sizes", "-4"], "--sizes -4: '-4' is no size"),
        (["--sizes", "0:4"], "--sizes 0:4: 0 is not between 1 byte and 16G"),
        (["--sizes", "4:999999999999G"], "999999999999G is not between 1 byte and 16G"),
        (["--sizes", "4:5:6"], "'5:6' is no size"),
        (["--sizes", "64K:4"], "--sizes 64K:4: 64K is more than 4; the smaller comes first"),
        (["--sizes", "1.5M"], "'1.5M' is no size"),
        (["--factor", "1"], "--factor 1 leads nowhere; give 2 or more"),
        (["--factor", "x"], "argument --factor: invalid int value: 'x'"),
        (["-n", "1"], "-n 1: '1' is no number of ranks from 2 to 64; write them as 2,4,8"),
        (["-n", "2,65"], "'65' is no number of ranks"),
        (["-n", "2²"], "'2²' is no number of ranks"),
        (["-n", "2,2"], "-n 2,2 has 2 twice; once is enough"),
        (["--ops", "all_reduce,"], "--ops 'all_reduce,' has an empty part"),
        (["--ops", "allreduce"], "--ops allreduce: 'allreduce' is none of all_reduce, broadcast"),
        (["--backends", "ucc"], "--backends ucc: 'ucc' is none of tcp, gloo, mpi, distcore_nccl"),
        (["--backends", "mpi/sm"], "'mpi/sm' cannot be; only tcp takes a transport"),
        (["--backends", "gloo/tcp"], "'gloo/tcp' cannot be; only tcp takes a transport, one of"),
        (["--backends", "tcp/"], "only tcp takes a transport, one of tcp/auto, tcp/tcp, tcp/shm"),
        (["--budget", "0"], "--budget 0 is not between 0 and 86400 seconds"),
        (["--budget", "nan"], "--budget nan is not between"),
        (["--sizes", "16G", "-n", "64"], "16 GiB on 64 ranks take about 3072 GiB of memory, and"),
        (["--latency", "--ops", "barrier"], "--latency measures ping_pong and nothing else"),
        (["--json", "/no/such/file.json"], "/no/such is not a directory; name a file in one"),
    ],
)
def test_what_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refusal("comm", *arguments)


def test_backends() -> None:
    names = bench_arguments.read_backends("tcp, tcp/tcp,gloo,mpi")
    assert names == ["tcp", "tcp/tcp", "gloo", "mpi"]
    assert comm_figures.baseline(names) == "gloo"
    assert comm_figures.baseline(["tcp", "tcp/tcp"]) == "tcp/tcp"


def _row(op: str, size_bytes: int, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    def taken(rounds_us: list[float]) -> dict[str, Any]:
        return {"executions": 7, "rounds_us": rounds_us, "cpu_us": [5.0] * len(rounds_us)}

    return {
        "op": op,
        "ranks": 4,
        "size_bytes": size_bytes,
        "backends": {"tcp": taken(ours), "gloo": taken(theirs)},
    }


BACKENDS = ["tcp", "gloo"]


def test_figures() -> None:
    row = _row("all_reduce", 1_000_000, [100.0, 300.0, 200.0], [400.0, 1500.0, 600.0])
    summary = comm_figures.summarise(row, BACKENDS)
    assert summary["rounds"] == 3
    assert summary["backends"]["tcp"] == {
        "time_us": 200.0,
        "algbw_gb_s": 5.0,
        "busbw_gb_s": 7.5,
        "speedup": 4.0,
        "cpu_us": 5.0,
        "executions": 7,
        "rounds_us": [100.0, 300.0, 200.0],
    }
    assert summary["backends"]["gloo"]["speedup"] == 1.0


def test_table() -> None:
    above, below = comm_figures.heading(BACKENDS)
    assert above.split() == ["(bandwidths", "in", "GB/s)", "tcp", "gloo"]
    bandwidths = _row("broadcast", 64 * KIB, [65.536], [6553.6])
    line = comm_figures.line(comm_figures.summarise(bandwidths, BACKENDS))
    # fmt: off
    assert line.split() == [
        "broadcast", "4", "64", "KiB", "1",
        "65.5", "1.00", "1.00", "5.0", "100.00x",
        "6553.6", "0.01", "0.01", "5.0",
    ]
    # fmt: on
    assert len(line) == len(below)
    barrier = comm_figures.line(
        comm_figures.summarise(_row("barrier", 0, [50.0], [100.0]), BACKENDS)
    )
    # fmt: off
    assert barrier.split() == [
        "barrier", "4", "-", "1", "50.0", "-", "-", "5.0", "2.00x", "100.0", "-", "-", "5.0",
    ]
    # fmt: on


def test_latency() -> None:
    row = _row("ping_pong", 1000, [20.0], [80.0])
    for name, (p50_us, p99_us) in {"tcp": (20.0, 50.0), "gloo": (80.0, 400.0)}.items():
        row["backends"][name] |= {"p50_us": p50_us, "p99_us": p99_us}
    row |= {"wake_up": {"p50_us": 4.0}, "copy": {"p50_us": 1.0}}
    summary = latency_figures.summarise(row, BACKENDS)
    assert (summary["wake_up_us"], summary["copy_us"], summary["copy_gb_s"]) == (2.0, 0.5, 2.0)
    tcp = summary["backends"]["tcp"]
    assert (tcp["p50_us"], tcp["p99_us"], tcp["of_limit"]) == (10.0, 25.0, 0.25)
    _above, below = latency_figures.heading(BACKENDS)
    line = latency_figures.line(summary)
    assert line.split()[7:] == ["10.0", "25.0", "25%", "4.00x", "40.0", "200.0", "6%"]
    assert len(line) == len(below)


@pytest.mark.parametrize(("percent", "us"), [(50, 2e6), (99, 4e6), (1, 1e6)])
def test_percentiles(percent: int, us: float) -> None:
    assert forked.percentile([4.0, 1.0, 3.0, 2.0], percent) == us


def _plot(rows: list[dict[str, Any]], title: str = "a plot") -> ElementTree.Element:
    summaries = [comm_figures.summarise(row, BACKENDS) for row in rows]
    return ElementTree.fromstring(comm_plot.plot(summaries, BACKENDS, title))  # well-formed


_SVG = "{http://www.w3.org/2000/svg}"


def test_plot() -> None:
    rows = [
        _row(op, size, [10.0 + size / 100], [100.0 + size / 10])
        for op in ("all_reduce", "broadcast")
        for size in (4, 4 * KIB, MIB)
    ]
    drawing = _plot([*rows, _row("barrier", 0, [5.0], [6.0])], "1 < 2 & 3")
    texts = [text.text for text in drawing.iter(f"{_SVG}text")]
    assert {"1 < 2 & 3", "tcp", "gloo", "all_reduce, 4 ranks", "broadcast, 4 ranks"} <= set(texts)
    assert {"4 B", "1 MiB", "10 µs", "1 ms"} <= set(texts)
    lines = [line.get("points", "").split() for line in drawing.iter(f"{_SVG}polyline")]
    assert [len(points) for points in lines] == [3, 3, 3, 3]
    for points in lines:
        places = [tuple(map(float, point.split(","))) for point in points]
        assert all(comm_plot.LEFT <= x <= comm_plot.WIDTH - comm_plot.RIGHT for x, _ in places)
        assert all(comm_plot.TOP <= y <= comm_plot.HEIGHT - comm_plot.BOTTOM for _, y in places)
        heights = [y for _, y in places]
        assert heights == sorted(heights, reverse=True)  # slower is higher up
    fast, slow = (float(lines[index][0].split(",")[1]) for index in (0, 1))
    assert slow < fast


@pytest.mark.parametrize("rows", [[], [_row("all_reduce", 4, [10.0], [10.0])]])
def test_plot_of_next_to_nothing(rows: list[dict[str, Any]]) -> None:
    assert len(list(_plot(rows).iter(f"{_SVG}polyline"))) == 2 * len(rows)


@pytest.mark.parametrize(
    ("op", "asked", "size"),
    [
        ("all_reduce", 1, 4),
        ("all_reduce", 6, 8),
        ("all_gather_into_tensor", 4, 12),
        ("all_to_all_single", 64, 72),
        ("send_recv", 64, 64),
        ("barrier", 64, 0),
    ],
)
def test_the_size_that_is_moved(op: str, asked: int, size: int) -> None:
    assert comm_figures.true_size(op, asked, 3) == size


def test_wrong_data_is_noticed() -> None:
    call = comm_ranks.make("all_reduce", 16, rank=1, ranks=2)
    replies = iter([3.0, 2.0])

    def reduce(_group: object) -> None:
        assert call.source.tolist() == [2.0] * 4
        call.source.fill_(next(replies))

    answering = comm_ranks.MeasuredCall(reduce, call.source, call.target, call.rank, call.expected)
    assert answering.is_right(None)
    assert not answering.is_right(None)
    assert torch.count_nonzero(call.source) == 0


def test_a_turn() -> None:
    runs_made: list[int] = []
    way = forked.here(lambda: runs_made.append(1))
    for warm_up, made in ((True, 4), (False, 3)):
        runs_made.clear()
        seconds, cpu_s, each = way(3, warm_up)
        assert len(runs_made) == made
        assert len(each) == 3
        assert seconds > 0
        assert cpu_s >= 0


def test_a_program_that_fails() -> None:
    with pytest.raises(DistdebugError, match="communication ended with 1: it said nothing"):
        next(program.start(["false", "communication"], {}))


NO_MPI4PY = "there is no mpi4py here: pip install 'distdebug[mpi]'"

_ONE_DIES = """
import os, signal
from distdebug.benchmarks import forked

def body(rank, size, directory, ends_at):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("its neighbour is gone")
    yield

try:
    list(forked.measure(body, 3, 0.0))
except forked.RankError as error:
    print(error)
"""


def test_the_rank_that_died_is_named_not_those_that_miss_it(
    torch_loaded: TorchLoaded, tmp_path: Path
) -> None:
    done = torch_loaded.python(_ONE_DIES, tmp_path)
    assert done.stdout == "rank 1 of 3 ended with exit code -9\n", done.stderr


@pytest.fixture
def without_mpi4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hides = tmp_path / "hides"
    hides.mkdir()
    (hides / "sitecustomize.py").write_text("import sys\nsys.modules['mpi4py'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(hides), prepend=os.pathsep)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("without_mpi4py")
def test_the_command(tmp_path: Path) -> None:
    flags = ("--backends", "gloo,mpi", "-n", "2", "--sizes", "4:4K", "--factor", "32")
    done = bench_command(tmp_path, "comm", *flags, "--budget", "1", "--json", "figures.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"mpi is left out: {NO_MPI4PY}"
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["backends"], figures["baseline"]) == (["gloo"], "gloo")
    assert [one["backend"] for one in figures["skipped"]] == ["mpi"]
    cells = {(row["op"], row["ranks"], row["size_bytes"]) for row in figures["rows"]}
    shared = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"}
    assert cells == {("barrier", 2, 0)} | {
        (op, 2, 8 if op in shared and size == 4 else size)
        for op in comm_figures.OPS
        if op != "barrier"
        for size in (4, 128, 4096)
    }
    assert all(row["backends"]["gloo"]["time_us"] > 0 for row in figures["rows"])
    assert len(done.stdout.splitlines()) == 3 + len(cells)


def test_the_command_with_latency(tmp_path: Path) -> None:
    flags = ("--latency", "-n", "2,5", "--sizes", "4,64K", "--json", "figures.json")
    done = bench_command(tmp_path, "comm", *flags, "--budget", "1")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [(row["ranks"], row["size_bytes"]) for row in figures["rows"]] == [
        (ranks, size) for ranks in (2, 5) for size in (4, 64 * KIB)
    ]
    for row in figures["rows"]:
        assert min(row["wake_up_us"], row["copy_us"]) > 0
        assert all(0 < one["p50_us"] <= one["p99_us"] for one in row["backends"].values())


@pytest.mark.usefixtures("without_mpi4py")
def test_no_backend_that_there_is(tmp_path: Path) -> None:
    done = bench_command(tmp_path, "comm", "--backends", "mpi")
    assert done.returncode == 96
    assert f"mpi: {NO_MPI4PY}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_backends_on_a_gpu_are_compared_with_each_other_only() -> None:
    assert bench_arguments.read_backends("distcore_nccl,nccl") == ["distcore_nccl", "nccl"]
    with pytest.raises(DistdebugError) as caught:
        bench_arguments.read_backends("tcp,nccl")
    assert str(caught.value).startswith("--backends tcp,nccl: nccl can be compared with each other")


@pytest.mark.parametrize(("gpus", "shared"), [(1, True), (2, False)])
def test_ranks_that_share_a_gpu_name_hosts_of_their_own(
    monkeypatch: pytest.MonkeyPatch, gpus: int, shared: bool
) -> None:
    chosen: list[int] = []
    fake = SimpleNamespace(
        device_count=lambda: gpus, set_device=chosen.append, synchronize=lambda: None
    )
    monkeypatch.setattr(forked.torch, "cuda", fake)
    monkeypatch.setenv("NCCL_HOSTID", "as it was")
    _, finish = comm_ranks.place_on_gpu(1, 2)
    assert chosen == [0 if shared else 1]
    assert os.environ["NCCL_HOSTID"] == ("distdebug-rank-1" if shared else "as it was")
    assert finish is fake.synchronize


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_sentence_is_the_backends_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    assert str(forked.unavailable("distcore_nccl")).startswith("backend distcore_nccl needs ")
    assert str(forked.unavailable("nccl")).endswith("has no NCCL and GPU to use")
