"""Finds the line of the user's own code that led to a call."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
from traceback import walk_tb
from types import CodeType, FrameType

from . import frames

_HERE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
_DISTCORE = os.path.join(os.path.dirname(_HERE), "distcore", "")
_BENCHMARKS = os.path.join(_HERE, "benchmarks", "")
_STDLIB = tuple(os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_AUTOGRAD = f"{os.sep}torch{os.sep}autograd{os.sep}graph.py"
_GRAPH = "<eval_with_key>"
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_INDUCTOR = f"{os.sep}torchinductor_"
OWN, LIBRARY, USER = 0, 1, 2
"""OWN: this tool, torch and the standard library. LIBRARY: other installed packages."""

DIRECTORIES = [os.path.join(_HERE, "rank", ""), _DISTCORE]
"""The directories of this tool's code that runs in a rank."""

kinds: dict[str, int] = {}
"""The answers of `frame_kind` so far."""


def frame_kind(filename: str) -> int:
    """Tells whose code a file holds: OWN, LIBRARY or USER."""
    kind = kinds.get(filename)
    if kind is None:
        kind = kinds[filename] = _classify(filename)
    return kind


def _classify(filename: str) -> int:
    if filename.startswith(_BENCHMARKS):
        return USER  # they play the user's part
    if filename.startswith((_HERE + os.sep, _DISTCORE, "<frozen", "<__array", "<string>", _GRAPH)):
        return OWN
    if _INDUCTOR in filename or filename.startswith(os.environ.get(_INDUCTOR_CACHE) or "\0"):
        return OWN  # what torch.compile has written
    inside = _inside_packages(filename)
    if inside:
        own = tuple(name + os.sep for name in ("torch", "torchgen", "distcore"))
        if inside.startswith(own) or inside == "typing_extensions.py":  # torch's deprecations
            return OWN
        return USER if filename == _script() else LIBRARY
    return OWN if filename.startswith(_STDLIB) else USER


def _inside_packages(filename: str) -> str:
    """`accelerate/state.py`, for a file of an installed package; "" for any other."""
    packages = max(filename.rfind(marker) for marker in _PACKAGES)
    if packages >= 0:
        return filename[packages + len(_PACKAGES[0]) :]
    for folder in sys.path:
        if folder and filename.startswith(os.path.join(folder, "")) and _has_packages(folder):
            return filename[len(os.path.join(folder, "")) :]
    return ""


@functools.cache
def _has_packages(folder: str) -> bool:
    """Whether pip has installed packages into this folder (`pip install --target`). Where the
    script itself lies, what lies beside it is the user's."""
    if folder == os.path.dirname(_script()):
        return False
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def _script() -> str:
    """The program itself: the user's, wherever it lies."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if isinstance(path, str) else ""


def through(filename: str, line: int) -> str:
    """`accelerate/state.py:412`, for a line of an installed package."""
    return f"{_inside_packages(filename) or os.path.basename(filename)}:{line}"


def is_torch(filename: str) -> bool:
    """Whether a file is one of torch's own."""
    return f"{os.sep}torch{os.sep}" in filename and frame_kind(filename) == OWN


def is_compiled(code: CodeType) -> bool:
    """Whether torch.compile has made this code of a function: its frame stands at the function's
    first line, whatever it does."""
    return any(name.startswith("__compiled_fn") for name in code.co_names)


def is_graph(code: CodeType) -> bool:
    """Whether this is the code of a graph that torch has traced."""
    return code.co_filename.startswith(_GRAPH)


def graph_below(frame: FrameType | None, compiled: FrameType) -> FrameType | None:
    """The frame of the graph from which a compiled function calls, between these two frames."""
    while frame is not None and frame is not compiled:
        if is_graph(frame.f_code):
            return frame
        frame = frame.f_back
    return None


def find(frame: FrameType | None, of_another: bool = False) -> FrameType | None:
    """The innermost frame of the user's code at or above `frame`; `of_another`: of a thread that
    may run meanwhile.

    Where only installed packages are on the stack, the innermost of theirs; None when there is
    nothing but torch and the standard library (a thread of the autograd engine, say).
    """
    library = None
    while frame is not None:
        filename = frame.f_code.co_filename
        kind = kinds.get(filename)
        if kind is None:
            kind = frame_kind(filename)
        if kind == USER:
            return frame
        if kind == LIBRARY and library is None:
            library = frame
        frame = frames.caller(frame) if of_another else frame.f_back
    return library


def of_thread(ident: int) -> FrameType | None:
    """The user's frame in which another thread of this process stands."""
    return find(frames.of_thread(ident), of_another=True)


def in_backward() -> bool:
    """Whether the main thread waits for autograd, whose own threads call hooks."""
    frame = frames.of_thread(threading.main_thread().ident)
    return frame is not None and frame.f_code.co_filename.endswith(_AUTOGRAD)


def by_autograd(frame: FrameType | None) -> bool:
    """Whether autograd's C++ code has called this tool's at `frame`: DDP's reducer does, where a
    hook of the program's would stand between."""
    while frame is not None and frame.f_code.co_filename.startswith(DIRECTORIES[0]):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith(_AUTOGRAD)


def users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own code at or above this one of another thread; None where
    there are only those of packages."""
    found = find(frame, of_another=True)
    return found if found is not None and frame_kind(found.f_code.co_filename) == USER else None


def waits_for(library: FrameType, ident: int) -> FrameType | None:
    """The user's frame from which that thread stands in the package that `library` is of: of a
    package that works in a thread of its own, who has called it and waits. None where the thread is
    anywhere else: then nobody can tell for whom the package works."""
    package = _package(library)
    frame = frames.of_thread(ident)
    while frame is not None and frame_kind(frame.f_code.co_filename) == OWN:
        frame = frames.caller(frame)
    if frame is None or _package(frame) != package:
        return None
    return users(frame)


def _package(frame: FrameType) -> str:
    """`accelerate`, for a frame of its code; "" for the user's, which is no package's."""
    name = frame.f_code.co_filename
    return _inside_packages(name).partition(os.sep)[0] if frame_kind(name) == LIBRARY else ""


def raised_by_user(error: BaseException) -> bool:
    """Whether the innermost frame of this error is the user's: in a signal's handler, say."""
    names = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return frame_kind(names[-1]) == USER if names else False


def is_layers(filename: str) -> bool:
    """Whether a file is this tool's, but for distcore and for what plays the user's part."""
    return filename.startswith(_HERE + os.sep) and not filename.startswith(_BENCHMARKS)


@functools.cache
def is_distributed(filename: str) -> bool:
    """Whether a file is torch.distributed's front end, distcore's or this layer."""
    return filename.startswith((_HERE + os.sep, _DISTCORE)) or (
        is_torch(filename) and f"{os.sep}distributed{os.sep}" in filename
    )
