"""The part of a process's environment that goes on record: what launchers and backends read, and no
secret.

A name that is not on the list is left out, also where it would be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIXES = ("MASTER_", "TORCH", "NCCL_", "GLOO_", "DISTDEBUG_", "DISTCORE_")
NAMES = frozenset(
    (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    )
)
REDACTED = "(redacted)"
MOST_VALUE = 300
MOST_BYTES = 16 << 10
"""The most bytes of all names and values; what comes after that, by name, is left out."""
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what may be put on record, by name: values that name a secret or a URL's user
    redacted."""
    found: dict[str, str] = {}
    room = MOST_BYTES
    for name in sorted(environment):
        if not (name in NAMES or name.startswith(PREFIXES)) or not environment[name]:
            continue
        value = REDACTED if _SECRET.search(name) else _USER.sub(REDACTED, environment[name])
        value = value if len(value) <= MOST_VALUE else value[: MOST_VALUE - 3] + "..."
        room -= len(name) + len(value)
        if room < 0:
            break
        found[name] = value
    return found
