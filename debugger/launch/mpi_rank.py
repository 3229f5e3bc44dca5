"""Started by mpiexec for each rank: says in the environment who the rank is, as torchrun does, and
becomes the user's program.

mpi_rank.py ADDRESS PORT COMMAND...

MPI itself needs none of it, but scripts read RANK and LOCAL_RANK, and other backends MASTER_ADDR.
Run as a file, by a Python that imports nothing else, so it must import nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import sys

_KNOWN = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def rank_environment(environment: dict[str, str]) -> dict[str, str]:
    """torchrun's variables, where this launcher gives them under its own names."""
    found = {}
    for name, others in _KNOWN.items():
        value = next((environment[other] for other in others if environment.get(other)), None)
        if value is not None:
            found[name] = value
    return found


def make_scratch(environment: dict[str, str]) -> None:
    """The run's directory for shared memory is on the supervisor's host; a rank on another makes
    one of the same name."""
    directory = environment.get("OMPI_MCA_btl_sm_backing_directory", "")
    if os.path.basename(directory).startswith("distdebug-mpi-"):
        with contextlib.suppress(OSError):
            os.makedirs(directory, mode=0o700, exist_ok=True)


def with_rank(command: list[str], rank: str) -> list[str]:
    """The run directory of a supervisor that is this rank's own: `--run-dir=PLACE-rank{rank}`."""
    own = command.index("--") if "--" in command else 0
    flags = [
        word.replace("{rank}", rank) if word.startswith("--run-dir=") else word
        for word in command[:own]
    ]
    return flags + command[own:]


def main() -> None:
    address, port, *command = sys.argv[1:]
    environment = dict(os.environ)
    environment.update(rank_environment(environment))
    command = with_rank(command, environment.get("RANK", ""))
    environment.update(MASTER_ADDR=address, MASTER_PORT=port)
    make_scratch(environment)
    os.execvpe(command[0], command, environment)  # noqa: S606 - the user's own command


if __name__ == "__main__":
    main()
