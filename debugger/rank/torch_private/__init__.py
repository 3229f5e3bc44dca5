"""The one place that names torch's insides: what is not as known is left alone, see `probe`."""

from .boxed_operators import record_boxed_groups
from .calls import (
    await_completion_hooks,
    coalesce_messages,
    on_blocking_messages,
    on_not_in_group,
    open_monitored_barrier,
)
from .graphs import lines_in_graph
from .groups import (
    backend_name,
    clone_group,
    creation_was_not_seen,
    helper_arguments,
    is_hashed_name,
    is_python_group,
    on_group_creation,
    on_group_timeout,
    own_size,
    prolong,
    replace_group,
    show_to_hooks,
    take_times,
)
from .modules import c10d, dist
from .operator_calls import accesses, calls_with, depth, on_reads_past_operators
from .operators import record_operators
from .probe import patch
from .python_groups import has_threads_for_ranks, on_unregistered_groups
from .self_test import try_a_front
from .tensor_guards import tensor_guard, try_tensor_guards
from .tools import keep_uncompiled, on_breakpoint, take_debug_level
from .training import (
    cannot_look,
    capturing,
    current_backward,
    on_data_end,
    on_loss_scaling,
    on_model_replicated,
    on_models_averaged,
    on_optimizer_steps,
)

__all__ = [
    "accesses",
    "await_completion_hooks",
    "backend_name",
    "c10d",
    "calls_with",
    "cannot_look",
    "capturing",
    "clone_group",
    "coalesce_messages",
    "creation_was_not_seen",
    "current_backward",
    "depth",
    "dist",
    "has_threads_for_ranks",
    "helper_arguments",
    "is_hashed_name",
    "is_python_group",
    "keep_uncompiled",
    "lines_in_graph",
    "on_blocking_messages",
    "on_breakpoint",
    "on_data_end",
    "on_group_creation",
    "on_group_timeout",
    "on_loss_scaling",
    "on_model_replicated",
    "on_models_averaged",
    "on_not_in_group",
    "on_optimizer_steps",
    "on_reads_past_operators",
    "on_unregistered_groups",
    "open_monitored_barrier",
    "own_size",
    "patch",
    "prolong",
    "record_boxed_groups",
    "record_operators",
    "replace_group",
    "show_to_hooks",
    "take_debug_level",
    "take_times",
    "tensor_guard",
    "try_a_front",
    "try_tensor_guards",
]
