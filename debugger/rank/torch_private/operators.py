"""torch's operators for compiled code that ask the backend below a group, and so pass by the one in
front of it: distcore's kernels for groups in Python serve them."""

from __future__ import annotations

from distcore.groups.operators import open_to_python_groups

from .probe import Part, Private
from .probe import c10d as private

PASS_BY = ("all_gather_into_tensor_out",)
OPERATORS = Part(
    "operators",
    f"calls of torch.ops._c10d_functional.{', '.join(PASS_BY)} are not recorded",
    private("_resolve_process_group"),
    Private("torch._C._distributed_c10d", "_register_work", ("tensor", "work"), called=True),
    Private("torch._C", "DispatchKeySet"),
    Private("torch._C", "DispatchKey.CompositeExplicitAutograd"),
    blind=True,
)


def record_operators() -> None:
    """From now on these operators reach the group in front; again it changes nothing.

    inductor's planning of memory emits `all_gather_into_tensor_out`. A group that nothing stands in
    front of is served by torch's own kernel, as before.
    """
    if OPERATORS.works:
        try:
            open_to_python_groups(PASS_BY)
        except Exception as error:
            OPERATORS.switch_off(f"putting a kernel before torch's failed: {error!r}")
