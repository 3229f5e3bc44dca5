"""The entry points of an installed distdebug: the command's function, and the plugin of pytest.

It is the one module of ours whose name is looked up on a search path by somebody else. It finds the
package by its own place, so that a project with a module `distdebug`, or a PYTHONPATH that leads to
one, changes nothing for either.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from typing import Any

_NAME = "_distdebug.hook.loading"
_PLUGIN = "distdebug.testing.plugin"


def _loading() -> Any:
    """Our loader: installed, the package lies beside this file; in the repository, around it."""
    if _NAME not in sys.modules:
        here = os.path.dirname(os.path.abspath(__file__))
        beside = os.path.join(here, "distdebug", "hook")
        folder = beside if os.path.isdir(beside) else os.path.dirname(here)
        spec = importlib.util.spec_from_file_location(_NAME, os.path.join(folder, "loading.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


def main() -> int:
    """The command `distdebug`; returns its exit code."""
    loading = _loading()
    loading.ours_first()
    code: int = loading.load("cli").main()
    gc.freeze()  # nobody looks for garbage in a process that ends: 30 ms of each run
    return code


def pytest_addoption(pluginmanager: Any) -> None:
    """pytest takes this module for a plugin: it registers ours by the name by which a project may
    ask for it, too, so that it is there once, and without that name being imported."""
    if not pluginmanager.has_plugin(_PLUGIN):
        loading = _loading()
        loading.load()
        loading.installed()
        pluginmanager.register(loading.load("testing.plugin"), _PLUGIN)
