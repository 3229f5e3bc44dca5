"""Why there is no plan of this program: one sentence, which the command ends with."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..record import call_site

_LAUNCHERS = ("torchrun", "mpiexec", "mpirun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def refuse(directory: Path, name: str, sentence: str) -> NoReturn:
    """Leave the sentence, unless there is one, and end this process at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory / name, flags, 0o600)
        os.write(descriptor, sentence.encode())
    os._exit(0)


def line_of_user() -> str:
    """Returns where the program is, such as "train.py:30"; "" where none of it is on the stack."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith("<") and call_site.frame_kind(path) == call_site.USER:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def on_started_ranks(tell: Callable[[str], None]) -> None:
    """From now on `tell` hears what command is about to be started as a rank, or to start ranks."""
    usual: Any = subprocess.Popen.__init__

    def start(self: Any, args: Any, *others: Any, **named: Any) -> None:
        env = named.get("env", others[9] if len(others) > 9 else None)
        if _starts_ranks(args, env):
            tell(args if isinstance(args, str) else " ".join(map(str, args))[:80])
        usual(self, args, *others, **named)

    setattr(subprocess.Popen, "__init__", start)  # noqa: B010


def _starts_ranks(args: str | Sequence[Any], env: Mapping[str, str] | None) -> bool:
    own = os.environ
    if env is not None and "RANK" in env and env.get("RANK") != own.get("RANK"):
        return True
    words = args.split() if isinstance(args, str) else [str(word) for word in args]
    named = {os.path.basename(word) for word in words[:1]}
    return bool(named & set(_LAUNCHERS)) or any(word in _MODULES for word in words[:6])
