"""distcore's tcp backend: programs to torch.distributed's documentation, in real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.crew import Crew
from tests.support.torch_loaded import TorchLoaded

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "distcore_backend.py"
SCENARIOS = [
    name
    for part in ("calls", "trouble", "layers")
    for name in re.findall(
        r"^def (scenario_\w+)", (SCRIPTS / f"distcore_{part}.py").read_text(), re.MULTILINE
    )
]
LIMIT_S = 110.0

Outcomes = list[dict[str, str]]


def run(directory: Path, size: int, transport: str) -> Outcomes:
    """What each rank says of each scenario."""
    environment = runs.environment(
        {"OMP_NUM_THREADS": "1", "DISTCORE_TRANSPORT": transport, "PYTHONWARNINGS": "ignore"}
    )
    processes = []
    for rank in range(size):
        command = [sys.executable, str(SCRIPT), str(rank), str(size), str(directory / "store")]
        output = (directory / str(rank)).open("wb")
        processes.append(
            subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        )
        output.close()
    try:
        for process in processes:
            process.wait(timeout=LIMIT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    outcomes: Outcomes = []
    for rank in range(size):
        text = (directory / str(rank)).read_text()
        outcomes.append({"output": text})
        for line in text.splitlines():
            if line.startswith("{"):
                outcomes[-1].update(json.loads(line))
    return outcomes


@pytest.fixture(scope="module")
def outcomes_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Outcomes]:
    known: dict[tuple[int, str], Outcomes] = {}

    def outcomes(size: int, transport: str) -> Outcomes:
        if (size, transport) not in known:
            directory = tmp_path_factory.mktemp(f"{transport}{size}")
            known[size, transport] = run(directory, size, transport)
        return known[size, transport]

    return outcomes


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("size", "transport"), [pytest.param(2, "tcp", marks=pytest.mark.long), (3, "auto")]
)
def test_scenario(
    outcomes_of: Callable[[int, str], Outcomes], size: int, transport: str, scenario: str
) -> None:
    for rank, outcome in enumerate(outcomes_of(size, transport)):
        found = outcome.get(scenario, "it did not get that far")
        assert found == "", f"rank {rank}: {found}\n{outcome['output'][-3000:]}"


@pytest.mark.parametrize(("wish", "steps"), [("ring", 6), ("ring,all_reduce:doubling", 2)])
def test_the_user_chooses_the_algorithm(
    wish: str, steps: int, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    with Crew(torch_loaded, tmp_path, 4, {"DISTCORE_ALGORITHM": wish}) as crew:
        crew.everyone("init", path=str(tmp_path / "store"))
        found = crew.everyone("steps_of_an_all_reduce")
        assert [one["steps"] for one in found] == [steps] * 4
        crew.everyone("destroy")
