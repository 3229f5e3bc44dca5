"""torch's operators for compiled code that ask the backend below a group, and so pass by the one in
front of it: distcore's kernels for its own groups serve that one, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from distcore.torch_api import open_operators_to

from .probe import Private, WatchedPart
from .probe import c10d as private

PASS_BY = ("all_gather_into_tensor_out",)
OPERATORS = WatchedPart(
    "operators",
    f"calls of torch.ops._c10d_functional.{', '.join(PASS_BY)} are not recorded",
    private("_resolve_process_group"),
    Private("torch._C._distributed_c10d", "_register_work", ("tensor", "work"), called=True),
    Private("torch._C", "DispatchKeySet"),
    Private("torch._C", "DispatchKey.CompositeExplicitAutograd"),
)
"""All that were tried have these; where a later torch does not, its own kernel asks the group."""


def record_operators(front_class: type) -> None:
    """From now on these operators reach groups of this class; again it changes nothing.

    inductor's planning of memory emits `all_gather_into_tensor_out`. All other groups are served by
    torch's own kernel, as before; from 2.15 on that asks groups in Python, too.
    """
    if OPERATORS.works:
        try:
            open_operators_to(_front(front_class), PASS_BY)
        except Exception as error:
            OPERATORS.switch_off(f"putting a kernel before torch's failed: {error!r}")


@functools.cache
def _front(front_class: type) -> Callable[[Any], bool]:
    return lambda group: isinstance(group, front_class)
