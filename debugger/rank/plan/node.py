"""The node that a planned rank is on, as the program sees it: what a scheduler or an MPI has put
into its environment, and its name where the job has several.

Programs ask those beside RANK, or before it. A plan is made within an allocation, too, whose
variables say what the shell there is; and all ranks of it are on one machine.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

_LOOKED_UP = ("gethostbyname", "gethostbyname_ex", "getaddrinfo")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a rank among all."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int


def variables(place: RankPlace) -> dict[str, int]:
    """Returns the variables by which schedulers and MPIs tell a rank its place."""
    return {
        "SLURM_PROCID": place.rank,
        "SLURM_NTASKS": place.size,
        "SLURM_NPROCS": place.size,
        "SLURM_LOCALID": place.local_rank,
        "SLURM_NODEID": place.node,
        "SLURM_NNODES": place.nodes,
        "SLURM_JOB_NUM_NODES": place.nodes,
        "OMPI_COMM_WORLD_RANK": place.rank,
        "OMPI_COMM_WORLD_SIZE": place.size,
        "OMPI_COMM_WORLD_LOCAL_RANK": place.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": place.local_size,
        "OMPI_COMM_WORLD_NODE_RANK": place.local_rank,
        "PMI_RANK": place.rank,
        "PMI_SIZE": place.size,
        "PMIX_RANK": place.rank,
        "MPI_LOCALRANKID": place.local_rank,
        "MPI_LOCALNRANKS": place.local_size,
    }


def answer_for_schedulers(place: RankPlace, environment: MutableMapping[str, str]) -> None:
    """Sets the variables of schedulers that there are to this rank; of a job of Slurm all of
    them."""
    in_a_job = "SLURM_JOB_ID" in environment or "SLURM_PROCID" in environment
    for name, value in variables(place).items():
        if name in environment or (in_a_job and name.startswith("SLURM_")):
            environment[name] = str(value)


def answer_for_host(place: RankPlace) -> None:
    """From now on the machine has another name on each node of the job. Whoever looks it up finds
    this one."""
    if place.nodes < 2:
        return
    real = os.uname()
    name = f"{real.nodename}-{place.node}"
    told = os.uname_result((real.sysname, name, real.release, real.version, real.machine))
    names = {f"{real.nodename}-{node}" for node in range(place.nodes)}
    given: Any = os
    given.uname = lambda: told
    own: Any = socket
    own.gethostname = lambda: name
    own.getfqdn = lambda host="": name if host in ("", name) else host
    for function in _LOOKED_UP:
        setattr(own, function, _of_this_machine(getattr(own, function), names))


def _of_this_machine(usual: Callable[..., Any], names: set[str]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def look_up(host: Any = "", *args: Any, **kwargs: Any) -> Any:
        return usual("localhost" if host in names else host, *args, **kwargs)

    return look_up
