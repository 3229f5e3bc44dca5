"""The actions of the control socket on the ranks of a run; each answers in words, or refuses in one
sentence (ValueError).

    {"action": "stacks", "native": false}    take the stacks of all ranks
    {"action": "break", "rank": 2}           stop it at its next line, or before its next call
    {"action": "continue", "rank": 2}        let it go on; without a rank, all that stand
    {"action": "inject", "fault": 0}         make a fault of the plan happen now

They are asked of the head, and done where the rank is. A request about a rank of another node goes
there as a message, and so comes its answer back; one about all ranks is done here and on every
node. On a node that has a head only its own ranks can be asked for, and the refusal says where the
head is.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..nodes.job import Job
from ..nodes.limits import THERE_AND_BACK_S
from ..record import steady_clock
from ..record.layout import Phase
from ..record.limits import POLL_EVERY_S
from ..record.requests import breakpoints, supervision
from ..record.requests.breakpoints import TAKEN, Line, Stop, connect, stops
from ..record.requests.control import Action
from ..record.runs.run_directory import FAULTS_ASKED, PlannedFault, RunDirectory, planned_faults
from ..record.safe_text import clean
from ..record.snapshot import Rank
from ..record.streams import readable
from ..record.wording import at_site, printable, spans
from .limits import ASKED_STACKS_S, GOES_S, SILENT_S, STANDS_S
from .several_nodes import merged
from .stacks.evidence import gather, keep


class Actions:
    """The actions of one run. `ranks()` gives the ranks of the last look, on the head those of all
    nodes."""

    def __init__(
        self, job: Job, directory: RunDirectory, ranks: Callable[[], Mapping[int, Rank]]
    ) -> None:
        self._job = job
        self._directory = directory
        self._all_ranks = ranks
        job.on_request = self._requested

    def table(self) -> dict[str, Action]:
        """Returns the actions by name, as requests say them."""
        return {
            "stacks": self._stacks,
            "break": self._break,
            "continue": self._continue,
            "inject": self._inject,
        }

    def _ranks(self) -> Mapping[int, Rank]:
        """Returns the ranks of this node."""
        return {number: rank for number, rank in self._all_ranks().items() if not rank.node}

    def _requested(self, request: Mapping[str, Any]) -> str:
        """Does what another node asks: the head of this one, or one of this one, which is the
        head."""
        name = str(request.get("action"))
        if self._job.member is None:
            action = self.table().get(name)
            if action is None:
                raise ValueError(f"the head cannot {clean(name, 40)}")
            return action(request)
        match name:
            case "break":
                return self._break_here(request)
            case "continue":
                return self._continue_here(request)
            case "inject":
                text = str(request.get("text"))
                for one in planned_faults(self._directory.path):
                    if one.text == text:
                        return self._inject_here(one)
                raise ValueError("this node's plan has no such fault")
            case _:
                raise ValueError(f"a node is not asked to {clean(name, 40)}")

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

    def _stacks(self, request: Mapping[str, Any]) -> str:
        head, ranks, began_s = self._job.head, self._all_ranks(), time.monotonic()
        if not any(rank.process.alive for rank in ranks.values()):
            raise ValueError("no rank is running yet")
        native = request.get("native") is True
        if head is not None:
            head.ask_stacks(native, ASKED_STACKS_S)
        evidence = gather(self._directory, self._ranks(), native, ASKED_STACKS_S)
        if head is not None:
            until_s = began_s + ASKED_STACKS_S + THERE_AND_BACK_S
            while not head.has_all_stacks and time.monotonic() < until_s:
                time.sleep(POLL_EVERY_S)  # the supervisor's loop takes them in
            evidence = merged(evidence, head.stacks_told)
            keep(self._directory, evidence.stacks, (), time.monotonic() - began_s)
        return f"took the stacks of {len(evidence.stacks)} of {len(ranks)} ranks"

    # -- break ---------------------------------------------------------------------------------

    def _break(self, request: Mapping[str, Any]) -> str:
        node, head = self._node_of(request), self._job.head
        if head is not None:
            head.prompts.expect(head.reachable)  # who waits for it is to be ready for that
            if node:
                return head.ask(node, request)
        return self._break_here(request)

    def _break_here(self, request: Mapping[str, Any]) -> str:
        number = _rank_of(request)
        if number is None:
            raise ValueError("say which rank is to stop")
        rank = self._able(number)
        standing = self._standing(rank.pid)
        if standing is not None:
            raise ValueError(standing.notice(""))
        directory = self._directory.path
        try:
            breakpoints.ask_to_stop(directory, rank.pid)
        except OSError as error:
            raise ValueError(f"rank {number} cannot be asked to stop: {error.strerror}") from error
        until_s = time.monotonic() + STANDS_S
        while time.monotonic() < until_s:
            standing = self._standing(rank.pid)
            if standing is not None:
                return standing.notice("")
            now = self._ranks().get(number)
            if now is None or now.pid != rank.pid or not now.process.alive:
                supervision.withdraw_request(directory, rank.pid)
                raise ValueError(f"rank {number} has ended before it stood")
            rank = now
            time.sleep(POLL_EVERY_S)
        if not supervision.is_asked(directory, rank.pid) and self._standing(rank.pid) is None:
            raise ValueError(f"rank {number} passes over breakpoints: it is a forked process")
        return (
            f"rank {number} will stop at its next line of Python, or before its next call; "
            f"so far it is still{at_site(rank.location) or ' in the code of a library'}"
        )

    def _able(self, number: int) -> Rank:
        """The rank, if it can run Python. ValueError where it cannot."""
        rank = self._ranks().get(number)
        if rank is None:
            raise ValueError(f"there is no rank {number} yet")
        if rank.host not in ("", socket.gethostname()):
            raise ValueError(f"rank {number} runs on {rank.host}; its supervisor there can stop it")
        if not rank.process.alive or rank.phase >= Phase.EXITING:
            raise ValueError(f"rank {number} has ended, or is about to")
        if rank.process.state in ("T", "t"):
            raise ValueError(
                f"rank {number} is stopped by a signal and runs no line; "
                f"let it go on first: kill -CONT {rank.pid}"
            )
        silent_s = (steady_clock.now_ns() - (rank.heartbeat_ns or rank.started_ns)) / 1e9
        if silent_s > SILENT_S:
            raise ValueError(
                f"rank {number} has run no Python for {silent_s:.0f} s (its GIL is held), "
                "so it can stop at no line; its stack tells where it is"
            )
        return rank

    def _standing(self, pid: int) -> Stop | None:
        return next((one for one in stops(self._directory.path) if one.pid == pid), None)

    # -- continue ------------------------------------------------------------------------------

    def _continue(self, request: Mapping[str, Any]) -> str:
        node, head = self._node_of(request), self._job.head
        if head is None:
            return self._continue_here(request)
        if request.get("rank") is not None:
            return head.ask(node, request) if node else self._continue_here(request)
        done, refused = [], []
        for one in (0, *head.reachable):
            try:
                done.append(head.ask(one, request) if one else self._continue_here(request))
            except ValueError as refusal:
                refused.append(str(refusal))
        if not done:
            raise ValueError("; ".join(dict.fromkeys(refused)))
        return "; ".join(done)

    def _continue_here(self, request: Mapping[str, Any]) -> str:
        number, directory = _rank_of(request), self._directory.path
        far = self._job.far_stops
        stand = [
            one for one in stops(directory) if number in (None, one.rank) and one.name not in far
        ]
        spared = [
            f"rank {rank} will not be stopped"
            for rank, one in self._ranks().items()
            if number in (None, rank) and supervision.withdraw_request(directory, one.pid)
        ]
        if not stand and not spared:
            who = "no rank" if number is None else f"rank {number}"
            raise ValueError(f"{who} is{'' if number is None else ' not'} at a breakpoint")
        gone, refused = list(spared), []
        for stop in stand:
            try:
                gone.append(self._let_go(stop))
            except ValueError as refusal:
                refused.append(str(refusal))
        if not gone:
            raise ValueError("; ".join(refused))
        return "; ".join([*gone, *refused])

    def _let_go(self, stop: Stop) -> str:
        """Sends `continue` to the rank's prompt, and returns its answer."""
        if stop.address:
            raise ValueError(f"{stop.who} waits for an editor at {stop.address}: continue there")
        try:
            connection = connect(self._directory.path, stop)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ValueError(f"{stop.who} cannot be reached: {reason}") from error
        with contextlib.closing(Line(connection)) as line:
            line.send(once=True)
            line.send(line="continue")
            until_s = time.monotonic() + GOES_S
            while (left_s := until_s - time.monotonic()) > 0:
                if not readable([line], left_s):
                    break
                messages = line.receive()
                if messages is None:
                    return f"{stop.who} goes on"
                ends = [str(one["end"]) for one in messages if "end" in one]
                if TAKEN in ends:
                    raise ValueError(f"{stop.who} is left to the terminal that is at its prompt")
                if ends:
                    return printable(ends[0])
        raise ValueError(
            f"{stop.who} does not answer (stopped by a signal?), and may go on when it can"
        )

    # -- inject --------------------------------------------------------------------------------

    def _inject(self, request: Mapping[str, Any]) -> str:
        faults = {one.number: one for one in planned_faults(self._directory.path)}
        if not faults:
            raise ValueError(
                "this run has no plan of faults; start it with distdebug run --inject ..."
            )
        number = request.get("fault")
        fault = faults.get(number) if type(number) is int else None
        if fault is None:
            known = spans(faults)
            raise ValueError(f"the plan has no fault {str(number)[:20]}; it has {known}")
        said, head = self._inject_here(fault), self._job.head
        if head is not None:
            for node in head.reachable:
                with contextlib.suppress(ValueError):  # its plan has no such fault, say
                    # By its text: every node has numbers of its own.
                    head.ask(node, {"action": "inject", "text": fault.text})
        return said

    def _inject_here(self, fault: PlannedFault) -> str:
        if not any(rank.process.alive for rank in self._ranks().values()):
            raise ValueError("no rank is running yet")
        line = {"fault": fault.number, "time_ns": time.time_ns()}
        if not self._directory.append_line(FAULTS_ASKED, line):
            raise ValueError(self._directory.failures[-1])
        return f"fault {fault.number} is asked for now: {fault.text}"


def _rank_of(request: Mapping[str, Any]) -> int | None:
    """The rank that is meant, if one is. ValueError for what is none."""
    rank = request.get("rank")
    if rank is not None and type(rank) is not int:
        raise ValueError(f"a rank is a number, not {str(rank)[:20]!r}")
    return rank
