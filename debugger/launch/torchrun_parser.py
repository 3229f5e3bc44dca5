"""torchrun's own argument parser, had without the 2 s that importing torch costs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, cast

from ..errors import UsageError
from ..record import torch_versions
from . import pythons
from .definitions import NotTakenError, PackageSource
from .pythons import Python

_MODULE = "torch.distributed.run"
_FUNCTION = "get_args_parser"

ParserMaker = Callable[[], argparse.ArgumentParser]


def torchrun_parser(python: Python | None = None) -> argparse.ArgumentParser:
    """Return the parser of that Python's torchrun (by default of this one's); its errors raise
    `UsageError`.

    The defaults are torch's, so the `PET_*` environment variables count as torchrun counts them.
    The parser is taken from torch's source; where that fails, this Python imports torch after all.

    Raises:
        UsageError: torch is not installed, is too old, cannot be imported, or refuses a `PET_*`
            variable.
    """
    python = python or pythons.this()
    try:
        parser = _call(PackageSource("torch", _torch_directory(python)).take(_MODULE, _FUNCTION))
    except NotTakenError as error:
        if not python.is_this:
            instead = f"`distdebug exec -- {python.executable} -m {_MODULE} ...` needs none"
            raise UsageError(f"that torch has no usable torchrun ({error}); {instead}") from error
        parser = _call(_imported_maker())
    parser.error = _raise_usage_error  # type: ignore[method-assign]
    return parser


def _torch_directory(python: Python) -> Path:
    install = "pip install" if python.is_this else f"{python.executable} -m pip install"
    if not python.torch:
        raise UsageError(
            f"torch is not installed in {python.executable}, and `distdebug run` starts torchrun: "
            f"{install} torch, or name the Python that has it: distdebug run --python PATH ..."
        )
    folder = Path(python.torch[0])
    if not any(folder.glob("_C*")):
        raise UsageError(
            f"torch cannot be imported: {folder} lacks its C++ part (torch._C); install it anew: "
            f"{install} --force-reinstall torch"
        )
    old = torch_versions.too_old(torch_versions.of_package(folder))
    if old:
        raise UsageError(f"{old}: {install} --upgrade torch")
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
