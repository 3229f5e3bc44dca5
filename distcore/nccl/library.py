"""nccl4py, loaded when it is first needed; where it cannot be used, one sentence that says why.

Everything that touches nccl4py's names goes through `Library`, so that tests can stand in for it.
Only `nccl.core` is used: nccl4py promises no stability for the rest.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

INSTALL = "pip install 'distdebug[nccl]'"

SUCCESS, REMOTE_ERROR, IN_PROGRESS, TIMED_OUT = 0, 6, 7, 8
"""Values of ncclResult_t, which NCCL has kept since 2.13."""


@dataclass(frozen=True)
class Library:
    """`core` is the module nccl.core, or a stand-in with the same names."""

    core: Any

    def unique_id(self) -> bytes:
        """A new one, for one communicator."""
        return bytes(self.core.get_unique_id())

    def start(self, size: int, rank: int, unique_id: bytes) -> Any:
        """A communicator that connects in the background: `Member.settle` waits until it is there.

        It has no name: NCCL keeps a pointer to it, to memory that nccl4py frees at once.
        """
        return self.core.Communicator.init(
            size,
            rank,
            self.core.UniqueId.from_bytes(unique_id),
            self.core.NCCLConfig(blocking=False),
        )

    def split(self, parent: Any, color: int | None, key: int) -> Any:
        """A communicator of the ranks of `parent` that give this colour, in the order of their
        keys. Every rank of `parent` calls it; None is no colour. It is there when `parent` is
        settled."""
        return parent.split(color, key, self.core.NCCLConfig(blocking=False))

    def abort(self, communicators: Sequence[Any]) -> None:
        """Aborts all of them: none is waited for before the others are told."""
        together = len(communicators) > 1
        if together:
            self.core.group_start()
        try:
            for one in communicators:
                one.abort()
        finally:
            if together:
                self.core.group_end()

    def words(self, code: int) -> str:
        """Returns NCCL's own words for this result."""
        try:
            return str(self.core.get_error_string(code))
        except Exception:  # the library that would say it is the one that fails
            return f"ncclResult_t {code}"

    def version(self) -> str | None:
        """Returns the version of the NCCL that nccl4py has found, and where; None where it has
        found none."""
        found = self.core.get_version().libnccl
        return None if found is None else str(found)


_loaded: list[Library] = []


def load() -> Library:
    """nccl4py. Raises ImportError where it is not installed, or cannot be loaded."""
    if not _loaded:
        _loaded.append(Library(importlib.import_module("nccl.core")))
    return _loaded[0]


def unavailable(backend: str, cuda: Any = torch.cuda, version: Any = torch.version) -> str | None:
    """Why NCCL cannot be used in this process, in a sentence with the next step; None if it can."""
    if getattr(version, "cuda", None) is None:
        return (
            f"backend {backend} needs a torch that is built with CUDA, and this is "
            f"{torch.__version__}: install one of the CUDA builds from pytorch.org, or use "
            f"backend tcp"
        )
    if not cuda.is_available():
        return (
            f"backend {backend} needs an NVIDIA GPU, and torch finds none on this host: see "
            f"nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend tcp"
        )
    if importlib.util.find_spec("nccl") is None:
        return f"backend {backend} needs nccl4py, which is not installed: {INSTALL}"
    try:
        found = load().version()
    except Exception as error:  # whatever a binary package raises while it is loaded
        return (
            f"backend {backend}: nccl4py cannot be loaded ({type(error).__name__}: {error}): "
            f"{INSTALL}"
        )
    if found is None:
        return (
            f"backend {backend}: nccl4py finds no libnccl.so.2: install "
            f"nvidia-nccl-cu{str(version.cuda).split('.')[0]}, or put its folder on LD_LIBRARY_PATH"
        )
    return None
