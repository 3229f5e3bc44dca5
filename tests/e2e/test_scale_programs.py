"""The programs of fixtures/scale, which take any number of ranks: run for real they get the
verdicts that they declare, and a plan of them makes the very calls that a run makes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from distdebug.cli import main
from tests.support import runs
from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES, ON_TCP, check_finding, check_verdict

SCALE = FIXTURES / "scale"
EXPECTED = sorted(path.stem for path in (SCALE / "expected").glob("*.json"))
SHORT = {"ddp_wrong_branch"}
SCRIPTS = sorted(path.stem for path in SCALE.glob("*.py"))
SHORT_PLANS = {"tensor_parallel"}
LARGER = 64
PATIENCE_S = 400.0


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCALE / "expected" / f"{name}.json").read_text())
    # The checks of all fixtures look below scripts/.
    return {**found, "script": f"../{found['script']}"}


def some(names: list[str], short: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.long]) for name in names]


def really(expected: dict[str, Any], place: Path, zygote: Zygote, **extra: str) -> runs.Run:
    place.mkdir(exist_ok=True)
    script = (FIXTURES / "scripts" / expected["script"]).resolve()
    program = [str(script), *expected["script_args"]]
    return zygote.run(expected["nproc"], program, place, (), {**expected["env"], **extra})


def check(expected: dict[str, Any], done: runs.Run) -> None:
    resolved = {**expected, "script": str((FIXTURES / "scripts" / expected["script"]).resolve())}
    check_verdict(resolved, done)
    if expected["cycle"] is not None:
        assert len(done.errors[0]["cycle"]) == expected["cycle"], done.explain()


@pytest.mark.parametrize("name", some(EXPECTED, SHORT))
def test_verdict_of_a_run(name: str, tmp_path: Path, zygote: Zygote) -> None:
    expected = load(name)
    check(expected, really(expected, tmp_path, zygote))


@pytest.mark.long
@pytest.mark.parametrize("name", EXPECTED)
def test_verdict_of_a_run_on_tcp(name: str, tmp_path: Path, zygote: Zygote) -> None:
    expected = load(name)
    tcp = {"PYTHONPATH": str(ON_TCP), "ON_TCP_EVERYWHERE": "1"}
    check(expected, really(expected, tmp_path, zygote, **tcp))


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_other_numbers_of_ranks(script: str, tmp_path: Path, zygote: Zygote) -> None:
    for size in (4, 6):
        expected: dict[str, Any] = {"script": f"../scale/{script}.py", "nproc": size}
        expected |= {"script_args": [], "env": {}}
        done = really(expected, tmp_path / str(size), zygote)
        assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()


def planned(size: int, script: str, place: Path, *words: str, **env: str) -> runs.Run:
    """`distdebug plan` of so many ranks."""
    path = str(SCALE / f"{script}.py")
    arguments = ["-n", str(size), path, *words]
    return runs.finish(
        runs.start("plan", arguments, place, place.parent, env), place, limit_s=PATIENCE_S
    )


@pytest.mark.timeout(500)
@pytest.mark.parametrize("script", some(SCRIPTS, SHORT_PLANS))
def test_a_plan_makes_the_calls_of_a_run(
    script: str, tmp_path: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank by rank: op, line, group, shapes, peers, order; so calls and bytes are the same, too."""
    expected = {"script": f"../scale/{script}.py", "script_args": [], "env": {}, "nproc": 8}
    done = really(expected, tmp_path / "real", zygote)
    plan = planned(8, script, tmp_path / "plan")
    assert (plan.report["outcome"], plan.exit_code) == ("ok", 0), plan.explain()
    capsys.readouterr()
    code = main(["compare", str(done.directory), str(plan.directory), "--json"])
    compared = json.loads(capsys.readouterr().out)
    assert (code, compared["equal"], compared["by"]) == (0, True, "rank"), compared["first"]
    real, told = compared["a"]["traffic"], compared["b"]["traffic"]
    assert real["rows"]
    assert real == told
    assert json.loads((plan.directory / "plan.json").read_text())["traffic"] == told
    assert (plan.directory / "traffic.txt").read_text() in plan.stderr


@pytest.mark.timeout(500)
def test_a_deadlock_that_eight_ranks_do_not_have(tmp_path: Path) -> None:
    found = planned(16, "mesh_order", tmp_path / "plan")
    assert (found.report["outcome"], found.exit_code) == ("deadlock", 92), found.explain()
    cycle = found.errors[0]["cycle"]
    assert len(cycle) == 4, cycle
    mesh = [divmod(step["rank"], 4) for step in cycle]
    shared = [  # each waits for one in its own row, or in its own column, in turns
        [axis for axis in (0, 1) if one[axis] == mesh[(at + 1) % 4][axis]]
        for at, one in enumerate(mesh)
    ]
    assert shared in ([[0], [1], [0], [1]], [[1], [0], [1], [0]]), (cycle, found.explain())


@pytest.mark.long
@pytest.mark.timeout(500)
def test_no_deadlock_with_eight_ranks_or_a_fixed_order(tmp_path: Path) -> None:
    for size, words in ((8, []), (16, ["--order", "fixed"])):
        found = planned(size, "mesh_order", tmp_path / str(size), *words)
        assert (found.report["outcome"], found.exit_code) == ("ok", 0), found.explain()


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith("_wrong_branch")])
def test_one_wrong_branch_of_many_ranks(name: str, tmp_path: Path) -> None:
    expected = load(name)
    wrong = LARGER - 3
    script = Path(expected["script"]).stem
    found = planned(LARGER, script, tmp_path / "plan", WRONG_RANK=str(wrong))
    assert found.report["outcome"] == expected["outcome"], found.explain()
    here = {**expected, "culprits": [wrong]}
    check_finding(found.errors[0], found, here, (SCALE / f"{script}.py").resolve())


@pytest.mark.long
@pytest.mark.timeout(500)
def test_where_the_program_depends_on_the_number_of_ranks(tmp_path: Path) -> None:
    place = tmp_path / "plan"
    done = subprocess.run(
        [
            str(runs.DISTDEBUG), "plan", "--scale", "4:16", "--run-dir", str(place),
            str(SCALE / "fsdp2.py"),
        ],
        capture_output=True, text=True, timeout=PATIENCE_S, env=runs.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "A: run of 4 ranks" in done.stderr
    scale = json.loads((place / "plan.json").read_text())["scale"]
    assert (scale["by"], scale["equal"]) == ("role", False)
    # FSDP's shards are a fourth of the size; all else is the same.
    assert {one["kind"] for row in scale["pairings"] for one in row["differences"]} == {"shape"}
    assert scale["first"]["a"]["call"] == "all_gather_into_tensor(float32[1040])"
    assert scale["first"]["b"]["call"] == "all_gather_into_tensor(float32[260])"


@pytest.mark.parametrize("name", EXPECTED)
def test_expectation_matches_script(name: str) -> None:
    expected = load(name)
    script = FIXTURES / "scripts" / expected["script"]
    lines = script.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# <- look here" in line]
    assert expected["line"] in (None, *marked)


def test_every_script_has_a_fault_and_a_twin_without() -> None:
    for script in SCRIPTS:
        outcomes = {
            load(name)["outcome"] for name in EXPECTED if Path(load(name)["script"]).stem == script
        }
        assert "ok" in outcomes
        assert outcomes - {"ok"}, script
