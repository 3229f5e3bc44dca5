"""Merges the stacks of all ranks into one prefix tree, and reads from a stack what matters.

Ranks that are at the same place share a branch, so that a hang of 64 ranks reads as two or three
paths, each with its ranks. What belongs to this tool, to torch or to the start of a process is
hidden in text; JSON has every frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...record import snapshot
from ...record.safe_text import clean
from ...record.wording import RankState, ranges
from .stacks import Frame, ThreadStack, line_of

SCHEMA = "distdebug.stacks/1"
MAX_SHOWN_FRAMES = 60
_TORCH = re.compile(
    r"(?:site|dist)-packages/(?:(?:torch|torchgen|functorch)/|typing_extensions\.py$)|/pytorch/torch/"
)
"""torch's deprecations go through typing_extensions."""
_LIBRARY = re.compile(r".*/(?:lib(?:64)?/python3\.\d+t?|(?:site|dist)-packages)/(.+)")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)|^<frozen ")
_START_FILES = re.compile(
    r"/runpy\.py$|/importlib/|^<frozen |"
    r"/multiprocessing/(?:spawn|process|popen_\w+|context|forkserver)\.py$|"
    r"/site-packages/(?:_pytest|pluggy)/|/(?:debugger|distdebug)/testing/(?:fork_server|rank_\w+)\.py$"
)
_START_FUNCTIONS = frozenset({"_bootstrap", "_bootstrap_inner", "run"})
_WRAPPERS = frozenset({"wrapper", "inner", "decorate_context", "__call__"})

_LOCK_WAITS = {
    "threading.py": {"acquire", "wait", "wait_for", "join", "__enter__", "_wait_for_tstate_lock"},
    "queue.py": {"get", "put", "join"},
    "queues.py": {"put"},  # of multiprocessing: it is full
    "synchronize.py": {"acquire", "wait", "wait_for", "__enter__"},
    "_base.py": {"result", "exception", "wait"},
    "__init__.py": {"acquire"},  # of logging, whose handlers have locks
    "<frozen importlib._bootstrap>": {"acquire"},
}
_HANDED_OVER = {
    "threading.py": {"wait", "wait_for", "join", "_wait_for_tstate_lock"},
    "queue.py": {"get", "put", "join"},
    "_base.py": {"result", "exception", "wait"},
}
_LOCK_LINE = re.compile(r"^\s*(?:async\s+)?with\b|\.(?:acquire|join|get|put|flock|lockf)\(")
_KERNEL_LOCKS = ("futex", "lock_inode", "posix_lock", "flock", "setlk")
_NATIVE_LOCKS = frozenset({"pthread_cond_wait", "sem_wait", "lll_lock_wait", "new_sem_wait"})
"""Functions of the C library, without what stands before and behind their names."""
_LOCK_PACKAGE = re.compile(r"/(?:site|dist)-packages/filelock/")
"""Between two tries to get its file it sleeps, so that the kernel has no word of a lock."""


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames worth reading, innermost first: the user's, and the public function of torch
    that the innermost of them called; empty where there is none of the user's code."""
    line = _users_line(frames)
    if line is None:
        return ()
    called = next(
        (
            index
            for index in range(line - 1, -1, -1)
            if is_torch(frames[index]) and not is_wrapper(frames[index])
        ),
        None,
    )
    return tuple(
        frame
        for index, frame in enumerate(frames)
        if index == called
        or (frame.native and not frame.function.startswith("0x"))
        or not (
            frame.native
            or is_torch(frame)
            or is_own(frame)
            or _is_start(frame)
            # An injected fault happens in a frame in the likeness of the user's that called us.
            or (frame in frames[index + 1 :] and is_own(frames[index + 1]))
        )
    )


def state_of(stack: ThreadStack) -> RankState:
    """Returns the state of a rank in no call, by its thread."""
    return RankState.WAITS_FOR_LOCK if waits_for_lock(stack) else RankState.RUNS


def waits_for_lock(stack: ThreadStack) -> bool:
    """Whether the thread waits for a lock, condition, queue or thread of the user's own: not of
    torch (a data loader's queue), and not for the GIL."""
    if stack.active or stack.holds_gil:
        return False
    python = stack.python_frames
    below = called_by_user(stack)
    if any(is_torch(frame) or is_own(frame) for frame in below):
        return False
    for frame in below:
        if frame.function.rpartition(".")[2] in _LOCK_WAITS.get(Path(frame.file).name, ()):
            return True
    native = stack.frames[0].function.strip("_").partition("@")[0] if stack.frames else ""
    if native in _NATIVE_LOCKS or (python and _LOCK_PACKAGE.search(python[0].file)):
        return True
    # `with lock:` has no Python frame of its own: the line and the kernel have to tell.
    if below or not python or not any(word in stack.wait for word in _KERNEL_LOCKS):
        return False
    return bool(_LOCK_LINE.search(line_of(python[0])))


