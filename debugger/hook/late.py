"""Brings the layer into a process that runs already; executed there, in a thread of its own.

`inspection/injection` has the interpreter run a few lines that start that thread: all else is done
here, where the main thread does not wait for it, and where an import that it has begun is waited
for like by any other thread. Nothing of it may break the program, which sees neither new names nor
another search path.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ALIAS = "_distdebug"
_ALREADY = "distdebug is in this process already"
_AGAIN = (
    "an install has been given up in it before: its hooks are out, and it cannot have the layer a "
    "second time before it is started again"
)


def come(run: str) -> None:
    """Install the layer, if that is still wanted; what hinders it is told in the run directory."""
    if not os.path.exists(os.path.join(run, "install", "wanted")):
        return
    try:
        if hasattr(sys.modules.get(_ALIAS), "_gave_up"):
            raise RuntimeError(_AGAIN)
        if f"{_ALIAS}.rank.install" in sys.modules:
            raise RuntimeError(_ALREADY)
        if "torch.distributed" not in sys.modules:
            raise RuntimeError("it has not imported torch.distributed")
        loading = _loading()
        with loading.core:
            loading.load()
            loading.installed()  # which finds distcore where the program's environment has none
            layer = loading.load("rank.process.late_layer")
        try:
            layer.begin(run)
        finally:  # it comes back where the install is given up, and at the program's end
            vars(sys.modules[_ALIAS])["_gave_up"] = True
    except BaseException as error:
        _refuse(run, error)


def _loading() -> Any:
    """`hook.loading`, from beside this file."""
    name = _ALIAS + ".hook.loading"
    if name in sys.modules:  # pytest has our plugin
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, os.path.join(_HERE, "loading.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _refuse(run: str, error: BaseException) -> None:
    """In the form of `record.requests.late_install`, which may be what could not be imported."""
    why = error.args[0] if type(error) is RuntimeError and error.args else repr(error)
    told: dict[str, object] = {
        "pid": os.getpid(),
        "state": "refused",
        "rank": -1,
        "world_size": 0,
        "why": str(why),
    }
    told |= {"seen": {}, "members": {}, "paused_ms": 0.0}
    path = os.path.join(run, "install", f"{os.getpid()}.json")
    try:
        with open(f"{path}.new", "w") as file:
            json.dump(told, file)
        os.rename(f"{path}.new", path)
    except OSError:
        pass  # the run directory is gone
