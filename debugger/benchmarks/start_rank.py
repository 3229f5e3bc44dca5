"""The program of `bench start`: one call. Its first rank writes into the file that it is given how
long `import torch.distributed` took it, and how many modules of ours there were before its group.
"""

from __future__ import annotations

import json
import os
import sys
import time

began_s = time.perf_counter()

import torch  # noqa: E402 - what is measured
import torch.distributed as dist  # noqa: E402

import_s = time.perf_counter() - began_s
loading = sys.modules.get("_distdebug.hook.loading")
aside = () if loading is None else loading.core.modules  # of distcore, which the program sees not
packages = [name.partition(".")[0] for name in (*sys.modules, *aside)]
modules = sum(package in ("_distdebug", "distdebug", "distcore") for package in packages)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "0":
        with open(sys.argv[1], "w") as file:
            json.dump({"import_s": import_s, "modules": modules}, file)
    dist.destroy_process_group()
