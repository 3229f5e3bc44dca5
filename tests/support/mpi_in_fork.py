"""Ranks of a real mpiexec that need not import torch: `python -IS mpi_in_fork.py ADDRESS`.

mpiexec starts this, a stand-in, in a Python that imports next to nothing. It hands its environment
and its standard streams to a process that has torch loaded (`serve`), which forks the rank. As long
as the rank runs this stands for it: signals go through it, it ends as the rank does, and when it is
killed so is the rank. To MPI's library the rank is what mpiexec has started.

What is otherwise than in a rank that mpiexec has started itself: its parent is not mpiexec, and
does not end with it; a rank that is stopped is not seen to be by mpiexec; between the rank's end
and what mpiexec learns of it lies the end of another process, a few milliseconds.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import sys

PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2),
)
_CHUNK = 1 << 20


def stand_for(address: str) -> None:
    """In what mpiexec has started."""
    with socket.socket(socket.AF_UNIX) as ranks:
        ranks.connect("\0" + address)
        socket.send_fds(ranks, [json.dumps(dict(os.environ)).encode() + b"\n"], [1, 2])
        with ranks.makefile("r") as answers:
            pid = int(answers.readline())
            for number in PASSED_ON:
                signal.signal(number, lambda number, _frame: _pass_on(pid, number))
            code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _pass_on(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def listen(address):
    """Where stand-ins come to; the address is a name that nobody else on this host has."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + address)
    listener.listen(64)
    return listener


def serve(listener, count, body):
    """Fork a rank for each of so many stand-ins, and tell them how it has ended. Return when all
    have, or when those that run have and this process's parent, too. `body` is given the rank's
    environment; it does what the rank does, and ends as a program."""
    # pidfds and select alone, since `os.waitpid` belongs to the hook, which writes down what is
    # awaited by it: of mpiexec's ranks nobody does.
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    above = os.pidfd_open(os.getppid())
    standing, ranks = {}, {}  # stand-ins and ranks, by pidfd
    while count or ranks:
        open_ends = {one.fileno(): rank for rank, one in standing.items()}
        first = [listener.fileno(), above] if count else []
        for ready in select.select([*first, *ranks, *open_ends], [], [])[0]:
            if ready == above:
                count = 0
            elif ready == listener.fileno():
                count -= 1
                stand_in, _ = listener.accept()
                pid = _fork(stand_in, body)
                ranks[rank := os.pidfd_open(pid)] = pid
                standing[rank] = stand_in
            elif ready in ranks:
                pid = ranks.pop(ready)
                code = os.waitstatus_to_exitcode(os.wait4(pid, 0)[1])
                os.close(ready)
                with contextlib.suppress(OSError, KeyError):
                    standing.pop(ready).sendall(b"%d\n" % code)
            elif (rank := open_ends[ready]) in standing:
                standing.pop(rank).close()  # it has been killed, or has closed its end
                os.kill(ranks[rank], signal.SIGKILL)


def _fork(stand_in, body):
    """The rank of this stand-in: its process id."""
    from tests.support.in_fork import forked

    given, streams, _, _ = socket.recv_fds(stand_in, _CHUNK, 2)
    while not given.endswith(b"\n"):
        given += stand_in.recv(_CHUNK)

    def rank():
        os.setpgid(0, 0)  # as below mpiexec
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        os.closerange(3, 256)
        atexit.register(_finalize)  # the first one, so it is called last
        body(json.loads(given))

    pid = forked(rank)
    for stream in streams:
        os.close(stream)  # their ends are the rank's
    with contextlib.suppress(OSError):
        stand_in.sendall(b"%d\n" % pid)
    return pid


def ranks(_number, count, channel, request, listener) -> None:
    """In what was forked: serve the ranks of an mpiexec that is about to be started, of `size`
    processes with standing-in `address`, whose program and words are `argv`."""
    import runpy

    from tests.support.in_fork import surroundings

    listener.close()
    place = listen(request["address"])
    channel.close()  # mpiexec may begin

    def body(environment):
        output = ["/dev/fd/1", "/dev/fd/2"]
        surroundings({"cwd": request["cwd"], "env": environment, "output": output})
        sys.argv = list(request["argv"])
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")

    serve(place, request["size"], body)
    os._exit(0)


def _finalize() -> None:
    """What mpi4py has the interpreter do at its very end, to which a forked process never comes."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or sys.modules["mpi4py"].rc.finalize is False:
        return  # distcore does it by itself, unless it would wait for ever
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


if __name__ == "__main__":
    stand_for(sys.argv[1])
