"""Ranks of a real mpiexec that need not import torch: `python -IS mpi_in_fork.py FOLDER`.

mpiexec starts this, in a Python that imports next to nothing. It hands its environment and its
standard streams to a process that was forked where torch is loaded, which is the rank; and as long
as that runs it stands for it: signals go through it, and it ends as the rank does.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHUNK = 1 << 20


def stand_for(folder: str) -> None:
    """In what mpiexec has started."""
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(os.path.join(folder, os.environ["OMPI_COMM_WORLD_RANK"]))
        socket.send_fds(rank, [json.dumps(dict(os.environ)).encode() + b"\n"], [1, 2])
        with rank.makefile("r") as answers:
            pid = int(answers.readline())
            for number in PASSED_ON:
                signal.signal(number, lambda number, _frame: os.kill(pid, number))
            code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def rank(number, _count, channel, request, listener) -> None:
    """In what was forked: be the rank of this number, whose program and words are `argv`."""
    import runpy

    from tests.support.in_fork import forked, surroundings

    listener.close()
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(os.path.join(request["folder"], str(number)))
        place.listen()
        channel.close()  # mpiexec may begin
        standing, _ = place.accept()
    given, streams, _, _ = socket.recv_fds(standing, _CHUNK, 2)
    while not given.endswith(b"\n"):
        given += standing.recv(_CHUNK)

    def body() -> None:
        atexit.register(_finalize)  # the first one, so it is called last
        standing.close()
        streams_of = [f"/dev/fd/{stream}" for stream in streams]
        surroundings({"cwd": request["cwd"], "env": json.loads(given), "output": streams_of})
        for stream in streams:
            os.close(stream)
        sys.argv = list(request["argv"])
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")

    pid = forked(body)
    for stream in streams:
        os.close(stream)  # their ends are the rank's
    with contextlib.suppress(OSError):
        standing.sendall(b"%d\n" % pid)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        standing.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _finalize() -> None:
    """What mpi4py has the interpreter do at its very end, to which a forked process never comes."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


if __name__ == "__main__":
    stand_for(sys.argv[1])
