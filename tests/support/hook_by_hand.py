"""Runs distdebug's hook where no Python starts, which otherwise is what runs it."""

from __future__ import annotations

import importlib.util
from typing import Any

from distdebug.hook import SITE


def run() -> Any:
    """Run the hook as the start of Python does; its names."""
    spec = importlib.util.spec_from_file_location("sitecustomize", SITE / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
