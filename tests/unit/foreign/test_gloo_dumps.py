"""What torch's recorder held of all fixtures on stock gloo when they stood still, at work and at
the end: what it can prove is named, and correct programs are accused of nothing.
`tests/benchmarks/dump_fixtures.py` has recorded them, and records them anew."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fixture_table import FIXTURES, expected
from tests.support.provable import fault, findings, provable

PACKED = FIXTURES / "recorded" / "gloo_dumps.tar.xz"


def _cases() -> Sequence[str]:
    with tarfile.open(PACKED) as packed:
        return sorted({name.rpartition("/")[0] for name in packed.getnames()})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("case", _cases())
def test_what_the_fields_prove_is_named(case: str, recorded: Path) -> None:
    folder = recorded / case
    for file in folder.glob("rank_*"):
        assert os.path.getmtime(file) > 1e9  # kept: it tells how old the newest call is
    one = expected(case.split("/")[1])
    found = findings(folder)
    assert fault(one, provable(one, folder), found) == "", found


def test_the_table_is_not_empty() -> None:
    assert len(_cases()) > 400
