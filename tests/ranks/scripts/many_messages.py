"""One of two ranks that send each other COUNT messages of many sizes; prints as JSON what it had of
the system and of Python after the first tenth, and at the end.

python -X dev many_messages.py RANK STORE COUNT
"""

import gc
import json
import random
import sys

import psutil
import torch

import distcore as dist

SIZES = (0, 1, 8, 63, 64, 65, 1000, 8192, 65_535, 65_536, 65_537, 300_000)
BATCH = 16


def had():
    gc.collect()
    me = psutil.Process()
    memory = me.memory_info()
    return {
        "blocks": sys.getallocatedblocks(),
        "bytes": memory.rss - memory.shared,
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "in_dev_shm": [one.path for one in me.memory_maps() if one.path.startswith("/dev/shm")],
    }


def main():
    rank, store, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    dist.init_process_group("tcp", f"file://{store}", rank=rank, world_size=2)
    peer, chance = 1 - rank, random.Random(7)
    source = torch.arange(max(SIZES), dtype=torch.uint8) + rank
    targets = [torch.zeros(max(SIZES), dtype=torch.uint8) for _ in range(BATCH)]
    batches, found = count // (2 * BATCH), []
    for number in range(batches):
        if number == batches // 10:
            found.append(had())
        # Most are small, as in programs.
        sizes = [chance.choice(SIZES[: chance.choice((6, 6, 6, 6, 8, 12))]) for _ in range(BATCH)]
        works = [
            dist.irecv(target[:size], peer, tag=tag % 3)
            for tag, (size, target) in enumerate(zip(sizes, targets, strict=True))
        ]
        works += [dist.isend(source[:size], peer, tag=tag % 3) for tag, size in enumerate(sizes)]
        for work in works:
            work.wait()
        size, target = sizes[number % BATCH], targets[number % BATCH]
        assert torch.equal(target[:size], (source[:size] - rank) + peer)
    works.clear()
    found.append(had())
    print(json.dumps(found))
    dist.destroy_process_group()


main()
