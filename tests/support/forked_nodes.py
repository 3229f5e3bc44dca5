"""Programs on several nodes whose ranks need not import torch: a zygote for each node.

As by `srun --ntasks-per-node=1 distdebug exec -- LAUNCHER`, on each node is a `distdebug` that
finds in its environment that there are more, above a launcher that has its part of the ranks. Node
0's has the store in which all meet: see `zygote.py` and `forked_program.py`. What torchrun does
between nodes is not in it; for that there is `on_nodes.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from . import runs
from .nodes import Nodes
from .on_nodes import PORT, Layout
from .torch_loaded import TorchLoaded
from .zygote import Command, Part, Zygote


class ForkedNodes:
    """One job at a time, and nothing else meanwhile of what has torch `loaded`."""

    def __init__(self, loaded: TorchLoaded) -> None:
        self._loaded = loaded
        self._servers: list[TorchLoaded] = []

    def start(
        self,
        nodes: Nodes,
        layout: Layout,
        program: Sequence[str],
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        flags_on: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Command]:
        """Start it on all nodes of the layout; the run directories are the nodes'. `flags_on`:
        distdebug's further flags on some of them, by number."""
        count, commands = len(layout.ranks), []
        self.close()
        self._servers = self._loaded.servers(count)
        tasks = {"SLURM_STEP_NUM_TASKS": str(count)}
        extra = {"TMPDIR": "/tmp", **tasks, **(extra or {})}
        for number, here in enumerate(layout.ranks):
            first = sum(layout.ranks[:number])
            place = (number, count, nodes[0].address, PORT)
            part = Part(nodes[number].init, first, layout.size, *place)
            directory = nodes[number].directory
            task = {**extra, "SLURM_PROCID": str(number)}
            given = (*flags, *(flags_on or {}).get(number, ()))
            zygote = Zygote(self._servers[number])
            commands.append(zygote.start(here, program, directory, given, task, part))
        return commands

    def run(
        self,
        nodes: Nodes,
        layout: Layout,
        program: Sequence[str],
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        limit_s: float = runs.LIMIT_S,
        flags_on: Mapping[int, Sequence[str]] | None = None,
    ) -> list[runs.Run]:
        """`start` it, and wait for the end of all."""
        commands = self.start(nodes, layout, program, flags, extra, flags_on)
        until_s = time.monotonic() + limit_s
        try:
            return [one.finish(max(0.1, until_s - time.monotonic())) for one in commands]
        except AssertionError as late:
            said = [f"== {one.directory.parent.name}\n{_tail(one)}" for one in commands]
            raise AssertionError("\n".join([str(late), *said])) from None

    def close(self) -> None:
        """End the servers of the last job."""
        for one in self._servers:
            one.close()


def _tail(command: Command) -> str:
    return command.stderr.read_text(errors="replace")[-4000:]
