"""A launcher whose ranks share one import of torch: `forked_program.py [--apart | --node
FIRST,WORLD,NODE,NODES,ADDRESS,PORT] RANKS SCRIPT ...`.

Below `distdebug exec` its ranks are observed as those of any other launcher. Where torchrun and its
ranks import torch one by one, which costs 2 s of a core each, this does it once. Otherwise it is as
torchrun is: it has the store, sets the same variables, and ends all ranks when one fails. With
--apart each lives and dies by itself, and it prints how: `{rank: [exit code, Unix time]}`.
With --node its ranks are those from FIRST on of a world of so many, on node number NODE of so many;
node 0 has the store, at this address and port.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
import time

GRACE_S = 1.0
"""As torchrun looks at its ranks now and then, those that are late may come as far as the first."""
SIZES = ("WORLD_SIZE", "ROLE_WORLD_SIZE")
ZEROS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")


def main() -> None:
    apart = sys.argv[1] == "--apart"
    del sys.argv[1 : 1 + apart]
    place = sys.argv[2].split(",") if sys.argv[1] == "--node" else None
    if place:
        del sys.argv[1:3]
    size, script = int(sys.argv[1]), sys.argv[2]
    first, world, node, nodes = map(int, place[:4]) if place else (0, size, 0, 1)
    address, port = (place[4], int(place[5])) if place else ("127.0.0.1", 0)
    finder, hook = hook_of_this_process()
    if finder is not None:
        sys.meta_path.remove(finder)  # this process is no rank
    import torch

    torch.set_num_threads(1)
    # Ranks that have a network of their own reach it from there.
    own = "" if os.environ.get("DISTDEBUG_NETWORK") else address
    listener = None
    if node == 0:
        listener = socket.create_server((own, port), backlog=256)
        port = listener.getsockname()[1]
    os.environ |= {name: str(world) for name in SIZES} | dict.fromkeys(ZEROS, "0")
    os.environ |= {"LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(nodes)}
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "forked", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    sys.argv[:3] = [script]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    ranks = {}
    for rank in range(size):
        pid = os.fork()
        if not pid:
            if listener is not None:
                listener.close()
            become(first + rank, rank, finder, hook, torch)
            runpy.run_path(script, run_name="__main__")
            return
        ranks[pid] = rank
    store = None
    if listener is not None:
        # Only now: it has a thread, which a forked rank would lack.
        store = torch.distributed.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    code = wait_for_each(ranks) if apart else wait_for(ranks)
    del store
    sys.exit(code)


def hook_of_this_process():
    """What distdebug has put into this process at its start, and the names that belong to it."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "_Finder" and "sitecustomize" in type(finder).__module__:
            return finder, type(finder).find_spec.__globals__
    return None, {}


def become(rank, local_rank, finder, hook, torch) -> None:
    """What the hook does at the start of a rank's process, which is a forked one here."""
    os.environ |= {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local_rank)}
    if finder is None:
        return
    os.environ["DISTDEBUG_RANK_PID"] = str(os.getpid())
    hook["redirect"](rank)
    hook["enter_network"](rank)
    hook["_hear_last_words"](str(rank))
    hook["_tie_to_supervisor"]()
    # After a fork torch makes its pool of threads anew, and only one thread at a time can do that:
    # ranks that are threads would all be the first, and one fail with "Invalid thread pool!".
    torch.set_num_threads(1)
    sys.meta_path.insert(0, finder)
    hook["_install"](torch)


def wait_for(ranks) -> int:
    """As torchrun: the first rank that fails takes the others with it. The exit code."""
    code = 0
    while ranks:
        with contextlib.suppress(InterruptedError):
            pid, status = os.waitpid(-1, 0)
            ranks.pop(pid, None)
            if status and not code:
                code = 1
                time.sleep(GRACE_S)
                for other in ranks:
                    os.kill(other, signal.SIGTERM)
    return code


def wait_for_each(ranks) -> int:
    """Print how each has ended. The exit code."""
    ended = {}
    while ranks:
        pid, status = os.waitpid(-1, 0)
        if pid in ranks:
            ended[ranks.pop(pid)] = (os.waitstatus_to_exitcode(status), time.time())
    print(json.dumps(ended), flush=True)
    return 0


if __name__ == "__main__":
    main()
