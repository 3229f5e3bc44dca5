"""Stand-ins for nccl4py, for CUDA and for a GPU's clock, for tests without a GPU.

`core` has nccl.core's names, as far as distcore uses them; a test compares its signatures with the
installed package. What it moves and reduces it does on the CPU, over gloo.
"""
