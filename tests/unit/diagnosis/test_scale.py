"""4,096 ranks take well under a second on an idle core; the bound here is for a busy machine."""

from __future__ import annotations

import pytest

from tests.benchmarks.diagnosis_scale import measure


@pytest.mark.long
def test_4096_ranks() -> None:
    rows = measure(4096)
    for case, duration_s, first in rows:
        assert duration_s < 10.0, f"{case} took {duration_s:.1f} s"
        assert case in first if case in ("mismatch", "deadlock") else first == "nothing"