def waits_for_thread(stack: ThreadStack) -> bool:
    """Whether it waits for what another thread of its process hands over: an element of a queue, an
    event, a result. (A lock is given back, and who holds it need not be at work for that.)"""
    below = called_by_user(stack)
    return waits_for_lock(stack) and any(
        frame.function.rpartition(".")[2] in _HANDED_OVER.get(Path(frame.file).name, ())
        for frame in below
    )


def may_wait_for_thread(stack: ThreadStack) -> bool:
    """Whether the thread may wait for another: it joins one, or all at the end of the program, asks
    a future, or runs a loop."""
    return any(
        (frame.file.endswith("/threading.py") and frame.function.endswith(("join", "_shutdown")))
        or "/concurrent/futures/" in frame.file
        or "/asyncio/" in frame.file
        for frame in called_by_user(stack)
    )


def called_by_user(stack: ThreadStack) -> Sequence[Frame]:
    """Returns the frames that the user's innermost line has called, innermost first."""
    python = stack.python_frames
    return python[: _users_line(python)]


@dataclass(slots=True)
class TreeNode:
    """Frames (outermost first) that `ranks` have in common, and where they part."""

    frames: tuple[Frame, ...]
    ranks: tuple[int, ...]
    children: list[TreeNode] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": list(self.ranks),
            "frames": [_frame_json(one) for one in self.frames],
            "notes": list(self.notes),
            "children": [child.to_json() for child in self.children],
        }


def _frame_json(frame: Frame) -> dict[str, Any]:
    """Returns a frame, with its line of source where that is the program's own."""
    found = {
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "native": frame.native,
    }
    if not (frame.native or is_torch(frame) or is_own(frame) or _is_standard(frame)):
        found["source"] = line_of(frame).strip()
    return found


@dataclass(frozen=True, slots=True)
class _Path:
    rank: int
    frames: tuple[Frame, ...]
    note: str


def merge(
    stacks: Mapping[int, Sequence[ThreadStack]], everything: bool = False
) -> dict[str, TreeNode]:
    """Merges the stacks to one tree per thread name, the main thread first. Without `everything`
    only `own_frames`, and no thread but the main one that has none."""
    paths: dict[str, list[_Path]] = {}
    for rank in sorted(stacks):
        for thread in stacks[rank]:
            frames = tuple(thread.frames) if everything else own_frames(thread.frames)
            main = thread.name == "MainThread"
            if not frames and not everything:
                if not main:
                    continue
                frames = tuple(thread.frames)
            # Threads are numbered as each rank started them: "Thread-3 (load)".
            name = "MainThread" if main else re.sub(r"-\d+\b|_\d+$", "", thread.name) or "unnamed"
            paths.setdefault(name, []).append(_Path(rank, frames[::-1], _note(thread)))
    names = sorted(paths, key=lambda name: (name != "MainThread", name))
    return {
        name: TreeNode((), tuple(sorted({one.rank for one in paths[name]})), _branch(paths[name]))
        for name in names
    }


def render(stacks: Mapping[int, Sequence[ThreadStack]], word: str = "rank") -> str:
    """The merged stacks as text, outermost frame first; every line is safe to print.

    `word` says what the keys are ("rank" or "pid")."""
    lines: list[str] = []
    for name, root in merge(stacks).items():
        lines.append(f"{clean(name, 80)} of {ranges(root.ranks, word)}")
        _render(root, 1, word, lines)
    silent = [rank for rank, threads in stacks.items() if not threads]
    if silent:
        lines.append(f"no stack of {ranges(silent, word)}: the process has ended")
    return "\n".join(lines) + "\n" if lines else ""


def to_json(stacks: Mapping[int, Sequence[ThreadStack]]) -> dict[str, Any]:
    """The merged stacks, every frame of every thread, for stacks.json."""
    return {
        "schema": SCHEMA,
        "threads": [
            {"name": name, "ranks": list(root.ranks), "tree": [c.to_json() for c in root.children]}
            for name, root in merge(stacks, everything=True).items()
        ],
        "silent": sorted(rank for rank, threads in stacks.items() if not threads),
    }


