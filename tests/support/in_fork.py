"""What makes a process that was forked where torch is loaded as one that was executed."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import operator
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from distdebug.testing.channel import MessageChannel
from distdebug.testing.fork_server import Server

NAMESPACES = ("time", "net", "uts", "pid", "mnt")


def surroundings(request: Mapping[str, Any]) -> None:
    """The node, the folder, the environment and the standard streams that were asked for."""
    if request.get("node"):
        _enter(request["node"])
    for number, path in enumerate([os.devnull, *request["output"]]):
        flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update({"OMP_NUM_THREADS": "1", **request["env"]})  # as torchrun
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # whoever was forked from has asked for its own
    sys.meta_path[:] = [one for one in sys.meta_path if not _is_of_pytest(one)]


def _enter(init: int) -> None:
    """Go on as a process of the node that has this init, with the process of before in front of it
    for those who know its number: signals go through it, and it ends as this one does."""
    files = [os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for file in files:
        if ctypes.CDLL(None, use_errno=True).setns(file, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(file)
    # The process itself keeps its number; its children have those of the node.
    pid = os.fork()
    if not pid:
        os.setsid()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_of_pytest(finder: object) -> bool:
    """It rewrites assertions, and no program has it."""
    return type(finder).__module__.startswith("_pytest")


def python(
    _number: int,
    _count: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be `python -c CODE` for the request's `code`; never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    sys.argv = ["-c"]
    end(lambda: exec(request["code"], {"__name__": "__main__"}))


def serve(
    _number: int,
    _count: int,
    channel: MessageChannel,
    _request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be a fork server as the one that this was forked from; never returns."""
    listener.close()
    Server(socket.socket(fileno=channel.fileno())).run()
    os._exit(0)


def share(
    _number: int,
    _count: int,
    channel: MessageChannel,
    _request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Fork such a server for each who connects to the socket that it was given; never returns."""
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they have ended
    given = socket.socket(fileno=channel.fileno())
    while True:
        connection, _ = given.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            given.close()
            Server(connection).run()
            os._exit(0)
        connection.close()


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
        asked = _asked_by_interpreter(leaving)
        code = asked if isinstance(asked, int) else int(asked is not None)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        code = 1
        try:
            sys.excepthook(*sys.exc_info())
        except BaseException:  # a signal has come as it began: Python prints both
            sys.excepthook(*sys.exc_info())
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _asked_by_interpreter(leaving: SystemExit) -> object:
    """Its code, asked for by no Python function: by that the layer knows that nobody has caught it.
    Here many are below on the stack, and in a thread that runs nothing of Python's there are none.
    """
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    ask = map(told.put, map(operator.attrgetter("code"), [leaving]))
    _thread.start_new_thread(list, (ask,))
    return told.get()


# At the end of a rank no line of its program is on the stack, and these are none of it.
for _function in (forked, end, _asked_by_interpreter):
    _function.__code__ = _function.__code__.replace(co_filename="<frozen in_fork>")
