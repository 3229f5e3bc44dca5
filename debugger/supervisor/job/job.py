"""A supervisor's part in its job: alone until its nodes have met, then the head or one of them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...nodes.interfaces import InterfaceError, address_towards, is_here
from ...nodes.several import Several
from ...record.run_directory import RunDirectory
from ...record.snapshot import Process
from ...record.wording import printable
from ..processes import ProcessTable

if TYPE_CHECKING:
    # With them comes ZeroMQ, which a run on one node does without.
    from ...nodes.head import Listener
    from ...nodes.member import Connection
    from .head import Head
    from .member import Member

ALONE, HEAD, MEMBER = "alone", "head", "member"


PLAN_S = 1.0
"""So long a rank that has found the head waits for the head's first words."""


class Job:
    """Of one run. `role` may change from ALONE once, when the nodes have met.

    Its control actions come from the thread that serves the control socket; everything else is
    called from the supervisor's loop.
    """

    def __init__(
        self,
        several: Several | None,
        directory: RunDirectory,
        table: ProcessTable,
        say: Callable[[str], None],
    ) -> None:
        self.several = several
        self._directory = directory
        self._table = table
        self.say = say
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._asked = False
        self.store_host = ""
        """Where the job's store is, as far as the launcher has said it."""
        self.rendezvous_s = 0.0
        """When the launcher began to look for other nodes; 0: it has not."""
        self.on_action: Callable[[int, Mapping[str, Any]], None] = lambda _number, _request: None
        """For the member that this may become."""
        self.head: Head | None = None
        self.member: Member | None = None

    # -- meeting, in the thread of the control socket ------------------------------------------

    def actions(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """What processes of the run, which have the job's store, may ask and tell."""
        if self.several is None:
            return {}
        return {
            "rendezvous": self._rendezvous,
            "meet": self._meet,
            "lead": self._lead,
            "join": self._join,
            "admit": self._admit,
        }

    def _rendezvous(self, request: Mapping[str, Any]) -> str:
        self.store_host = printable(str(request.get("host", "")), 255)
        self.rendezvous_s = self.rendezvous_s or time.monotonic()
        return "it is waited for"

    def _meet(self, request: Mapping[str, Any]) -> str:
        """Our address and key, for the store; nothing where somebody has asked before."""
        from ...nodes.head import Listener
        from ...nodes.member import Connection

        assert self.several is not None
        with self._lock:
            if self._asked:
                return json.dumps({"offer": ""})
            self._asked = True
            host = str(request.get("host", ""))[:255]
            try:
                address = address_towards(host or socket.gethostname(), self.several.interface)
                self._listener = Listener(address, socket.gethostname(), self.say)
            except (InterfaceError, OSError) as error:
                self.say(f"there will be no verdict over all nodes: {error}")
                return json.dumps({"offer": ""})
            self._connection = Connection(self.say)
            offer = self._listener.offer.text()
            first = bool(host) and is_here(host)
            return json.dumps({"offer": offer, "key": self._connection.key, "first": first})

    def _lead(self, _request: Mapping[str, Any]) -> str:
        from .head import Head

        with self._lock:
            if self._listener is None or self.role != ALONE:
                raise ValueError("this supervisor cannot be the head")
            self._listener.welcome = {"version": _version()}
            self.head = Head(self._listener, self._directory, self.say)
            others = self.several.fewest - 1 if self.several is not None else 0
        return json.dumps({"others": others})

    def _join(self, request: Mapping[str, Any]) -> str:
        from ...nodes.offers import Offer, OfferError
        from .member import Member

        with self._lock:
            if self._connection is None or self._listener is None or self.role != ALONE:
                raise ValueError("this supervisor has a role already")
            try:
                offer = Offer.of(str(request.get("offer")))
            except OfferError as error:
                self.say(f"there will be no verdict over all nodes: {error}")
                raise
            self._listener.close()
            self._listener = None
            self._connection.connect(offer, Member.hello(_version()))
            member = Member(self._connection, self._directory, self._table, self.say)
            member.on_action = self.on_action
            self.member = member
            if not one_terminal():
                where = offer.host or offer.address
                self.say(f"node {where} is the head: it keeps the run of all nodes")
        # Its rank makes its group then, with the faults that the head's command line asks for.
        until_s = time.monotonic() + PLAN_S
        while not (member.planned or member.lost) and time.monotonic() < until_s:
            time.sleep(0.01)
        return "it joins"

    def _admit(self, request: Mapping[str, Any]) -> str:
        from ...nodes.offers import is_key

        key = str(request.get("key"))
        if self._listener is None or not is_key(key):
            raise ValueError("that is no key of a node")
        self._listener.allow(key)
        return "it may speak"

    # -- in the supervisor's loop --------------------------------------------------------------

    @property
    def role(self) -> str:
        """ALONE, HEAD or MEMBER."""
        return HEAD if self.head is not None else MEMBER if self.member is not None else ALONE

    @property
    def judged_elsewhere(self) -> bool:
        """Whether the head judges what happens here."""
        return self.member is not None and not self.member.lost

    def take(self) -> None:
        """Take in what the others have said, and tell them what is new."""
        if self.head is not None:
            self.head.take()
        elif self.member is not None:
            known = self.member.lost
            self.member.take()
            if self.member.lost and not known:
                self.say(
                    f"{self.member.lost}: from here on this node is judged by what is seen here"
                )

    def process_of(self, path: Path) -> Process | None:
        """For records that are copies: what their node says of the process."""
        return None if self.head is None else self.head.process_of(path)

    def publish(self, report: Mapping[str, Any]) -> None:
        """The report of the run, for all nodes, if this is the head."""
        if self.head is not None:
            self.head.report(report)

    @property
    def environment(self) -> dict[str, str]:
        """For the ranks."""
        return {"DISTDEBUG_MEET": "1" if self.several is not None else ""}

    def close(self) -> None:
        """The run is over."""
        parts: tuple[Any, ...] = (self.head, self.member, self._listener, self._connection)
        for one in parts:
            if one is not None:
                one.close()


def one_terminal() -> bool:
    """Whether the head's words stand on the terminal of this supervisor, too: they are not to be
    said once more (see `launch.mpi_over_nodes`)."""
    return bool(os.environ.get("DISTDEBUG_ONE_TERMINAL"))


def _version() -> str:
    from importlib.metadata import version

    return version("distdebug")
