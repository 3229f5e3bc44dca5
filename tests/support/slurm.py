"""A real Slurm over nodes of this machine: munge everywhere, the controller on node 0, a slurmd on
each. Debian's packages `slurm-wlm` and `munge` have all of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence

from . import runs
from .nodes import Command, Nodes, Unavailable

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo")
START_LIMIT_S = 60.0
CPUS = 8
"""What each node says that it has, so that ranks find room on a machine of any size."""
SLURMD_TIMEOUT_S = 10
"""When the controller takes a slurmd that does not answer for lost."""
CONFIGURATION = """
ClusterName=tests
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/tmp/munge/socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldTimeout=60
SlurmdTimeout={timeout_s}
SlurmdParameters=config_overrides
ReturnToService=2
OverTimeLimit=0
NodeName=node[0-{last}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm on all of these nodes, which take it away when they end.

    Raises Unavailable where it is not installed or does not come up.
    """

    def __init__(self, nodes: Nodes) -> None:
        if missing := [name for name in PROGRAMS if not shutil.which(name, path=_path())]:
            raise Unavailable(f"there is no {missing[0]} (slurm-wlm, munge)")
        self.nodes = nodes
        folder = nodes.directory / "slurm"
        folder.mkdir(mode=0o755)
        self._file = folder / "slurm.conf"
        self._file.write_text(
            CONFIGURATION.format(timeout_s=SLURMD_TIMEOUT_S, last=len(nodes) - 1, cpus=CPUS)
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._services: dict[str, Command] = {}
        for node in nodes:
            node.run("mkdir", "-m", "755", "/tmp/munge", "/tmp/slurmd", "/tmp/slurmctld")
            node.run("cp", "--preserve=mode", str(key), "/tmp/munge/key")
            files = [f"--{name}-file=/tmp/munge/{name}" for name in ("key", "pid", "log", "seed")]
            # --force: it minds who may write to /tmp.
            self._serve(node.number, "munged", "--foreground", "--force", *files)
        self._serve(0, "slurmctld", "-D", "-f", str(self._file))
        for node in nodes:
            self._serve(node.number, "slurmd", "-D", "-N", node.name, "-f", str(self._file))
        self.wait_for(["idle"] * len(nodes))

    def _serve(self, number: int, name: str, *flags: str) -> None:
        if name == "munged":
            flags = (*flags, "--socket=/tmp/munge/socket")
        command = self.nodes[number].start([name, *flags], self.environment())
        self._services[f"{name} on node{number}"] = command

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What Slurm's commands need, on top of a test's own environment."""
        given = {"SLURM_CONF": str(self._file), "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
        return runs.environment({**given, "PATH": _path(), **(extra or {})})

    def start(
        self, words: Sequence[str], extra: Mapping[str, str] | None = None, number: int = 0
    ) -> Command:
        """Start a command of Slurm's on a node."""
        return self.nodes[number].start(words, self.environment(extra))

    def ask(self, *words: str, limit_s: float = 30.0) -> str:
        """What such a command printed."""
        command = self.start(words)
        command.wait(limit_s)
        return command.said()

    def states(self) -> list[str]:
        """What Slurm thinks of each node."""
        return self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()

    def wait_for(self, states: Sequence[str], limit_s: float = START_LIMIT_S) -> None:
        """Until the nodes are in these states. Raises Unavailable with what Slurm said."""
        until_s = time.monotonic() + limit_s
        while (found := self.states()) != list(states):
            ended = [name for name, one in self._services.items() if one.poll() is not None]
            if time.monotonic() > until_s:
                raise Unavailable(f"its nodes are {found}, ended: {ended}\n{self.said()}")
            time.sleep(0.2)

    def jobs(self) -> list[int]:
        """Those that have not ended."""
        return [int(word) for word in self.ask("squeue", "--noheader", "--format=%i").split()]

    def slurmd(self, number: int) -> Command:
        """That of a node."""
        return self._services[f"slurmd on node{number}"]

    def said(self) -> str:
        """What its services have said, for the message of a failed assertion."""
        return "\n".join(f"== {name}\n{one.said()[-2000:]}" for name, one in self._services.items())


def _path() -> str:
    """Debian has its daemons in /usr/sbin, which is not on every PATH."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
