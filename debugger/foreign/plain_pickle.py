"""Loads pickles that hold plain data, and nothing else: a dump from elsewhere runs no code here.

A pickle is a program for a small machine. What it may not do here: name a global (every way to run
code starts with one), ask for a persistent object or an extension, or take more memory than
`MOST_MEMORY_BYTES` (a few bytes can declare gigabytes, or a memo with two thousand million places).
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..system.memory import address_space_bytes

MOST_MEMORY_BYTES = 2 << 30
"""More than this is not taken, beyond what the process has already."""

_BUFFER_BYTES = 1 << 16
_TUPLES = (b"\x85", b"\x86", b"\x87", b"t")
"""The instructions that make one."""
_PART_BYTES = 1 << 12
MOST_TUPLES = 20_000
"""So deep a tuple can be hashed on a thread's stack, five times over."""


class NotPlain(ValueError):
    """The pickle holds something else than plain data, or is no pickle; a sentence without a
    subject: "names the global os.system"."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise NotPlain(f"names the global {module}.{name}, which a dump has no need of")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise NotPlain("asks for a persistent object, which a dump has no need of")

    def get_extension(self, code: int) -> NoReturn:
        raise NotPlain(f"asks for extension {code}, which a dump has no need of")


def loads(data: bytes) -> object:
    """The plain object in `data`: dict, list, tuple, str, int, float, bool, None, bytes.

    Raises NotPlain.
    """
    # A file without `peek` is asked for each of the machine's steps: three times as slow.
    file = io.BufferedReader(io.BytesIO(data), _BUFFER_BYTES)
    try:
        return _Plain(file).load()
    except NotPlain:
        raise
    except MemoryError:
        raise NotPlain("declares more than it holds") from None
    except RecursionError:
        raise NotPlain("is nested too deeply") from None
    except Exception as error:  # whatever the machine meets in bytes that make no sense
        raise NotPlain(f"is damaged or no pickle ({type(error).__name__})") from None


def may_be_deep(data: bytes) -> bool:
    """Whether tuples may be nested so deeply in this pickle that who hashes one is ended by the
    system, for CPython does that on the stack and does not count."""
    if data[:1] != b"\x80" or len(data) <= MOST_TUPLES:
        return False
    parts = (data[at : at + _PART_BYTES] for at in range(0, len(data), _PART_BYTES))
    # Nearly all of a dump of a big job are the numbers of ranks, in which there is no instruction.
    told = [part for part in parts if b"t" in part or not part.isascii()]
    return sum(map(len, told)) > MOST_TUPLES < sum(sum(map(part.count, _TUPLES)) for part in told)


def survives(work: Callable[[], object]) -> bool:
    """Whether a process that does this lives to its end: a child does it, and what it comes to is
    lost. Raises OSError where no process can be made."""
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()  # what ends the child is not for the terminal
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(Exception):
                work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Within, this process takes at most `MOST_MEMORY_BYTES` more: beyond it, MemoryError. What
    CPython prints beside that, of a bytearray that it could not make, is not shown."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = address_space_bytes() + MOST_MEMORY_BYTES
    limits = [wanted, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    shows, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        yield
    finally:
        sys.excepthook = shows
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
