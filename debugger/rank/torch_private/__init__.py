"""The one place that names torch's insides: what is not as known is left alone, see `probe`."""

from .calls import (
    await_completion_hooks,
    coalesce_messages,
    on_blocking_messages,
    on_not_in_group,
    open_monitored_barrier,
)
from .groups import (
    backend_name,
    clone_group,
    creation_was_not_seen,
    has_threads_for_ranks,
    helper_arguments,
    is_hashed_name,
    is_python_group,
    on_group_creation,
    on_group_timeout,
    on_unregistered_groups,
    own_size,
    prolong,
    replace_group,
    show_to_hooks,
    take_times,
)
from .operator_calls import accesses, calls_with, depth, on_reads_past_operators
from .operators import record_boxed_groups, record_operators
from .probe import c10d, dist, patch
from .self_test import try_a_front
from .tensor_guards import tensor_guard, try_tensor_guards
from .tools import keep_uncompiled, lines_in_graph, on_breakpoint, take_debug_level
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
