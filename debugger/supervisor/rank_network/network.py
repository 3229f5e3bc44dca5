"""The supervisor's handle on the ranks' own network: on the process that makes and carries it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ...errors import DistdebugError, UsageError
from ...faults.plan import Plan
from ...hook.loading import command
from ...record.network import Entrances
from ..limits import GONE_WITHIN_S


class Network:
    """A namespace for each of `ranks` ranks and one for their launcher, with the plan's faults of
    links between them. Raises UsageError where this machine makes none."""

    def __init__(self, ranks: int, plan: Plan, directory: Path) -> None:
        self._switch = subprocess.Popen(
            command("supervisor.rank_network.switch", alone=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        request = {"ranks": ranks, "directory": str(directory), "plan": plan.to_json()}
        try:
            self._switch.stdin.write(json.dumps(request).encode() + b"\n")
            self._switch.stdin.flush()
            answer = json.loads(self._switch.stdout.readline() or b"{}")
        except (OSError, ValueError):
            answer = {}
        if "entrances" not in answer:
            self.close()
            why = answer.get("failed", "the process that makes them has ended")
            raise UsageError(f"--netns: this machine gives no network namespaces: {why}")
        self.entrances = Entrances.read(answer["entrances"])

    def check(self) -> None:
        """Raises DistdebugError where it is there no more: without it no rank hears of another."""
        if self._switch.poll() is not None:
            raise DistdebugError(
                "the process that carries the network between the ranks has ended "
                f"(status {self._switch.returncode}); what the ranks did since then means nothing"
            )

    def close(self) -> None:
        """Take it down; whoever is still in it has no network any more."""
        for stream in (self._switch.stdin, self._switch.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # the other end was gone already
        try:
            self._switch.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._switch.kill()
            self._switch.wait()
