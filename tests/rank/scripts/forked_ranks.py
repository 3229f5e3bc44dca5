"""Ranks that share one import of torch: `DESCRIPTOR,... SCRIPT`.

Imports the script, then forks a rank for each descriptor, which calls `main(rank, size, socket)`.
"""

import importlib.util
import os
import socket
import sys


def main():
    descriptors = [int(one) for one in sys.argv[1].split(",")]
    spec = importlib.util.spec_from_file_location("ranks", sys.argv[2])
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    children = []
    for rank, descriptor in enumerate(descriptors):
        child = os.fork()
        if not child:
            for other in descriptors:
                if other != descriptor:
                    os.close(other)
            with socket.socket(fileno=descriptor) as channel:
                script.main(rank, len(descriptors), channel)
            return
        children.append(child)
    for descriptor in descriptors:
        os.close(descriptor)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
