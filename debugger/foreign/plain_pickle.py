"""Loads pickles that hold plain data, and nothing else: a dump from elsewhere runs no code here.

A pickle is a program for a small machine. What it may not do here: name a global (every way to run
code starts with one), ask for a persistent object or an extension, or take more memory than
`MOST_MEMORY_BYTES` (a few bytes can declare gigabytes, or a memo with two thousand million places).
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
from collections.abc import Iterator
from typing import Any, NoReturn

MOST_MEMORY_BYTES = 2 << 30
"""More than this is not taken, beyond what the process has already."""

_BUFFER_BYTES = 1 << 16


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


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Within, this process takes at most `MOST_MEMORY_BYTES` more: beyond it, MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + MOST_MEMORY_BYTES
    limits = [wanted, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
