"""What makes a process that was forked where torch is loaded as one that was executed."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def surroundings(request: Mapping[str, Any]) -> None:
    """The folder, the environment and the standard streams that were asked for."""
    for number, path in enumerate([os.devnull, *request["output"]]):
        flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update({"OMP_NUM_THREADS": "1", **request["env"]})  # as torchrun
    os.chdir(request["cwd"])
    sys.meta_path[:] = [one for one in sys.meta_path if not _is_of_pytest(one)]


def _is_of_pytest(finder: object) -> bool:
    """It rewrites assertions, and no program has it."""
    return type(finder).__module__.startswith("_pytest")


def forked(body: Callable[[], None]) -> int:
    """The process id of a child that does this and ends as a Python program does."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        end(body)
    return pid


def end(body: Callable[[], None]) -> NoReturn:
    """End the process as Python does at the end of a program that is `body`. Nothing may be raised
    from here: below on the stack is the code of those from whom this process was forked."""
    code = 0
    try:
        body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


# At the end of a rank no line of its program is on the stack, and these are none of it.
for _function in (forked, end):
    _function.__code__ = _function.__code__.replace(co_filename="<frozen in_fork>")
