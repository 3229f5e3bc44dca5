"""The mark's arguments, and what is said of wrong ones; which tests cannot run here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from debugger.testing import requirements
from debugger.testing.marks import Wanted, wanted


def item(*args: Any, params: Any = None, **kwargs: Any) -> Any:
    mark = pytest.mark.distributed(*args, **kwargs).mark
    callspec = SimpleNamespace(params=params or {})
    return SimpleNamespace(get_closest_marker=lambda _: mark, callspec=callspec)


def asked(*args: Any, **kwargs: Any) -> Wanted:
    return wanted(item(*args, **kwargs), 60.0, None)


def test_defaults_and_positions() -> None:
    assert asked(nproc=4) == Wanted(4, "gloo", 60.0, None, None, "", ())
    found = asked(3, "tcp", 5, level="detail", ignore="nan", hang_timeout=2)
    assert found == Wanted(3, "tcp", 5.0, 2.0, "DETAIL", "", ("nan",))


def test_lists_are_given_by_parameters() -> None:
    params = {"distdebug_nproc": 2, "distdebug_backend": "tcp"}
    found = asked(nproc=[1, 2], backend=["gloo", "tcp"], params=params)
    assert (found.nproc, found.backend) == (2, "tcp")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nprocs": 2}, "does not know 'nprocs'; it takes nproc, backend"),
        ({"nproc": 0}, "wants nproc from 1 to 1024, not 0"),
        ({"nproc": "2"}, "not '2'"),
        ({"nproc": [1, 2]}, "cannot parametrise this test"),
        ({"backend": None}, "wants the name of a backend, not None"),
        ({"timeout": 0}, "wants timeout as seconds above 0, not 0"),
        ({"level": "LOUD"}, "wants a level of OFF, INFO, DETAIL, not 'LOUD'"),
        ({"ignore": ["nonsense"]}, "cannot ignore 'nonsense'"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as raised:
        asked(**given)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0", 1), ("2,3", 2), ("0,9,1", 1), ("-1", 0), ("GPU-a,GPU-b", 2)],
)
def test_gpus_that_can_be_used(
    visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert requirements.usable_gpus() == count


def test_what_mpi_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda _: None)
    found = requirements.missing_mpi()
    assert found == "needs MPI; there is no mpi4py and no mpiexec: pip install 'distdebug[mpi]'"
    monkeypatch.setattr(requirements.shutil, "which", lambda *_, **__: "/usr/bin/mpiexec")
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda _: object())
    assert requirements.missing_mpi() is None
