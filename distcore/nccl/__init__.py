"""Collectives on CUDA tensors over NVIDIA's NCCL, called through nccl4py.

`elements` and `plan` decide what is sent, without a GPU; `transfers` is the one list of NCCL calls;
`communicators`, `streams`, `work` and `watchdog` keep what they run in; `engine` is the whole.
"""
