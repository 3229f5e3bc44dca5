"""Brings the layer into a process that runs already; executed there, in a thread of its own.

`inspection/injection` has the interpreter run a few lines that start that thread: all else is done
here, where the main thread does not wait for it, and where an import that it has begun is waited
for like by any other thread. Nothing of it may break the program, which sees neither new names nor
another search path.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ALIAS = "_distdebug"
_CORE = "distcore"
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
        loaded = sys.modules.get(_ALIAS)
        if loaded is not None:
            raise RuntimeError(_AGAIN if hasattr(loaded, "_gave_up") else _ALREADY)
        if "torch.distributed" not in sys.modules:
            raise RuntimeError("it has not imported torch.distributed")
        _find(_CORE, os.path.join(os.path.dirname(_PACKAGE), _CORE), for_itself=True)
        _find(_ALIAS, _PACKAGE)
        try:
            importlib.import_module(_ALIAS + ".rank.process.late_layer").begin(run)
        finally:  # it comes back where the install is given up, and at the program's end
            vars(sys.modules[_ALIAS])["_gave_up"] = True
    except BaseException as error:
        _refuse(run, error)


def _find(name: str, folder: str, for_itself: bool = False) -> None:
    """Our package under this name, from where this file lies, whatever the search path has."""
    if name in sys.modules:
        return
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"{init} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    if for_itself:
        vars(module)["_for_itself"] = (
            True  # the program's torch hears nothing of distcore's backends
        )
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


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
