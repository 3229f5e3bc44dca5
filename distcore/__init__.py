"""The communication stack: collectives over TCP, MPI and NCCL, as torch.distributed backends.

It knows nothing of the debugger. Its transports, algorithms and backends are not part of this
release yet; the package exists so that its name and its place in the import rules are fixed.
"""
