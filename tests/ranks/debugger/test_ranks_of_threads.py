"""Ranks that are threads, as torch's own tests and others' have them, are left as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SUITE = Path(__file__).parents[1] / "scripts" / "suite_of_threads.py"


@pytest.mark.parametrize("level", ["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def test_a_suite_passes_below_the_layer(
    level: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 1, SUITE)
    run.extra = {"DISTDEBUG_LEVEL": level, "DISTDEBUG_RAISE_OWN_FAULTS": "1"}
    assert run.run() == 0, run.explain()
    assert "Ran 15 tests" in run.log(0, "err"), run.explain()
    (view,) = run.views()
    assert view.calls == 0
    (note,) = [note for note in view.notes if note.kind == "layer_off"]
    assert "ranks that are threads" in note.message
