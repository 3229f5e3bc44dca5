"""DDP, FSDP2 and DTensor train as without the layer, and every one of their calls is on record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "training.py"
COMPILED = Path(__file__).parents[1] / "scripts" / "compiled.py"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", [COMPILED])
def test_compiled_functions_are_reached(
    script: Path, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, script)
    # Where this torch has compiled nothing yet, it tries the processor and builds its C++ first.
    assert run.run(limit_s=840) == 0, run.explain()
    for view in run.views():
        assert view.history is not None
        made = [str(call.signature) for call in view.history.recent(view.calls)]
        assert made == ["all_reduce(sum, float32[4])"] * 3
        assert f"{view.rank} compiled [12.0, 12.0, 12.0, 12.0]" in run.log(view.rank)


@pytest.mark.parametrize("level", ["INFO", pytest.param("DETAIL", marks=pytest.mark.long)])
def test_training(level: str, tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path / "observed", 2, SCRIPT)
    run.extra = {"DISTDEBUG_LEVEL": level}
    assert run.run() == 0, run.explain()
    stock = ranks.forked(torch_loaded, tmp_path / "stock", 2, SCRIPT, observed=False)
    assert stock.run() == 0, stock.explain()
    printed = sorted((run.log(0) + run.log(1)).splitlines())
    assert printed == sorted(stock.stdout.splitlines())
    assert len(printed) == 14
    zero, one = run.views()
    assert zero.groups.keys() == one.groups.keys()
    for key, group in zero.groups.items():
        other = one.groups[key]
        assert (group.issued, group.chain, group.exact) == (other.issued, other.chain, other.exact)
    for view in (zero, one):
        assert len(ranks.calls(view, SCRIPT)) == view.calls  # none without a line of the script
        _check_where(ranks.calls(view, SCRIPT))


def _check_where(calls: list[ranks.Call]) -> None:
    """Gradients are reduced at the line of the backward pass."""
    lines = SCRIPT.read_text().splitlines()
    at_backward = Counter(
        call.signature.op
        for call in calls
        if call.site and "# the line of the backward pass" in lines[call.site.line - 1]
    )
    assert at_backward["all_reduce"] > 15
    assert at_backward["reduce_scatter_tensor"] > 3
    assert at_backward["all_gather_into_tensor"] > 3
