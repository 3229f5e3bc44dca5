"""A rank in a process of its own: joins, shows that a forked child keeps out, waits to be killed.

Arguments: the path of a FileStore, the group's name, this rank, the number of ranks.
"""

from __future__ import annotations

import os
import sys
import time

from torch.distributed import FileStore

from distcore.bootstrap import listener
from distcore.bootstrap.rendezvous import Rendezvous
from distcore.errors import RendezvousError


def in_a_child(rendezvous: Rendezvous) -> int:
    """What a forked child may and may not do; 0 when all is as it should be."""
    try:
        rendezvous.connect(0, 0, time.monotonic() + 1)
    except RendezvousError as error:
        if "a forked child cannot use it" not in str(error):
            return 2
    else:
        return 3
    rendezvous.close()
    own = listener.acquire()
    address = own.listen(None)
    listener.release(own)
    return 0 if address[1] else 4


def main() -> None:
    path, name, rank, size = sys.argv[1:]
    print("up", flush=True)  # torch takes its time to import where the machine is full
    rendezvous = Rendezvous(FileStore(path, int(size)), name, range(int(size)), int(rank), 60.0)
    child = os.fork()
    if child == 0:
        os._exit(in_a_child(rendezvous))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("ready" if status == 0 else f"child: {status}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
