"""Loads our packages from where this file lies, whatever the search path has by their names.

A program, its folder, its PYTHONPATH or its environment may have modules of its own that are called
as ours or as what ours need. In a process that is not ours alone (a rank, a launcher, pytest) the
package is `_distdebug`, and the program's names stay the program's: `import distdebug` and `import
distcore` give it ours only where its own search path leads to ours, or to nothing at all.

This file imports none of ours, so that it can be executed before the package, and as a script:
`python loading.py MODULE [WORD ...]` calls `main()` of a module of ours (see `command`).
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False  # `typing` takes the smallest processes longer to import than all else
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType, TracebackType
    from typing import Any

ALIAS = "_distdebug"
PUBLIC = "distdebug"
CORE = "distcore"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PARENT = os.path.dirname(PACKAGE)
_ALIASING = __name__ != f"{PUBLIC}.hook.loading"
"""Our package has the other name here: this file was loaded by its place."""
BORROWED = "DISTDEBUG_BORROWED"
"""The folders from which a process of another environment takes what it lacks."""
borrowed = [one for one in os.environ.get(BORROWED, "").split(os.pathsep) if one]
"""The same, where this is such a process."""

_SITES = ("site-packages", "dist-packages")


def load(name: str = "") -> ModuleType:
    """Our package, or a module of it, by the name that it has in processes that are not ours alone.

    Raises ImportError.
    """
    _place(ALIAS, PACKAGE)
    if name.partition(".")[0] == "tui":
        inside = os.path.join(PACKAGE, "tui")  # as it is installed; in the repository, beside us
        folder = inside if os.path.isdir(inside) else os.path.join(_PARENT, "tui")
        _place(f"{ALIAS}.tui", folder)
    return import_module(f"{ALIAS}.{name}" if name else ALIAS)


def _place(name: str, folder: str) -> None:
    """Make the package that lies in that folder a module of this name."""
    if name in sys.modules:
        return
    spec = _spec_at(name, folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} cannot be loaded")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _spec_at(name: str, folder: str) -> ModuleSpec | None:
    init = os.path.join(folder, "__init__.py")
    return spec_from_file_location(name, init, submodule_search_locations=[folder])


class Finder:
    """Gives a program what it means by our names, and calls who waits for a module.

    It stands first in `sys.meta_path`, and asks those behind it for the modules themselves.
    """

    def __init__(self, alone: bool = False) -> None:
        """`alone`: no program runs in this process, so that our names are ours."""
        self._alone = alone
        self._awaited: dict[str, list[Callable[[ModuleType], object]]] = {}

    def await_module(self, name: str, call: Callable[[ModuleType], object]) -> None:
        """Call it with the module of this name once that has been imported, or at once."""
        module = sys.modules.get(name)
        initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if module is not None and not initializing:
            call(module)
        else:
            self._awaited.setdefault(name, []).append(call)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._awaited:
            spec = self._ordinary(name, path)
            if spec is not None and spec.loader is not None:
                calls = self._awaited.pop(name)
                spec.loader = _Calling(spec.loader, calls)  # type: ignore[assignment]
            return spec
        if _ALIASING and name.partition(".")[0] == PUBLIC:
            return self._of_package(name, path)
        if name == CORE and self._alone:
            return _spec_at(CORE, os.path.join(_PARENT, CORE))
        if name == CORE:
            return self._of_core(path)
        return None

    def _ordinary(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if not isinstance(finder, Finder) and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path)
                if spec is not None:
                    return spec
        return None

    def _of_package(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        if name != PUBLIC:  # who has ours by that name has our modules
            ours = sys.modules.get(PUBLIC) is sys.modules.get(ALIAS)
            return ModuleSpec(name, _Alias(), is_package=True) if ours else None  # type: ignore[arg-type]
        spec = None if self._alone else self._ordinary(name, path)
        if spec is None or _is_at(spec, PACKAGE):
            return ModuleSpec(name, _Alias(), is_package=True)  # type: ignore[arg-type]
        return spec

    def _of_core(self, path: Sequence[str] | None) -> ModuleSpec | None:
        folder = os.path.join(_PARENT, CORE)
        spec = None if core.loading else self._ordinary(CORE, path)
        if spec is None and (core.loading or _ALIASING):
            spec = _spec_at(CORE, folder)
        if spec is not None and (core.loading or core.modules) and _is_at(spec, folder):
            spec.loader = _CoreLoader(spec.loader)  # type: ignore[assignment]
        return spec


def _is_at(spec: ModuleSpec, folder: str) -> bool:
    """Whether a package is the one in that folder."""
    found, ours = spec.origin or "", os.path.join(folder, "__init__.py")
    return found == ours or os.path.realpath(found) == os.path.realpath(ours)


class _Loader:
    """Stands before the loader of one module while that is imported."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # sources, resources: runpy and others ask for them

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def _execute(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)


class _Calling(_Loader):
    """Calls who waits for the module when it has been executed."""

    def __init__(self, loader: Any, calls: list[Callable[[ModuleType], object]]) -> None:
        super().__init__(loader)
        self._calls = calls

    def exec_module(self, module: ModuleType) -> None:
        # torch makes 400,000 objects that stay: a collector that walks them again and again takes a
        # sixth of its import. Frozen and thawed, they are old without having been walked.
        paused = module.__name__ == "torch" and gc.isenabled() and not gc.get_freeze_count()
        if paused:
            gc.disable()
        try:
            self._execute(module)
            for call in self._calls:
                call(module)
        finally:
            if paused:
                if not gc.get_freeze_count():  # nobody whom it called wants it frozen
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


