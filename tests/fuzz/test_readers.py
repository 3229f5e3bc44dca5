"""Whatever a run from elsewhere holds, it is read within 5 s and 300 MB, to a report or a sentence.

`make test` draws thirty inputs, always the same; `make test-all` draws 10,000, in parts that the
processes of pytest share: a part is a few minutes of one core, and has a seed of its own. Another
seed for all: `FUZZ_SEED=8 pytest tests/fuzz`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fixtures import recorded

from . import reading
from .damage import Case, Files, cases
from .reading import LIMIT_BYTES, Reader

RUNS = ("mismatch", "killed", "divergence", "deadlock", "p2p", "nan")
MANY = 10_000
PARTS = 20
SEED = int(os.environ.get("FUZZ_SEED", "15"))


def drawn(inputs: int) -> settings:
    return settings(
        max_examples=inputs,
        derandomize=True,
        deadline=None,  # the reader has one of its own
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    found: dict[str, Files] = {}
    for name in RUNS:
        path = recorded.unpack(name, tmp_path_factory.mktemp("runs") / name).path
        found[name] = {
            str(one.relative_to(path)): one.read_bytes()
            for one in sorted(path.rglob("*"))
            if one.is_file() and one.name != "recorded.json"
        }
    return found


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()
    most = f"{made.most_s:.2f} s of a core, {made.most_bytes >> 20} MiB"
    print(f"most: {most}; {made.started} processes")


def check(case: Case, runs: dict[str, Files], reader: Reader, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    fault = reader.read(case.write(runs[case.run], place), case.form, case.view)
    assert not fault, fault


@drawn(30)
@given(data=st.data())
def test_a_few_damaged_runs(
    data: st.DataObject, runs: dict[str, Files], reader: Reader, tmp_path_factory: object
) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    check(data.draw(cases(RUNS)), runs, reader, tmp_path_factory.getbasetemp() / "few")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_very_many_damaged_runs(
    part: int, runs: dict[str, Files], reader: Reader, tmp_path: Path
) -> None:
    inputs: set[Case] = set()

    @seed(SEED * PARTS + part)
    @settings(drawn(MANY // PARTS), derandomize=False)
    @given(case=cases(RUNS))
    def each(case: Case) -> None:
        inputs.add(case)
        check(case, runs, reader, tmp_path / "run")

    each()
    assert len(inputs) > 0.9 * MANY / PARTS, "hypothesis has drawn the same again and again"


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("packed", [False, True])
def test_the_same_runs_undamaged(
    run: str, packed: bool, runs: dict[str, Files], reader: Reader, tmp_path: Path
) -> None:
    case = Case(run, False, (), packed, None, "--text", 2)
    assert reader.read(case.write(runs[run], tmp_path), case.form, case.view) == ""
    assert reader.most_bytes < LIMIT_BYTES


def test_what_the_check_is_there_to_find_is_found(
    runs: dict[str, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Case("nan", False, (), False, None, "--text", 0).write(runs["nan"], tmp_path)
    reader = Reader()
    try:
        assert reader.read(run, "--text", 0) == ""
        assert "IndexError" in reader.read(run, "--text", 99)
        monkeypatch.setattr(reading, "LIMIT_BYTES", 1 << 20)
        assert "MiB were in use" in reader.read(run, "--text", 0)
        monkeypatch.setattr(reading, "LIMIT_BYTES", LIMIT_BYTES)
        monkeypatch.setattr(reading, "LIMIT_S", 0.0)
        assert "s of a core" in reader.read(run, "--text", 0)
        monkeypatch.setattr(reading, "STUCK_S", 0.0)
        assert reader.read(run, "--text", 0) == "not read within 0.0 s"
    finally:
        reader.close()
