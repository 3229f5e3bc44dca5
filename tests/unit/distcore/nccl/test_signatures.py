"""The stand-in for nccl4py is like the installed package, as far as distcore uses it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from enum import EnumMeta
from typing import Any

import pytest

from distcore.nccl import library
from tests.support.fake_nccl import core as fake

pytest.importorskip("nccl", reason="nccl4py is not installed: pip install 'distdebug[nccl]'")

PRIVATE = ("_",)
OF_THE_FAKE_ALONE = {"ended"}


@pytest.fixture(scope="module")
def real() -> Any:
    return importlib.import_module("nccl.core")


def parameters(function: Any) -> list[tuple[str, Any, bool]]:
    """Names, kinds and which have defaults: what a call relies on."""
    return [
        (one.name, one.kind, one.default is not inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", [n for n in fake.names() if inspect.isfunction(getattr(fake, n))])
def test_functions(real: Any, name: str) -> None:
    assert parameters(getattr(fake, name)) == parameters(getattr(real, name))


METHODS = [
    (owner, name)
    for owner in ("Communicator", "UniqueId", "CustomRedOp")
    for name in vars(getattr(fake, owner))
    if not name.startswith("_") and callable(getattr(getattr(fake, owner), name))
]


@pytest.mark.parametrize(("owner", "name"), METHODS)
def test_methods(real: Any, owner: str, name: str) -> None:
    assert parameters(getattr(getattr(fake, owner), name)) == parameters(
        getattr(getattr(real, owner), name)
    )


def test_enough_of_it_is_compared() -> None:
    """A fake without methods would pass the tests above."""
    assert len(METHODS) >= 15
    assert {"allreduce", "get_async_error", "split", "abort"} <= {name for _, name in METHODS}


@pytest.mark.parametrize(
    "name", [n for n in fake.names() if isinstance(getattr(fake, n), EnumMeta)]
)
def test_enumerations(real: Any, name: str) -> None:
    for member in getattr(fake, name):
        assert getattr(real, name)[member.name] == member.value


def test_config(real: Any) -> None:
    known = {field.name: field.default for field in dataclasses.fields(real.NCCLConfig)}
    for field in dataclasses.fields(fake.NCCLConfig):
        assert known[field.name] is field.default is None
    assert real.NCCLConfig(blocking=False, comm_name="x").blocking is False


def test_unique_ids(real: Any) -> None:
    assert len(bytes(real.UniqueId.from_bytes(bytes(fake.UNIQUE_ID_BYTES)))) == len(
        bytes(fake.UniqueId("x"))
    )


def test_dtypes_that_nccl4py_takes_of_tensors(real: Any) -> None:
    convert = importlib.import_module("nccl.core.interop.torch")._to_nccl_dtype
    for dtype, name in fake._TYPES.items():
        assert convert(dtype).name == name.name


def test_results() -> None:
    results = importlib.import_module("nccl.bindings.nccl").Result
    assert results.Success == library.SUCCESS
    assert results.RemoteError == library.REMOTE_ERROR
    assert results.InProgress == library.IN_PROGRESS
    assert results.Timeout == library.TIMED_OUT


def test_it_loads_without_a_gpu_and_tells_what_it_found() -> None:
    loaded = library.load()
    assert loaded is library.load()
    version = loaded.version()
    assert version is None or version[0].isdigit()
