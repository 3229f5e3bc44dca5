"""Collectives on CUDA tensors over NVIDIA's NCCL, called through nccl4py.

`elements` and `plan` decide what is sent, without a GPU; `library` is the one place of NCCL's
calls; `communicators`, `device`, `work` and `life` keep what they run in; `engine` is the whole.
"""
