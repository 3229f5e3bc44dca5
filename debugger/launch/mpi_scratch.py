"""A directory for what the ranks of an MPI job share on this host, so that it goes with the job.

Open MPI puts its shared memory below /dev/shm and its session below TMPDIR, under names of its own,
and its launcher removes both. A launcher that is killed does not; then 16 MiB a rank stay in memory
until the host is started again. In a directory that only this run has, everything is the run's: it
is removed whatever ended the run, and nobody else's is touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system of main memory, as MPI wants it
PREFIX = "distdebug-mpi-"
_SEGMENTS = (
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
)
"""The variables for the directory of the ranks' shared memory."""
_SESSION = "PRTE_MCA_prte_local_tmpdir_base"
"""The variable for the directory of the launcher's own files, on this host; on others it stays as
it is."""
_OTHERS_SESSION = ("PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_remote_tmpdir_base")


@contextmanager
def scratch(base: Path = SHARED_MEMORY) -> Iterator[str]:
    """The directory's path, and its end. Empty where the host has no place for one."""
    try:
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    except OSError:
        yield ""
        return
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settings(directory: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Open MPI's variables that lead there, but for those that the user has set."""
    if not directory:
        return {}
    names = [name for name in _SEGMENTS if name not in environment]
    if not any(name in environment for name in (_SESSION, *_OTHERS_SESSION)):
        names.append(_SESSION)
    return dict.fromkeys(names, directory)
