"""The backend mpi under a real mpiexec: right results, and errors where MPI would wait for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import mpi, runs
from tests.support.torch_loaded import TorchLoaded

pytestmark = pytest.mark.timeout(300)
SCRIPT = "distcore_mpi.py"
RIGHT = (
    "facts",
    "groups",
    "same_bits",
    "tags",
    "in_order",
    "splits",
    "conformance",
    "late",
    "wait",
)
WRONG = ("absent", "absent_large", "mismatch", "abort", "recv")
BOUND_S = 20.0
"""For what should be known within a second, on a machine that is busy."""


@pytest.mark.parametrize("library", mpi.LIBRARIES)
def test_right_results(library: str, torch_loaded: TorchLoaded) -> None:
    """Started by mpiexec, without any variable of torch's; init and destroy, again and again."""
    ended = mpi.run(library, 2, SCRIPT, *RIGHT, loaded=torch_loaded)
    assert ended.code == 0, ended.text
    for rank in (0, 1):
        facts, *others = ended.of(rank)
        assert facts["size"] == 2
        assert facts["repr"] == f"<CoreGroup '0' (mpi, rank {rank} of 2, 0 collectives)>"
        assert facts["config"] == "cpu:mpi,cuda:mpi"
        conformance = next(one for one in others if one["name"] == "conformance")
        assert conformance["calls"] > 400
        assert {"rank": rank, "name": "late", "kind": None} in others
    [waited] = [one for one in ended.of(0) if one["name"] == "wait"]
    assert waited["kind"] == "DeadlineExceeded"
    assert "not complete after the 0.2 s given to wait(); it goes on" in waited["text"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("library", mpi.LIBRARIES)
def test_calls_and_what_torch_builds_on_them(library: str, torch_loaded: TorchLoaded) -> None:
    """DDP, FSDP2, DTensor, functional collectives, torch.compile, the profiler; as on tcp."""
    ended = mpi.run(library, 3, SCRIPT, "calls_and_layers", limit_s=380, loaded=torch_loaded)
    assert ended.code == 0, ended.text
    for rank in range(3):
        said = {one["name"] for one in ended.of(rank)}
        assert {
            "scenario_collectives",
            "scenario_ddp",
            "scenario_join",
            "scenario_profiler",
            "scenario_hooks",
            "scenario_callbacks_that_call",
        } <= said


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("library", mpi.PYTHONS)
def test_conformance(library: str, ranks: int) -> None:
    ended = mpi.run(library, ranks, SCRIPT, "conformance", "same_bits")
    assert ended.code == 0, ended.text
    assert all(one["calls"] > 400 for one in ended.said if one["name"] == "conformance")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("library", mpi.PYTHONS)
def test_more_bytes_than_an_int_counts(library: str) -> None:
    ended = mpi.run(library, 2, SCRIPT, "huge", limit_s=380)
    assert ended.code == 0, ended.text


@pytest.mark.parametrize("library", mpi.LIBRARIES)
def test_calls_that_mpi_would_never_end(library: str, torch_loaded: TorchLoaded) -> None:
    ended = mpi.run(library, 3, SCRIPT, *WRONG, loaded=torch_loaded)
    assert ended.code == 0, ended.text
    for rank in (0, 2):
        said = {one["name"]: one for one in ended.of(rank)}
        for name, count in (("absent", 8), ("absent_large", 1_000_000)):
            found = said[name]
            assert found["kind"] == "DeadlineExceeded", found
            assert found["culprit"] == 1
            # Who is at its timeout first tells the others, who may read that before their own.
            by, told = re.match(r"(?:rank (\d) reports: )?(.*)", found["text"], re.S).groups()
            assert by != str(rank)
            assert told == (
                f"all_reduce(sum, float32[{count}]), collective #0 of group '0', "
                f"rank {rank if by is None else by} "
                "is not complete after its timeout of 3 s: rank 1 did not come to it "
                "(timed out after 3000ms)"
            ).replace("'0'", repr(_group(found["text"])))
            assert found["after_s"] < 3 + BOUND_S
        assert said["again"]["kind"] == "GroupFailed"
        assert "rank 1 did not come to it" in said["again"]["text"]
        assert said["abort"]["kind"] == "Aborted"
        assert "rank 1 called abort()" in said["abort"]["text"]
        assert said["abort"]["after_s"] < BOUND_S
    for rank in (0, 1, 2):
        found = [one for one in ended.of(rank) if one["name"] == "mismatch"]
        assert [one["kind"] for one in found] == ["CallMismatch"], found
        assert all("all_reduce(sum, float32[" in one["text"] for one in found)
        assert all("reduce(dst=0, sum, float32[" in one["text"] for one in found)
        assert all(one["after_s"] < BOUND_S for one in found)
    [late] = [one for one in ended.of(0) if one["name"] == "recv"]
    assert late["kind"] == "DeadlineExceeded"
    assert late["culprit"] == 1
    assert (
        "recv(src=1, float32[4], tag=0) on rank 0 is not complete after its timeout of 1 s"
        in late["text"]
    )
    for name, size in (
        ("too_long", "MPI says"),
        ("too_short", "sent 4 bytes, this rank expects 8"),
    ):
        [found] = [one for one in ended.of(1) if one["name"] == name]
        assert found["kind"] == "CallMismatch", found
        assert size in found["text"]


@pytest.mark.parametrize("library", mpi.LIBRARIES)
def test_a_rank_that_stops_within_a_big_call(library: str, torch_loaded: TorchLoaded) -> None:
    """MPI's blocking call is then on a thread, which is left behind."""
    ended = mpi.run(library, 3, SCRIPT, "stopped", loaded=torch_loaded)
    assert {one["rank"] for one in ended.said if one["name"] == "moved"} == {0, 1, 2}
    for rank in (0, 2):
        [found] = [one for one in ended.of(rank) if one["name"] == "stopped"]
        assert found["kind"] == "DeadlineExceeded", found
        assert found["culprit"] == 1
        assert found["text"].endswith(
            "is not complete after its timeout of 3 s: rank 1 came to it, and told nothing since "
            "(timed out after 3000ms)"
        )
        assert found["after_s"] < 3 + BOUND_S


def _group(text: str) -> str:
    return text.split("of group '", 1)[1].split("'", 1)[0]


@pytest.mark.parametrize("library", mpi.LIBRARIES)
def test_a_rank_that_ends_by_an_exception(library: str, torch_loaded: TorchLoaded) -> None:
    ended = mpi.run(library, 3, SCRIPT, "raises", loaded=torch_loaded)
    assert ended.code != 0
    assert "the first cause" in ended.text
    for rank in (0, 2):
        [found] = ended.of(rank)
        assert found["kind"] == "PeerLost", found
        assert found["culprit"] == 1
        assert "rank 1 has left the group" in found["text"]
        assert found["after_s"] < BOUND_S


def test_a_killed_rank_ends_the_job(torch_loaded: TorchLoaded) -> None:
    """The launcher's part: nobody is left behind."""
    ended = mpi.run("openmpi", 2, SCRIPT, "killed", loaded=torch_loaded)
    assert ended.code != 0
    assert "signal 9" in ended.text


@pytest.mark.parametrize(
    ("arguments", "extra", "reason"),
    [
        (
            "",
            {"WORLD_SIZE": "4"},
            "WORLD_SIZE is 4 in the environment: start the ranks with mpiexec",
        ),
        ("", {"RANK": "2"}, "RANK is 2 in the environment"),
        (", world_size=2, rank=0", {}, "init_process_group was given world_size=2"),
    ],
)
def test_a_rank_or_size_that_is_not_mpis(
    arguments: str,
    extra: dict[str, str],
    reason: str,
    tmp_path: Path,
    torch_loaded: TorchLoaded,
) -> None:
    program = f"dist.init_process_group('mpi'{arguments})"
    said = _forked(torch_loaded, program, tmp_path, extra)
    assert "ValueError: backend mpi: MPI says this is rank 0 of 1, but " + reason in said


def test_a_rank_and_size_that_are_mpis(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    said = _forked(
        torch_loaded,
        "dist.init_process_group('mpi', rank=0, world_size=1); dist.barrier(); print('well')",
        tmp_path,
        {"WORLD_SIZE": "1", "RANK": "0"},
    )
    assert said == "well\n"


def test_a_process_without_a_launcher_leaves_no_shared_memory() -> None:
    """And another's stays."""
    with tempfile.NamedTemporaryFile(prefix="sm_segment.", dir="/dev/shm") as others:
        said = _alone(
            "dist.init_process_group('mpi'); dist.barrier()\n"
            "from distcore.base import linux\n"
            "print(*linux.mapped_files('sm_segment.'))",
            {},
        )
        assert said.startswith("/dev/shm/sm_segment."), said
        assert [path for path in said.split() if os.path.exists(path)] == []
        assert os.path.exists(others.name)


_SEGMENTS = (
    "from distcore.base import linux\nprint(*linux.mapped_files('sm_segment.'), flush=True)\n"
)
_CHILD_FIRST = "import os, sys\nif os.fork(): os._exit(os.wait()[1])\n"
_CHILD_LAST = "import os, sys\nif not os.fork(): sys.exit()\nos.wait()\n"
_BEGIN = "dist.init_process_group('mpi'); dist.barrier()\n"


def test_a_process_that_was_forked_before_it_began_ends_mpi(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """By a parent that had imported all that it needs, as a server does that forks ranks."""
    program = "from distcore.mpi import library\n" + _CHILD_FIRST + _BEGIN + _SEGMENTS
    said = _forked(torch_loaded, program, tmp_path, {})
    assert said.startswith("/dev/shm/sm_segment."), said
    assert [path for path in said.split() if os.path.exists(path)] == []


def test_a_child_of_a_rank_does_not_end_mpi(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    look = "print(*map(os.path.exists, linux.mapped_files('sm_segment.')))\n"
    program = _BEGIN + _SEGMENTS + _CHILD_LAST + look + "dist.barrier()"
    segments, there = _forked(torch_loaded, program, tmp_path, {}).splitlines()
    assert set(there.split()) == {"True"}
    assert [path for path in segments.split() if os.path.exists(path)] == []


@pytest.mark.parametrize(
    ("hidden", "reason"),
    [
        ("mpi4py", "mpi4py is not installed"),
        ("libmpi", "mpi4py finds no MPI library"),
    ],
)
def test_without_mpi_one_sentence_says_so(
    hidden: str, reason: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    extra = {}
    hide = ""
    if hidden == "mpi4py":
        hide = "import sys; sys.modules['mpi4py'] = None\n"
    else:
        extra["MPI4PY_LIBMPI"] = str(tmp_path / "libmpi.so")
    said = _forked(
        torch_loaded,
        f"{hide}print(dist.is_mpi_available())\n"
        "try: dist.init_process_group('mpi')\n"
        "except RuntimeError as error: print(error)",
        tmp_path,
        extra,
    )
    assert said == (
        f"False\nbackend mpi needs mpi4py and an MPI library, and {reason}: "
        f"pip install 'distdebug[mpi]'\n"
    )


@pytest.mark.parametrize(
    ("program", "extra", "available"),
    [
        ("", {}, False),
        ("", {"PMIX_RANK": "0"}, True),
        ("try: dist.init_process_group('mpi', rank=1)\nexcept ValueError: pass\n", {}, True),
    ],
    ids=["alone", "launched", "asked for"],
)
def test_mpi_is_there_where_it_was_started_or_asked_for(
    program: str,
    extra: dict[str, str],
    available: bool,
    tmp_path: Path,
    torch_loaded: TorchLoaded,
) -> None:
    program += "print(dist.is_mpi_available())"
    said = _forked(torch_loaded, program, tmp_path, extra)
    assert said == f"{available}\n"


def test_importing_it_starts_no_mpi() -> None:
    assert _alone("import sys; print('mpi4py' in sys.modules)", {}) == "False\n"


def _forked(loaded: TorchLoaded, program: str, folder: Path, extra: Mapping[str, str]) -> str:
    """What `_alone` gives, of a process that need not import torch."""
    code = f"import torch.distributed as dist, distcore\n{program}"
    done = loaded.python(code, folder, extra)
    return done.stdout + done.stderr


def _alone(program: str, extra: Mapping[str, str]) -> str:
    """Run in a process that no mpiexec started; what it said."""
    names = runs.environment({"PYTHONPATH": str(mpi.ROOT), **extra})
    done = subprocess.run(
        [sys.executable, "-c", f"import torch.distributed as dist, distcore\n{program}"],
        env=names,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=runs.LIMIT_S,
    )
    return done.stdout
