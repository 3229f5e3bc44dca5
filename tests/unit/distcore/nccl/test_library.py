"""Without a GPU, or without NCCL: one exact sentence."""

from __future__ import annotations

import importlib.util
import types
from typing import Any

import pytest
import torch

import distcore
from distcore import torch_api
from distcore.nccl import library
from distcore.nccl.library import Library


def cuda(gpus: int) -> Any:
    return types.SimpleNamespace(is_available=lambda: gpus > 0)


WITH_CUDA = types.SimpleNamespace(cuda="13.0")
WITHOUT_CUDA = types.SimpleNamespace(cuda=None)


def found(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    core = types.SimpleNamespace(get_version=lambda: types.SimpleNamespace(libnccl=version))
    monkeypatch.setattr(library, "_loaded", [Library(core)])


def test_torch_without_cuda() -> None:
    assert library.unavailable("distcore_nccl", cuda(0), WITHOUT_CUDA) == (
        f"backend distcore_nccl needs a torch that is built with CUDA, and this is "
        f"{torch.__version__}: install one of the CUDA builds from pytorch.org, or use backend tcp"
    )


def test_no_gpu() -> None:
    assert library.unavailable("distcore_nccl", cuda(0), WITH_CUDA) == (
        "backend distcore_nccl needs an NVIDIA GPU, and torch finds none on this host: see "
        "nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend tcp"
    )


def test_no_nccl4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert library.unavailable("distcore_nccl", cuda(1), WITH_CUDA) == (
        "backend distcore_nccl needs nccl4py, which is not installed: pip install 'distdebug[nccl]'"
    )


def test_nccl4py_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(library, "_loaded", [])

    def broken(_name: str) -> Any:
        raise ImportError("libcuda.so.1: not there")

    monkeypatch.setattr(library.importlib, "import_module", broken)
    assert library.unavailable("distcore_nccl", cuda(1), WITH_CUDA) == (
        "backend distcore_nccl: nccl4py cannot be loaded (ImportError: libcuda.so.1: not there): "
        "pip install 'distdebug[nccl]'"
    )


def test_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, None)
    assert library.unavailable("distcore_nccl", cuda(1), WITH_CUDA) == (
        "backend distcore_nccl: nccl4py finds no libnccl.so.2: install nvidia-nccl-cu13, or put "
        "its folder on LD_LIBRARY_PATH"
    )


def test_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, "2.28.9")
    assert library.unavailable("distcore_nccl", cuda(1), WITH_CUDA) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_init_process_group_says_it(tmp_path: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^backend distcore_nccl needs "):
        distcore.init_process_group(
            "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
    assert not distcore.is_nccl_available()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("nccl", "distcore_nccl"),
        ("NCCL", "distcore_nccl"),
        ("cpu:tcp,cuda:nccl", "cpu:tcp,cuda:distcore_nccl"),
        ("gloo", "gloo"),
        ("cpu:gloo", "cpu:gloo"),
        (None, None),
    ],
)
def test_names(given: Any, meant: Any) -> None:
    assert torch_api.named(given) == meant
