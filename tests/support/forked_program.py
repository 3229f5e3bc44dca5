"""A launcher whose ranks share one import of torch: `forked_program.py RANKS SCRIPT ...`.

Below `distdebug exec` its ranks are observed as those of any other launcher. Where torchrun and its
ranks import torch one by one, which costs 2 s of a core each, this does it once. Otherwise it is as
torchrun is: it has the store, sets the same variables, and ends all ranks when one fails.
"""

import contextlib
import os
import runpy
import signal
import socket
import sys
import time

GRACE_S = 1.0
"""As torchrun looks at its ranks now and then, those that are late may come as far as the first."""
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
ZEROS = ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")


def main() -> None:
    size, script = int(sys.argv[1]), sys.argv[2]
    finder, hook = hook_of_this_process()
    if finder is not None:
        sys.meta_path.remove(finder)  # this process is no rank
    import torch

    torch.set_num_threads(1)
    # Ranks that have a network of their own reach it from there.
    own = "" if os.environ.get("DISTDEBUG_NETWORK") else "127.0.0.1"
    listener = socket.create_server((own, 0), backlog=256)
    port = listener.getsockname()[1]
    os.environ |= {name: str(size) for name in SIZES} | dict.fromkeys(ZEROS, "0")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "forked", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    sys.argv[:3] = [script]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    ranks = {}
    for rank in range(size):
        pid = os.fork()
        if not pid:
            listener.close()
            become(rank, finder, hook, torch)
            runpy.run_path(script, run_name="__main__")
            return
        ranks[pid] = rank
    # Only now: it has a thread, which a forked rank would lack.
    descriptor = listener.detach()
    store = torch.distributed.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
    )
    code = wait_for(ranks)
    del store
    sys.exit(code)


def hook_of_this_process():
    """What distdebug has put into this process at its start, and the names that belong to it."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "_Finder" and hasattr(type(finder), "_await_torch"):
            return finder, type(finder).find_spec.__globals__
    return None, {}


def become(rank, finder, hook, torch) -> None:
    """What the hook does at the start of a rank's process, which is a forked one here."""
    os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
    if finder is None:
        return
    os.environ["DISTDEBUG_RANK_PID"] = str(os.getpid())
    hook["redirect"](rank)
    hook["enter_network"](rank)
    hook["_hear_last_words"]()
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


if __name__ == "__main__":
    main()