class _Alias:
    """Gives the modules that we use ourselves for the program's `import distdebug`."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = load(spec.name[len(PUBLIC) :].lstrip("."))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Core:
    """Our own use of distcore, of which the program sees nothing: neither the modules nor the
    backends, until it imports distcore itself. A `with` stands around all imports of ours, one
    within another as well."""

    def __init__(self) -> None:
        self.loading = False
        self._depth = 0
        self.modules: dict[str, ModuleType] = {}
        self._programs: dict[str, ModuleType] = {}

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        installed()
        # If ours is there already it is the program's, too: it may be importing torch just now.
        module = sys.modules.get(CORE)
        spec = getattr(module, "__spec__", None)
        if module is not None and (spec is None or not _is_at(spec, os.path.join(_PARENT, CORE))):
            self._programs = _taken(CORE)  # another one, of the program's own
            module = None
        self.loading = module is None
        if self.loading:
            sys.modules.update(self.modules)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self.loading and not self._depth:
            self.loading = False
            self.modules = _taken(CORE)
            sys.modules.update(self._programs)
            self._programs = {}


def _taken(name: str) -> dict[str, ModuleType]:
    """The modules of a package, which are none of `sys.modules` any more."""
    names = [one for one in sys.modules if one.partition(".")[0] == name]
    return {one: sys.modules.pop(one) for one in names}


class _CoreLoader(_Loader):
    """Executes distcore for us, and gives the program what we have of it."""

    def create_module(self, spec: ModuleSpec) -> Any:
        if core.loading:
            return self._loader.create_module(spec)
        module = core.modules.pop(CORE)
        sys.modules.update(core.modules)
        core.modules = {}
        return module

    def exec_module(self, module: Any) -> None:
        module._for_itself = core.loading
        self._execute(module)


core = _Core()


def installed() -> Finder:
    """The finder of this process, made where there is none, in front of all others: pytest's own
    finds whatever a wheel with a plugin has by name, our packages included."""
    finder = next((one for one in sys.meta_path if isinstance(one, Finder)), None)
    if finder is None:
        finder = Finder()
    else:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, finder)
    return finder


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Call it with the module of this name: at once where it is imported already, or else as soon
    as it is. What it raises leaves the import."""
    installed().await_module(name, call)


def dependency(name: str) -> Any:
    """Imports what we need by this name, also where a module of the program's has the same name.

    It is looked for where packages are installed, then in the folders `borrowed`; the program's
    own module stays what its `import` gives. Raises ModuleNotFoundError.
    """
    places = [one for one in sys.path if os.path.basename(os.path.normpath(one)) in _SITES]
    places += borrowed
    spec = PathFinder.find_spec(name, places)
    loaded = sys.modules.get(name)
    has = getattr(loaded, "__spec__", None) if loaded else PathFinder.find_spec(name, sys.path)
    put_there = loaded is not None and has is None  # by somebody who means it
    if spec is None or put_there or (has is not None and has.origin == spec.origin):
        return import_module(name)
    if name not in _ours:
        assert spec.loader is not None
        programs = _taken(name)
        try:
            module = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            _ours[name] = module
        finally:
            _taken(name)
            sys.modules.update(programs)
    return _ours[name]


_ours: dict[str, ModuleType] = {}


def borrowed_from(*names: str) -> str:
    """The folders, as BORROWED has them, in which these packages lie here."""
    specs = [PathFinder.find_spec(name, sys.path) for name in names]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin]
    return os.pathsep.join(dict.fromkeys(os.path.dirname(os.path.dirname(one)) for one in origins))


def ours_first() -> None:
    """In a process of ours, what is installed comes before what PYTHONPATH and the current
    directory have: a project's modules may be called as ones that we need. What a program finds
    where is in `programs_path`."""
    programs_path[:] = sys.path
    asked = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    try:
        folders = {os.path.abspath(one) for one in asked}
    except FileNotFoundError:  # the working directory was removed
        folders = asked
    last = [one for one in sys.path if one in asked or os.path.normpath(one) in folders]
    sys.path[:] = [one for one in sys.path if one not in last] + last


programs_path: list[str] = []
"""`sys.path` as a program has it that is started like this process; empty where it is that."""


def command(module: str, *words: str, alone: bool = False, shared: bool = False) -> list[str]:
    """The words that start a process of ours, which calls `main()` of this module.

    `alone`: it needs the standard library only, and nothing of the program's environment has a part
    in it. `shared`: a program runs there, too, whose names are its own.
    """
    flags = ["-I", "-S"] if alone else []
    script = os.path.join(PACKAGE, "hook", "loading.py")
    return [sys.executable, *flags, script, "shared" if shared else "own", module, *words]


def _main(whose: str, module: str) -> Any:
    sys.argv[:2] = []
    finder = Finder(alone=whose == "own")
    sys.meta_path.insert(0, finder)
    if whose == "own":
        ours_first()
        code = load(module).main()
        gc.freeze()  # nobody looks for garbage in a process that ends: 30 ms of each run
        return code
    with core:
        loaded = load(module)
    return loaded.main()


if __name__ == "__main__":
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # which -I and -P, or PYTHONSAFEPATH, have left out
    sys.modules[f"{ALIAS}.hook.loading"] = sys.modules["__main__"]
    raise SystemExit(_main(sys.argv[1], sys.argv[2]))
