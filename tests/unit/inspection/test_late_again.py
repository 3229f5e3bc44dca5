"""What a process says that is asked to take the layer in a second time."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from distdebug.inspection.installing import BOOTSTRAP
from distdebug.record.requests import late_install


@pytest.fixture(autouse=True)
def not_here() -> Iterator[None]:
    """pytest has our plugin; a process in which the layer comes late has nothing of ours."""
    kept = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in kept:
        del sys.modules[name]
    yield
    for name in [one for one in sys.modules if _is_ours(one)]:
        del sys.modules[name]
    sys.modules.update(kept)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "_distdebug"


@pytest.mark.parametrize(
    ("gave_up", "why"),
    [
        (False, "distdebug is in this process already"),
        (True, "an install has been given up in it before: its hooks are out"),
    ],
)
def test_it_is_refused_with_the_reason(
    gave_up: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = ModuleType("_distdebug" if gave_up else "_distdebug.rank.install")
    vars(loaded)["_gave_up"] = True
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    late_install.want(tmp_path)
    runpy.run_path(str(BOOTSTRAP), run_name="_distdebug_late")["come"](str(tmp_path))
    (told,) = late_install.answers(tmp_path).values()
    assert told.state == late_install.REFUSED
    assert told.why.startswith(why)


def test_a_start_that_failed_counts_as_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch.distributed", "distcore"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    begun = ModuleType("_distdebug.rank.process.late_layer")

    def begin(_: str) -> None:
        raise RuntimeError("no hooks in this torch")

    vars(begun)["begin"] = begin
    monkeypatch.setitem(sys.modules, begun.__name__, begun)
    come = runpy.run_path(str(BOOTSTRAP), run_name="_distdebug_late")["come"]
    reasons = []
    for attempt in ("first", "second"):
        run = tmp_path / attempt
        run.mkdir()
        late_install.want(run)
        come(str(run))
        reasons += [told.why for told in late_install.answers(run).values()]
    assert reasons[0] == "no hooks in this torch"
    assert reasons[1].startswith("an install has been given up in it before")
