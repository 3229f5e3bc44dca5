"""Starts `launch.py RANKS SCRIPT ...` without importing torch, and tells how each ended."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
from tests.support.ports import unclaimed_port

port = unclaimed_port()
count = int(sys.argv[1])
shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
ended = {}


def wait(rank, process):
    ended[rank] = (process.wait(), time.time())


threads = []
for rank in range(count):
    variables = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    process = subprocess.Popen([sys.executable, *sys.argv[2:]], env=variables)
    threads.append(threading.Thread(target=wait, args=(rank, process)))
    threads[-1].start()
for thread in threads:
    thread.join()
print(json.dumps(ended))
