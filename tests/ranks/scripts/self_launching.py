"""Starts its ranks itself: with mp.spawn, with spawned and with forked processes."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HELD = []


def free_port():
    """Held until the end, so that nobody else on this host is given it."""
    HELD.append(socket.socket())
    HELD[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    HELD[-1].bind(("127.0.0.1", 0))
    return HELD[-1].getsockname()[1]


def work(rank, port, elements):
    method = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(elements))  # the call
    dist.destroy_process_group()


def main():
    mp.spawn(work, args=(free_port(), 1), nprocs=2)
    for elements, method in ((2, "spawn"), (3, "fork")):
        port = free_port()
        context = mp.get_context(method)
        processes = [context.Process(target=work, args=(r, port, elements)) for r in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
