"""What ranks tell of DistributedDataParallel: how models are made, times, unused parameters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support import ranks, runs
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote

SCRIPTS = Path(__file__).parents[1] / "scripts"
FIXTURES = Path(__file__).parents[3] / "fixtures" / "scripts"
FIELDS = (
    "backend_name",
    "broadcast_buffers",
    "bucket_cap_bytes",
    "bucket_sizes",
    "cuda_visible_devices",
    "device_ids",
    "dtypes",
    "find_unused_parameters",
    "gloo_device_transport",
    "gloo_socket_ifname",
    "gradient_as_bucket_view",
    "is_multi_device_module",
    "iteration",
    "master_addr",
    "master_port",
    "module_name",
    "nccl_blocking_wait",
    "nccl_debug",
    "nccl_ib_timeout",
    "nccl_nthreads",
    "nccl_socket_ifname",
    "num_parameter_tensors",
    "output_device",
    "rank",
    "total_parameter_size_bytes",
    "world_size",
)
"""Those that a record must have."""
TIMES = ("forward_ms", "backward_compute_ms", "backward_comm_ms", "overlap_ms")


def train(
    zygote: Zygote, tmp_path: Path, level: str, backend: str = "gloo", iterations: int = 3
) -> runs.Run:
    program = [str(SCRIPTS / "ddp.py"), backend, str(iterations)]
    extra = {"GLOO_SOCKET_IFNAME": "lo"}
    done = zygote.run(2, program, tmp_path, ["--debug-level", level], extra)
    assert done.exit_code == 0, done.explain()
    return done


def told(run: runs.Run, rank: int, event: str) -> list[dict[str, Any]]:
    path = run.directory / "logs" / f"{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == event]


@pytest.fixture(scope="module")
def at_info(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> runs.Run:
    return train(zygote, tmp_path_factory.mktemp("info"), "INFO")


@pytest.mark.parametrize("field", FIELDS)
def test_a_record_of_each_model_has_the_field(at_info: runs.Run, field: str) -> None:
    for rank in (0, 1):
        found = told(at_info, rank, "ddp_model")
        assert [record["module_name"] for record in found] == ["Generator", "Critic"]
        assert all(field in record for record in found)


def test_a_record_tells_how_the_model_was_made(at_info: runs.Run) -> None:
    generator, critic = told(at_info, 1, "ddp_model")
    common = {
        "backend_name": "gloo",
        "cuda_visible_devices": None,
        "device_ids": [],
        "dtypes": ["float"],
        "gloo_socket_ifname": "lo",
        "is_multi_device_module": False,
        "iteration": 0,
        "level": "info",
        "nccl_debug": None,
        "rank": 1,
        "group_rank": 1,
        "torch_distributed_debug": "INFO",
        "world_size": 2,
    }
    first = {
        **common,
        "broadcast_buffers": True,
        "bucket_cap_bytes": 25 << 20,
        "bucket_sizes": [196],
        "find_unused_parameters": False,
        "gradient_as_bucket_view": False,
        "num_parameter_tensors": 4,
        "total_parameter_size_bytes": 196,
    }
    second = {
        **common,
        "broadcast_buffers": False,
        "bucket_cap_bytes": 1 << 20,
        "bucket_sizes": [20],
        "find_unused_parameters": True,
        "gradient_as_bucket_view": True,
        "num_parameter_tensors": 2,
        "total_parameter_size_bytes": 20,
    }
    assert {name: generator[name] for name in first} == first
    assert {name: critic[name] for name in second} == second


def test_no_times_at_info(at_info: runs.Run) -> None:
    assert told(at_info, 0, "ddp_times") == []
    assert at_info.report["ddp"] == []


@pytest.mark.long
@pytest.mark.parametrize("backend", ["gloo", pytest.param("tcp", marks=pytest.mark.long)])
def test_times_at_detail(backend: str, tmp_path: Path, zygote: Zygote) -> None:
    done = train(zygote, tmp_path, "DETAIL", backend, iterations=102)
    for rank in (0, 1):
        assert {one["backend_name"] for one in told(done, rank, "ddp_model")} == {backend}
        found = told(done, rank, "ddp_times")
        assert [one["iteration"] for one in found] == [*range(1, 11), 100]
        assert all(one[time] > 0 for one in found for time in TIMES[:3])
        (newest,) = (one for one in done.report["ddp"] if one["rank"] == rank)
        assert newest["iteration"] == 100
        assert {name: newest[name] for name in TIMES} == {name: found[-1][name] for name in TIMES}
    assert "DDP Generator, averages in ms up to iteration 100:" in done.stderr
    assert "DDP Generator" in (done.directory / "report.txt").read_text()


@pytest.mark.long
def test_nothing_at_off(tmp_path: Path, zygote: Zygote) -> None:
    done = train(zygote, tmp_path, "OFF")
    assert told(done, 0, "ddp_model") == []


@pytest.mark.parametrize("level", ["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def test_unused_parameters_by_name(level: str, tmp_path: Path, zygote: Zygote) -> None:
    script = str(FIXTURES / "buggy" / "ddp_unused_layer_drop.py")
    done = zygote.run(2, [script], tmp_path, ["--debug-level", level])
    assert (done.report["outcome"], done.exit_code) == ("ddp_unused_parameters", 1), done.explain()
    (found,) = done.errors
    parts = ("norm.weight", "norm.bias", "dense.weight", "dense.bias")
    dropped = {rank: random.Random(rank).randrange(4) for rank in (0, 1)}
    assert found["data"]["parameters"] == {
        str(rank): [f"encoder.layers.{layer}.{part}" for part in parts]
        for rank, layer in dropped.items()
    }
    assert f"encoder.layers.{dropped[0]}.norm.weight" in done.stderr
    assert "UNUSED PARAMETERS  ranks 0,1 left parameters of Model without gradient" in done.stderr
    for rank in found["culprits"]:
        for line in told(done, rank, "ddp_unused_parameters"):
            assert (line["level"], line["count"]) == ("error", 4)


def test_what_does_not_change_is_noted_once(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPTS / "ddp_in_parts.py")
    assert run.run() == 0, run.explain()
    for view in run.views():
        notes = [note for note in view.notes if note.kind.startswith("ddp_")]
        names = ["right.weight", "right.bias"]
        told = [
            (note.kind, note.data.get("parameters"), note.data.get("replaced")) for note in notes
        ]
        assert told == [
            ("ddp_unused", names, 2),
            ("ddp_unused", names, 0),
            ("ddp_complete", None, None),
        ]


@pytest.mark.long
def test_compiled_models_train(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPTS / "ddp_compiled.py")
    run.extra = {"DISTDEBUG_LEVEL": "DETAIL"}
    assert run.run() == 0, run.explain()
    assert run.log(0) == run.log(1) == "trained\n"