def describe(frame: Frame) -> str:
    """`step (train.py:88)`."""
    match = _LIBRARY.match(frame.file)
    file = match[1] if match else Path(frame.file).name
    place = f"{file}:{frame.line}" if frame.line else file
    return clean(f"{frame.function} ({place})", 200)


def main_of(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The main thread, if its stack is there."""
    return next((one for one in threads if one.name == "MainThread"), None)


def lines_of(thread: ThreadStack) -> list[str]:
    """The thread's frames, innermost first, printable."""
    return [describe(frame) for frame in own_frames(thread.frames) or thread.frames]


def _branch(paths: list[_Path]) -> list[TreeNode]:
    groups: dict[Frame, list[_Path]] = {}
    for path in paths:
        if path.frames:
            groups.setdefault(path.frames[0], []).append(path)
    nodes = []
    for members in groups.values():
        shared = 1
        shortest = min(len(path.frames) for path in members)
        while shared < shortest and len({path.frames[shared] for path in members}) == 1:
            shared += 1
        ended = [path for path in members if len(path.frames) == shared and path.note]
        notes: dict[str, list[int]] = {}
        for path in ended:
            notes.setdefault(path.note, []).append(path.rank)
        ranks = tuple(sorted({path.rank for path in members}))
        nodes.append(
            TreeNode(
                members[0].frames[:shared],
                ranks,
                _branch([_Path(p.rank, p.frames[shared:], p.note) for p in members]),
                tuple(
                    note if set(who) == set(ranks) else f"{ranges(who)} {note}"
                    for note, who in sorted(notes.items())
                ),
            )
        )
    return sorted(
        nodes, key=lambda node: (node.ranks, node.frames[0].function, node.frames[0].line)
    )


def _render(node: TreeNode, depth: int, word: str, lines: list[str]) -> None:
    for child in node.children:
        label = f"    <- {ranges(child.ranks, word)}" if child.ranks != node.ranks else ""
        shown = list(map(describe, child.frames))
        if len(shown) > MAX_SHOWN_FRAMES:
            half = MAX_SHOWN_FRAMES // 2
            hidden = len(shown) - 2 * half
            shown = [*shown[:half], f"... {hidden} more frames ...", *shown[-half:]]
        for offset, text in enumerate(shown):
            # Deep stacks stay readable: the indentation stops growing.
            indent = "  " * min(depth + offset, 24)
            notes = "".join(f"  [{one}]" for one in child.notes) if text is shown[-1] else ""
            lines.append(f"{indent}{text}{notes}{label}")
            label = ""
        _render(child, depth + len(shown), word, lines)


def _note(thread: ThreadStack) -> str:
    notes = []
    if "signal_stop" in thread.wait:
        notes.append("stopped")
    elif thread.active and not thread.holds_gil:
        notes.append("running")
    if thread.holds_gil:
        notes.append("holds the GIL")
    if thread.source != "py-spy":
        notes.append(f"by {thread.source}")
    return ", ".join(notes)


def _users_line(frames: Sequence[Frame]) -> int | None:
    """The index of the innermost frame of the user's own code."""
    for index, frame in enumerate(frames):
        if not (frame.native or is_torch(frame) or is_own(frame) or _is_standard(frame)):
            return index
    return None


def users_frame(frames: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The innermost frame of the user's own code, and the line of an installed package that it led
    to (`accelerate/state.py:412`), or "". Where only packages are there, the innermost of them."""
    line = _users_line(frames)
    if line is None:
        return None
    first = frames[line]
    package = _PACKAGE.search(first.file)
    for frame in frames[line:] if package else ():
        own = is_own(frame) or _PACKAGE.search(frame.file)
        if not (own or frame.native or _is_standard(frame)):
            return frame, f"{package[1]}:{first.line}" if package else ""
    return first, ""


def is_torch(frame: Frame) -> bool:
    return not frame.native and _TORCH.search(frame.file) is not None


def is_own(frame: Frame) -> bool:
    """Whether it is of this tool."""
    return snapshot.is_own(frame.file)


def _is_standard(frame: Frame) -> bool:
    return _STANDARD.search(frame.file) is not None


def _is_start(frame: Frame) -> bool:
    if frame.file.endswith("/threading.py"):
        return frame.function.rpartition(".")[2] in _START_FUNCTIONS
    return _START_FILES.search(frame.file) is not None


def is_wrapper(frame: Frame) -> bool:
    """Whether it is private, or only hands its arguments on."""
    name = frame.function.rpartition(".")[2]
    return name.startswith("_") or name in _WRAPPERS
