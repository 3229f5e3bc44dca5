"""Programs to torch.distributed's documentation, on tcp: `RANK SIZE STORE_FILE [SCENARIO ...]`.

Prints a JSON object: each scenario's name, and what went wrong in it (empty: nothing).
"""

import json
import sys
import traceback

import distcore_calls
import distcore_layers
import distcore_trouble
import torch
from distcore_support import SECONDS

import distcore as dist


def scenarios():
    """In their order: the last one ends the default group."""
    for module in (distcore_calls, distcore_trouble, distcore_layers):
        yield from tuple(vars(module).items())


def main():
    rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "tcp", init_method=f"file://{path}", rank=rank, world_size=size, timeout=30 * SECONDS
    )
    chosen = sys.argv[4:]
    outcomes = {}
    for name, function in scenarios():
        if name.startswith("scenario_") and (not chosen or name in chosen):
            try:
                function(rank, size)
                outcomes[name] = ""
            except BaseException:
                outcomes[name] = traceback.format_exc()
            print(json.dumps({name: outcomes[name]}), flush=True)
            if outcomes[name]:
                return


if __name__ == "__main__":
    main()
