"""torchrun's own argument parser, had without the 2 s that importing torch costs."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn, cast

from ..errors import UsageError
from ..hook import loading
from ..record import torch_versions
from .definitions import NotTakenError, PackageSource

_MODULE = "torch.distributed.run"
_FUNCTION = "get_args_parser"

ParserMaker = Callable[[], argparse.ArgumentParser]


def torchrun_parser() -> argparse.ArgumentParser:
    """Return the parser of the installed torch's torchrun; its errors raise `UsageError`.

    The defaults are torch's, so the `PET_*` environment variables count as torchrun counts them.
    The parser is taken from torch's source; where that fails, torch is imported after all.

    Raises:
        UsageError: torch is not installed, is too old, cannot be imported, or refuses a `PET_*`
            variable.
    """
    try:
        parser = _call(PackageSource("torch", _torch_directory()).take(_MODULE, _FUNCTION))
    except NotTakenError:
        parser = _call(_imported_maker())
    parser.error = _raise_usage_error  # type: ignore[method-assign]
    return parser


def _torch_directory() -> Path:
    try:
        path = loading.programs_path or sys.path
        spec = None if "torch" in sys.modules else PathFinder.find_spec("torch", path)
        spec = spec or importlib.util.find_spec("torch")
    except ValueError:  # torch is in sys.modules without a spec, as in a test's fake
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "torch is not installed in this Python, and `distdebug run` starts torchrun: "
            "pip install torch"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not any(folder.glob("_C*")):
        raise UsageError(
            f"torch cannot be imported: {folder} lacks its C++ part (torch._C); install it anew: "
            "pip install --force-reinstall torch"
        )
    old = torch_versions.too_old(torch_versions.of_package(folder))
    if old:
        raise UsageError(f"{old}: pip install --upgrade torch")
    return folder


def _imported_maker() -> ParserMaker:
    try:
        return cast("ParserMaker", getattr(importlib.import_module(_MODULE), _FUNCTION))
    except Exception as error:
        raise UsageError(
            f"this torch has no usable torchrun ({type(error).__name__}: {error}); "
            "`distdebug exec -- COMMAND` needs none"
        ) from error


def _call(maker: ParserMaker) -> argparse.ArgumentParser:
    try:
        return maker()
    except ValueError as error:  # PET_MODULE=yes, where torch wants a number
        raise UsageError(f"torchrun does not accept a PET_* variable: {error}") from error


def _raise_usage_error(message: str) -> NoReturn:
    raise UsageError(f"torchrun: {message}")
