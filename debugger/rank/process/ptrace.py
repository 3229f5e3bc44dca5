"""`--ptrace-any`: stacks of this process may be taken from outside, by any process of the user.

Where Yama restricts ptrace (`ptrace_scope` 1), only those above a process may read it; a shell that
somebody opens on the host hours later is not above it. The kernel lets a process say that it does
not mind, at once and for itself alone: a forked child has to say so again.
"""

from __future__ import annotations

import ctypes
import os

VARIABLE = "DISTDEBUG_PTRACE_ANY"
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def open_to_all(libc: ctypes.CDLL | None = None) -> bool:
    """Say so, where the environment asks for it. False where it is not asked for, or where the
    kernel has no Yama, which then forbids nothing either."""
    if not os.environ.get(VARIABLE):
        return False
    library = libc or ctypes.CDLL(None)
    return bool(library.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0) == 0)
