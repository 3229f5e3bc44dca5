"""The actions of the control socket on the ranks of all nodes: asked of the head, done where they
are.

A request about a rank of another node goes there as a message `action`, and comes back as an
`answer`; one about all ranks is done here and on every node. On a node that has a head only its own
ranks can be asked for, and the refusal says where the head is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..nodes.job import Job
from ..record.limits import POLL_EVERY_S
from ..record.requests.control import Action
from ..record.runs.run_directory import RunDirectory, planned_faults
from ..record.safe_text import clean
from ..record.snapshot import Rank
from .actions import Actions
from .limits import ASKED_STACKS_S
from .several_nodes import merged
from .stacks.evidence import gather, keep


class JobActions:
    """The actions of one run. `ranks()` gives the ranks of the last look, on the head those of all
    nodes."""

    def __init__(
        self, job: Job, directory: RunDirectory, ranks: Callable[[], Mapping[int, Rank]]
    ) -> None:
        self._job = job
        self._directory = directory
        self._all_ranks = ranks
        self._local = Actions(directory, self._here, lambda: job.far_stops).table()
        job.on_request = self._requested

    def _here(self) -> Mapping[int, Rank]:
        return {number: rank for number, rank in self._all_ranks().items() if not rank.node}

    def table(self) -> dict[str, Action]:
        """Returns the actions by name, as requests say them."""
        return {
            **self._local,
            "stacks": self._stacks,
            "break": self._break,
            "continue": self._continue,
            "inject": self._inject,
        }

    def _requested(self, request: Mapping[str, Any]) -> str:
        """Does what another node asks: the head of this one, or one of this one, which is the
        head."""
        if self._job.member is not None:
            return self._do_here(request)
        action = self.table().get(str(request.get("action")))
        if action is None:
            raise ValueError(f"the head cannot {clean(str(request.get('action')), 40)}")
        return action(request)

    def _do_here(self, request: Mapping[str, Any]) -> str:
        name = str(request.get("action"))
        if name == "inject":
            text = str(request.get("text"))
            for one in planned_faults(self._directory.path):
                if one.text == text:
                    return self._local["inject"]({"fault": one.number})
            raise ValueError("this node's plan has no such fault")
        if name not in ("break", "continue"):
            raise ValueError(f"a node is not asked to {clean(name, 40)}")
        return self._local[name](request)

    # -- of one rank ---------------------------------------------------------------------------

    def _break(self, request: Mapping[str, Any]) -> str:
        node = self._node_of(request)
        if self._job.head is not None:
            self._job.head.expect_stop()
        return self._ask(node, request) if node else self._local["break"](request)

    def _continue(self, request: Mapping[str, Any]) -> str:
        node = self._node_of(request)
        if node:
            return self._ask(node, request)
        if request.get("rank") is not None:
            return self._local["continue"](request)
        return self._everywhere(lambda: self._local["continue"](request), request)

    def _node_of(self, request: Mapping[str, Any]) -> int:
        """The node of the rank that is meant; 0: this one, or none in particular."""
        number = request.get("rank")
        rank = self._all_ranks().get(number) if type(number) is int else None
        if rank is not None:
            return rank.node
        member = self._job.member
        if type(number) is int and member is not None and not member.lost:
            raise ValueError(
                f"rank {number} is on another node; ask on {member.host or 'the head'}, "
                "which has the run of all nodes"
            )
        return 0

    def _ask(self, node: int, request: Mapping[str, Any]) -> str:
        head = self._job.head
        if head is None:
            raise ValueError("the rank is on another node")
        return head.ask(node, request)

    def _everywhere(self, here: Callable[[], str], request: Mapping[str, Any]) -> str:
        """Acts here and on all nodes; refused where all refuse."""
        done, refused = [], []
        head = self._job.head
        asked: list[Callable[[], str]] = [here]
        if head is not None:
            asked += [partial(self._ask, node, request) for node in head.reachable]
        for one in asked:
            try:
                done.append(one())
            except ValueError as refusal:
                refused.append(str(refusal))
        if not done:
            raise ValueError("; ".join(dict.fromkeys(refused)))
        return "; ".join(done)

    # -- of all --------------------------------------------------------------------------------

    def _stacks(self, request: Mapping[str, Any]) -> str:
        head = self._job.head
        if head is None:
            return self._local["stacks"](request)
        ranks = self._all_ranks()
        if not any(rank.process.alive for rank in ranks.values()):
            raise ValueError("no rank is running yet")
        began_s, native = time.monotonic(), request.get("native") is True
        head.ask_stacks(native, ASKED_STACKS_S)
        evidence = gather(self._directory, self._here(), native, ASKED_STACKS_S)
        until_s = began_s + ASKED_STACKS_S + 1
        while not head.has_all_stacks and time.monotonic() < until_s:
            time.sleep(POLL_EVERY_S)  # the supervisor's loop takes them in
        evidence = merged(evidence, head.stacks_told)
        keep(self._directory, evidence.stacks, (), time.monotonic() - began_s)
        return f"took the stacks of {len(evidence.stacks)} of {len(ranks)} ranks"

    def _inject(self, request: Mapping[str, Any]) -> str:
        """Asks for a fault by its text: every node has numbers of its own."""
        said = self._local["inject"](request)
        head, number = self._job.head, request.get("fault")
        text = next(
            (one.text for one in planned_faults(self._directory.path) if one.number == number), ""
        )
        if head is not None:
            for node in head.reachable:
                with contextlib.suppress(ValueError):  # its plan has no such fault, say
                    head.ask(node, {"action": "inject", "text": text})
        return said
