"""What backends take beside time: what is refused, what counts as memory, and the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import resources
from tests.unit.benchmarks.bench_command import ROOT, measurement, refusal_of


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-n", "2,4"], "-n 2,4 are several numbers; one is measured"),
        (["--largest", "big"], "--largest big: 'big' is no size; write bytes, or with K, M, G"),
        (["--largest", "16G", "-n", "64"], "16 GiB on 64 ranks take about 4096 GiB of memory"),
        (["--wait", "0"], "--wait 0 is not between 0 and 86400 seconds"),
        (["--groups", "0"], "--groups 0 is not between 1 and 1000"),
        (["--groups", "x"], "argument --groups: invalid int value: 'x'"),
        (["--backends", "openmpi"], "'openmpi' is none of tcp, gloo"),
        (["--json", "/no/such/file.json"], "/no/such is not a directory; name a file in one"),
    ],
)
def test_what_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refusal_of("resources", *arguments)


_MEMORY = """
import mmap, os
from tests.benchmarks.resources_ranks import forget_peak, memory

MIB = 1 << 20
before = memory()
kept = bytearray(b"x") * (32 * MIB)
after = memory()
assert 32 * MIB <= after.own - before.own < 33 * MIB, (before, after)
forget_peak()
passing = bytearray(b"x") * (48 * MIB)
del passing
later = memory()
assert abs(later.own - after.own) < MIB, (after, later)
assert 47 * MIB < later.peak - after.resident < 50 * MIB, (after, later)

shared = mmap.mmap(-1, 16 * MIB)
shared.write(bytes(16 * MIB))
assert 16 * MIB <= memory().own - later.own < 17 * MIB
ours, theirs = os.pipe(), os.pipe()
if not (child := os.fork()):
    shared[::4096]  # it reads every page
    inherited = memory()
    # What a fork shares until somebody writes is not the less its own; shared memory is by halves.
    assert abs(inherited.own - later.own - 8 * MIB) < 2 * MIB, (later, inherited)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_table() -> None:
    row = {
        "backend": "tcp",
        "memory_bytes": {"joined": 1 << 20, "peak": 63 << 20, "after": 10 << 20},
        "wait_cpu_s": {"barrier": 0.0123},
        "groups_s": {"made": 4.0, "used": 4.5},
    }
    told = {"ranks": 8, "largest_bytes": 64 << 20, "wait_s": 10.0, "groups": 64}
    lines = list(resources.table([row, {**row, "backend": "gloo"}], told))
    assert lines[0].startswith("8 ranks, calls up to 64 MiB, 10 s of waiting, 64 sub-groups;")
    assert [line.split()[-4:] for line in lines[3:5]] == [
        ["63.0", "63.0", "<", "64"],
        ["10.0", "10.0", "<", "64"],
    ]
    assert lines[5].split()[-4:] == ["0.012", "0.012", "<", "0.2"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_command(tmp_path: Path) -> None:
    flags = ("-n", "2", "--largest", "64K", "--wait", "0.2", "--groups", "2")
    done = measurement("resources", *flags, "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 + len(resources.LINES)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bars"]["memory_bytes.peak"] == 64 << 20
    assert [row["backend"] for row in figures["rows"]] == ["tcp", "gloo"]
    for row in figures["rows"]:
        assert row["memory_bytes"]["peak"] >= row["memory_bytes"]["joined"], row
        assert 0 <= row["wait_cpu_s"]["barrier"] < 0.2, row
        assert 0 < row["groups_s"]["made"] < row["groups_s"]["used"], row
