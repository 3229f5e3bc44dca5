"""A supervisor's part in its job: alone until its nodes have met, then the head or one of them."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..record.reading.records import ReportedCopy
from ..record.requests.control import PERHAPS
from ..record.runs.run_directory import RunDirectory
from ..record.snapshot import Process
from ..record.wording import printable
from .interfaces import InterfaceError, address_of_host, address_towards, is_here, names_loopback
from .limits import ANSWERS_S, COMES_S, HEAD_FIRST_S, TAKE_EVERY_S
from .presence import ROLES, Event, Role, after
from .several import MOST, Agreed, Several

if TYPE_CHECKING:
    # With them comes ZeroMQ, which a run on one node does without.
    from .connection import Connection
    from .head import Head
    from .keys import Offer
    from .listener import Listener
    from .member import Member


class Job:
    """The job that one run is a part of. `role` may change from ALONE once, when the nodes have
    met.

    Its control actions come from the thread that serves the control socket; everything else is
    called from the supervisor's loop.
    """

    def __init__(
        self,
        several: Several | None,
        directory: RunDirectory,
        observe: Callable[[int, int], Process],
        say: Callable[[str], None],
    ) -> None:
        self.several = several
        self._directory = directory
        self._observe = observe
        self.say = say
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self.role = Role.ALONE
        self.store_host = ""
        """The host of the job's store, as far as the launcher has said it."""
        self.rendezvous_s = 0.0
        """When the launcher began to look for other nodes; 0: it has not."""
        self.on_request: Callable[[Mapping[str, Any]], str] = lambda _request: ""
        """Does what another node asks of the head that this may become, or of the member."""
        self.head: Head | None = None
        self.member: Member | None = None

    def _on(self, event: Event) -> bool:
        """Takes an event; whether it has changed the role."""
        before, self.role = self.role, after(ROLES, self.role, event)
        return self.role is not before

    def _cannot_meet(self, why: Exception) -> None:
        self._on(Event.FAIL)
        self.say(f"there will be no verdict over all nodes: {why}")

    # -- meeting where all nodes were told to, before there are ranks --------------------------

    def begin(self, hasten: Callable[[], bool]) -> None:
        """With `--head`, becomes the head or goes to it; else does nothing. What keeps the nodes
        apart is said in one sentence, and the run goes on without them."""
        agreed = self.several.agreed if self.several is not None else None
        if agreed is None or self.several is None:
            return
        with self._lock:
            self._on(Event.MEET)  # what the ranks' own store is for is done
        try:
            address = address_of_host(agreed.host)
            if not address:
                raise InterfaceError(f"--head: this host knows no way to {printable(agreed.host)}")
            if not is_here(agreed.host):
                self._go_to(agreed, address)
            elif not self._listen(agreed):
                # Where that one listens: the name may stand for another address of this host.
                address = address_towards(agreed.host, self.several.interface)
                self._go_to(agreed, address, here=True)
        except (InterfaceError, OSError) as error:
            self._cannot_meet(error)
            return
        until_s = time.monotonic() + HEAD_FIRST_S
        while self.member is not None and not self.member.planned:
            self.take()
            if self.member.lost or hasten():
                break
            if time.monotonic() > until_s:
                if not self.member.welcomed:
                    self.say(
                        f"the head at {agreed.host} port {agreed.port} does not answer yet: the "
                        f"ranks start, and it is waited for up to {COMES_S:.0f} s"
                    )
                break
            time.sleep(0.02)

    def _listen(self, agreed: Agreed) -> bool:
        """Listens as the head; False where its port is taken: by another supervisor of the job on
        this host, it may be."""
        from .keys import head_pair, node_pair
        from .listener import Listener

        assert self.several is not None
        address = address_towards(agreed.host, self.several.interface)
        loopback = ipaddress.ip_address(address).is_loopback
        if loopback and agreed.host != "localhost" and agreed.host != address:
            self.say(
                f"--head {agreed.host}: here that name stands for {address}, which no other host "
                "reaches; give the address that they know this host by"
            )
        pair = head_pair(agreed.key)
        try:
            self._listener = Listener(address, socket.gethostname(), self.say, agreed.port, pair)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._lead({})
        self._listener.allow(node_pair(agreed.key).public.decode())
        self._listener.admitted = self.several.fewest - 1
        return True

    def _go_to(self, agreed: Agreed, address: str, here: bool = False) -> None:
        from .connection import Connection
        from .keys import Offer, head_pair, node_pair

        key = head_pair(agreed.key).public.decode()
        self._connection = Connection(self.say, node_pair(agreed.key), COMES_S)
        if here:
            self._connection.not_the_head = (
                f"port {agreed.port} of this host is taken, by what is no head of this job or has "
                "another job key: give --head another port, the same on all nodes"
            )
        with self._lock:
            self._become_member(Offer(address, agreed.port, key, agreed.host))

    # -- meeting, in the thread of the control socket ------------------------------------------

    def actions(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """Returns the actions that processes of the run, which have the job's store, may ask
        for."""
        if self.several is None:
            return {}
        return {
            "rendezvous": self._rendezvous,
            "meet": self._meet,
            "lead": self._lead,
            "join": self._join,
            "admit": self._admit,
            "watch": self._watch,
        }

    def _rendezvous(self, request: Mapping[str, Any]) -> str:
        self.store_host = printable(str(request.get("host", "")), 255)
        self.rendezvous_s = self.rendezvous_s or time.monotonic()
        return "it is waited for"

    def _meet(self, request: Mapping[str, Any]) -> str:
        """Our address and key, for the store; nothing where somebody has asked before."""
        from .connection import Connection
        from .listener import Listener

        assert self.several is not None
        with self._lock:
            host = str(request.get("host", ""))[:255]
            if self.role is not Role.ALONE or not self._is_one_of_several(
                host, request.get("nodes")
            ):
                return json.dumps({"offer": ""})
            self._on(Event.MEET)
            try:
                address = address_towards(host or socket.gethostname(), self.several.interface)
                self._listener = Listener(address, socket.gethostname(), self.say)
            except (InterfaceError, OSError) as error:
                self._cannot_meet(error)
                return json.dumps({"offer": ""})
            self._connection = Connection(self.say)
            offer = self._listener.offer.text()
            first = bool(host) and is_here(host)
            return json.dumps({"offer": offer, "key": self._connection.key, "first": first})

    def _is_one_of_several(self, host: str, nodes: Any) -> bool:
        """Whether there may be other nodes; where nobody had said that there are, a rank knows of
        `nodes` (fewest and most), or it follows from the store that it joins."""
        several = self.several
        if several is None or not several.guessed:
            return several is not None
        if isinstance(nodes, list) and len(nodes) == 2 and all(type(one) is int for one in nodes):
            fewest, most = (min(max(1, one), MOST) for one in nodes)
            self.several = replace(several, fewest=fewest, most=most, guessed=False)
        elif not host or names_loopback(host):
            return False
        elif not is_here(host):
            self.several = replace(several, fewest=2, guessed=False)
        return True

    def _lead(self, _request: Mapping[str, Any]) -> str:
        from .head import Head

        with self._lock:
            if self._listener is None or not self._on(Event.LEAD):
                raise ValueError("this supervisor cannot be the head")
            self._listener.welcome = {"version": _version()}
            self._listener.task = self.several.task if self.several is not None else ""
            self.head = Head(self._listener, self._directory, self.say)
            self.head.views.on_request = self.on_request
            others = self.several.fewest - 1 if self.several is not None else 0
        return json.dumps({"others": others})

    def _join(self, request: Mapping[str, Any]) -> str:
        from .keys import Offer, OfferError

        with self._lock:
            if self._connection is None or self.role is not Role.MEETING:
                raise ValueError("this supervisor has a role already")
            try:
                offer = Offer.of(str(request.get("offer")))
            except OfferError as error:
                self.say(f"there will be no verdict over all nodes: {error}")
                raise
            if self._listener is not None:
                self._listener.close()
            self._listener = None
            member = self._become_member(offer)
            if not one_terminal():
                where = offer.host or offer.address
                self.say(f"node {where} is the head: it keeps the run of all nodes")
        # Its rank makes its group then, with the faults that the head's command line asks for.
        until_s = time.monotonic() + ANSWERS_S
        while not (member.planned or member.lost) and time.monotonic() < until_s:
            time.sleep(0.01)
        return "it joins"

    def _become_member(self, offer: Offer) -> Member:
        from .member import Member

        assert self._connection is not None
        self._on(Event.JOIN)
        several = self.several or Several(1, MOST)
        about = Member.hello(_version(), several.task, several.ranks)
        self._connection.connect(offer, about)
        self.member = Member(self._connection, self._directory, self._observe, self.say)
        self.member.on_request = self.on_request
        return self.member

    def _admit(self, request: Mapping[str, Any]) -> str:
        from .keys import is_key

        key = str(request.get("key"))
        if self._listener is None or not is_key(key):
            raise ValueError("that is no key of a node")
        self._listener.allow(key)
        return "it may speak"

    def _watch(self, request: Mapping[str, Any]) -> str:
        if self.member is None:
            raise ValueError("this node has no head")
        return self.member.view.asked(request)

    # -- in the supervisor's loop --------------------------------------------------------------

    @property
    def far_stops(self) -> Collection[str]:
        """The names of breakpoints of other nodes, as they stand in the run directory here."""
        one = self.head or self.member
        return () if one is None else one.prompts.far

    @property
    def judged_elsewhere(self) -> bool:
        """Whether the head judges what happens here."""
        return self.member is not None and not self.member.lost

    def take(self) -> None:
        """Take in what the others have said, and tell them what is new."""
        if self.head is not None:
            self.head.take()
        elif self.member is not None:
            self.member.take()
            if self.member.lost and self._on(Event.ORPHAN):
                self.say(
                    f"{self.member.lost}: from here on this node is judged by what is seen here"
                )

    def pause(self, seconds: float) -> None:
        """Pauses until the next look. What other nodes say meanwhile is taken in at once: then that
        look has less to do, and it does not lie in memory until then. Raises what `take` does,
        never before `TAKE_EVERY_S`."""
        until_s = time.monotonic() + seconds
        while self.head is not None and until_s - time.monotonic() > TAKE_EVERY_S:
            time.sleep(TAKE_EVERY_S)
            self.head.take()
        time.sleep(max(0.0, until_s - time.monotonic()))

    def copy_of(self, path: Path) -> ReportedCopy | None:
        """Returns what the node of a copied record has told of it; None for a record of this
        host."""
        return None if self.head is None else self.head.copy_of(path)

    def kept(self) -> None:
        """The report stands in the run directory here."""
        if self.member is not None:
            self.member.view.close()

    def publish(self, report: Mapping[str, Any]) -> None:
        """The report of the run, for all nodes, if this is the head."""
        if self.head is not None:
            self.head.report(report)

    @property
    def environment(self) -> dict[str, str]:
        """Returns what the ranks get into their environment."""
        if self.several is None:
            return {"DISTDEBUG_MEET": ""}
        return {"DISTDEBUG_MEET": PERHAPS if self.several.guessed else "1"}

    def close(self) -> None:
        """The run is over."""
        parts: tuple[Any, ...] = (self.head, self.member, self._listener, self._connection)
        for one in parts:
            if one is not None:
                one.close()


def one_terminal() -> bool:
    """Whether the head's words stand on the terminal of this supervisor, too: they are not to be
    said once more (see `launch.mpi_launcher`)."""
    return bool(os.environ.get("DISTDEBUG_ONE_TERMINAL"))


def _version() -> str:
    from importlib.metadata import version

    return version("distdebug")
