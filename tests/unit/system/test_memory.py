"""What a plan may use is what the machine has, and what its container may have, by either version
of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.system import memory

GIB = 1 << 30


def machine(place: Path, own: str) -> tuple[Path, Path]:
    """Of 16 GiB, 12 of which are free; `own`: what /proc says of the process's groups."""
    proc, cgroups = place / "proc", place / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(own)
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {12 << 20} kB\n")
    return proc, cgroups


def group(place: Path, **says: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in says.items():
        (place / f"memory.{name}").write_text(f"{text}\n")


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "4:memory:/job\n0::/job\n")
    group(cgroups / "memory" / "job", limit_in_bytes=(1 << 63) - 4096, usage_in_bytes=GIB)
    group(cgroups / "job", max="max", current=GIB)
    assert memory.available_bytes(proc, cgroups) == 12 * GIB
    assert memory.total_bytes(proc, cgroups) == 16 * GIB


@pytest.mark.parametrize("seen", ["/outer/job", "/of/the/host"])
@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container(version: int, seen: str, tmp_path: Path) -> None:
    """Of its own, of one around it, or of what a container sees as the root of all."""
    own = f"4:cpu:/\n3:memory:{seen}\n" if version == 1 else f"0::{seen}\n"
    proc, cgroups = machine(tmp_path, own)
    root = cgroups / "memory" if version == 1 else cgroups
    place = root if seen == "/of/the/host" else root / "outer"
    if version == 1:
        stat = f"inactive_file 5\ntotal_inactive_file {GIB}"
        group(place, limit_in_bytes=4 * GIB, usage_in_bytes=3 * GIB, stat=stat)
    else:
        group(place, max=4 * GIB, current=3 * GIB, stat=f"anon 7\ninactive_file {GIB}")
    group(root / "outer" / "job")
    assert memory.available_bytes(proc, cgroups) == 2 * GIB
    assert memory.total_bytes(proc, cgroups) == 4 * GIB


@pytest.mark.parametrize("own", ["3:memory:/job\n", "0::/job\n"], ids=["version 1", "version 2"])
def test_what_the_kernel_ends_for_want_of_memory_is_counted(own: str, tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, own)
    (proc / "vmstat").write_text("pgfault 7\noom_kill 3\n")
    group(cgroups / "memory" / "job", limit_in_bytes=GIB, oom_control="under_oom 0\noom_kill 2")
    group(cgroups / "job", max=GIB, events="oom 9\noom_kill 2")
    before = memory.out_of_memory_kills(proc, cgroups)
    assert before == 5
    (proc / "vmstat").write_text("pgfault 7\noom_kill 4\n")
    assert memory.out_of_memory_kills(proc, cgroups) > before
