"""The mark's arguments, and what is said of wrong ones; which tests cannot run here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.testing import marks, plugin
from distdebug.testing.marks import Wanted, wanted
from distdebug.testing.pytest_private import nodeid_of


def item(*args: Any, params: Any = None, **kwargs: Any) -> Any:
    mark = pytest.mark.distributed(*args, **kwargs).mark
    callspec = SimpleNamespace(params=params or {})
    return SimpleNamespace(get_closest_marker=lambda _: mark, callspec=callspec)


def asked(*args: Any, **kwargs: Any) -> Wanted:
    return wanted(item(*args, **kwargs), 60.0, None)


def test_defaults_and_positions() -> None:
    assert asked(nproc=4) == Wanted(4, "gloo", 60.0, None, None, "", ())
    found = asked(3, "tcp", 5, level="detail", ignore="nan", hang_timeout=2, strict=True)
    assert found == Wanted(3, "tcp", 5.0, 2.0, "DETAIL", "", ("nan",), True)


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
        (
            {"check": "nan,heat"},
            "'heat' is none of nan, nan-origin, overflow, inflight, replicas, ",
        ),
        ({"check": ["nan"]}, "wants check as --check takes it"),
        ({"strict": 1}, "wants strict as True or False, not 1"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as raised:
        asked(**given)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("2,3", 2),
        ("0,9,1", 1),
        ("0,²", 1),
        ("0,9999999999", 1),
        ("-1", 0),
        ("GPU-a,GPU-b", 2),
    ],
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
    assert marks.usable_gpus() == count


def test_what_mpi_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(marks.importlib.util, "find_spec", lambda _: None)
    found = marks.missing_mpi()
    assert found == "needs MPI; there is no mpi4py and no mpiexec: pip install 'distdebug[mpi]'"
    monkeypatch.setattr(marks.shutil, "which", lambda *_, **__: "/usr/bin/mpiexec")
    monkeypatch.setattr(marks.importlib.util, "find_spec", lambda _: object())
    assert marks.missing_mpi() is None


def test_checks_are_those_of_the_command() -> None:
    assert asked(check="nan, overflow,nan").check == "nan,overflow"


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1e9"])
def test_times_of_the_session_that_cannot_be(text: str) -> None:
    config = SimpleNamespace(
        option=SimpleNamespace(distdebug_timeout=None), getini={"distdebug_timeout": text}.get
    )
    with pytest.raises(pytest.UsageError, match=f"takes seconds above 0, not {text}"):
        plugin.seconds(config, "timeout")  # type: ignore[arg-type]
    option = SimpleNamespace(distdebug_timeout=2.5)
    given = SimpleNamespace(option=option, getini={"distdebug_timeout": text}.get)
    assert plugin.seconds(given, "timeout") == 2.5  # type: ignore[arg-type]


def test_the_id_of_a_test_is_without_what_xdist_adds(request: pytest.FixtureRequest) -> None:
    item = request.node
    grouped = SimpleNamespace(nodeid=f"{item.nodeid}@a_group", parent=item.parent, name=item.name)
    assert nodeid_of(grouped) == nodeid_of(item) == item.nodeid.partition("@")[0]  # type: ignore[arg-type]
