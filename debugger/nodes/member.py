"""A node that has a head: it tells what its ranks do, and does what the head has decided."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..diagnosis.findings import Finding
from ..record import steady_clock
from ..record.exits import ExitStatus
from ..record.kinds import KINDS
from ..record.limits import MOST_RANKS
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..record.snapshot import LostNode, Process
from .connection import Connection
from .files import MOST_LOGS_BYTES, WHILE_RUNNING_BYTES, FileSource, InjectedSource, take_plan
from .limits import AGAIN_EVERY_S, COMES_S
from .many_nodes import Pace, unpacked
from .messages import Act, Message, answer
from .mirror import Sampler
from .prompts import Prompts
from .view import View

HEAD = 0
"""The number of the head."""


class Member:
    """This node as a member of one job. Everything here is called from the supervisor's loop."""

    def __init__(
        self,
        connection: Connection,
        directory: RunDirectory,
        observe: Callable[[int, int], Process],
        say: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._directory = directory
        self._say = say
        self._sampler = Sampler(directory.ranks, observe)
        self._logs = FileSource(directory.path, values=True)
        self._injected = InjectedSource(directory.path)
        self.prompts = Prompts(directory.path, lambda _head, message: connection.send(message))
        self.view = View(directory, connection.send)
        self._logs_s = 0.0
        self._told_end: Mapping[str, Any] | None = None
        self.welcomed = self.planned = False
        self._heads_ranks: tuple[int, ...] = ()
        self.finding: Finding | None = None
        self.document: Mapping[str, Any] | None = None
        self.stop_signal = self._interrupted = 0
        self.ends = False
        self.stacks_wanted: Mapping[str, Any] | None = None
        self.on_request: Act = lambda _request: ""
        """Does what the head asks of the ranks here."""
        self.lost = ""
        self.lost_ns = 0
        self._absent = False

    def take(self) -> None:
        """Take in what the head has said, and tell what is new."""
        if self.lost:
            return
        for message in self._connection.received():
            self._take(message)
        self.lost = self._connection.lost if self.document is None else ""
        if self.lost:
            self._absent = self._connection.absent_s > 0
            silent_ns = int(self._connection.silent_s * 1e9)
            self.lost_ns = steady_clock.now_ns() - silent_ns
            self.view.lost(self.lost)
            self.prompts.close()
            return
        self.view.look()
        if self.welcomed and self._connection.ahead < self._sampler.pace.ahead:
            self._tell()  # else later, in one: the head is behind

    def _take(self, message: Message) -> None:
        data = message.data
        match message.kind:
            case "welcome":
                self._welcome(data)
            case "tell":
                self._sampler.hasten()
            case "anew":
                self._sampler.anew()
            case "stacks":
                self.stacks_wanted = data
            case "verdict":
                # The verdict as far as the ranks need to know it; its report follows.
                kind, cause = str(data.get("kind")), data.get("cause")
                culprits = data.get("culprits")
                self.finding = Finding(
                    kind=kind if kind in KINDS else "tool_error",
                    message=clean(str(data.get("message")), 4000),
                    culprits=tuple(one for one in culprits if type(one) is int)
                    if isinstance(culprits, list)
                    else (),
                    cause=None if cause is None else clean(str(cause), 80),
                )
            case "stop":
                signal = data.get("signal")
                self.stop_signal = signal if type(signal) is int and 0 < signal < 65 else 15
            case "end":
                self.ends = True
            case "report":
                self.document = unpacked(message.blob)
                self._connection.send(Message("bye"))  # so that the head may go
            case _:
                # What makes no sense is left out, and so is what cannot be kept.
                with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
                    self._do(message)

    def _welcome(self, data: Mapping[str, Any]) -> None:
        ranks = data.get("ranks")
        if isinstance(ranks, list):
            self._heads_ranks = tuple(
                one for one in ranks if type(one) is int and 0 <= one < MOST_RANKS
            )
        if "node" in data:
            if self.welcomed:
                self._again()
            self.welcomed = True
            self.view.headed(self.host)

    def _do(self, message: Message) -> None:
        data = message.data
        match message.kind:
            case "fill":
                files = data.get("files")
                self._sampler.fill(int(data["number"]), files if isinstance(files, list) else None)
            case "pace":
                self._sampler.pace = Pace.of(data)
            case "plan":
                try:
                    take_plan(self._directory.path, data)
                finally:
                    self.planned = True
            case "prompt":
                self.prompts.heard(HEAD, data, message.blob)
            case "stops":
                self.prompts.stand(HEAD, data)
            case "request":
                answer(self.on_request, data, self._connection.send)
            case "view" | "reply":
                self.view.take(message)

    def _again(self) -> None:
        """The connection broke for a moment: what was on its way is lost."""
        for source in (self._sampler, self._injected, self._logs, self.view):
            source.anew()
        self.prompts.gone(HEAD)
        if self._told_end is not None:
            self._tell()  # before the end: how the ranks came to it
            if self._told_end["over"]:
                self._tell_all_logs()
            self._connection.send(Message("ended", self._told_end))
        if self._interrupted:
            self._connection.send(Message("interrupted", {"signal": self._interrupted}))

    def _tell(self) -> None:
        digests = self._sampler.digests()
        # Looked at after the digest was made, and told before it: whoever has that knows of all
        # faults that had been made to happen by then.
        injected = self._injected.next()
        for message in (injected, *digests):
            if message is not None:
                self._connection.send(message)
        self.prompts.tell(lambda: (HEAD,))
        now_s = time.monotonic()
        if now_s - self._logs_s >= max(AGAIN_EVERY_S, self._sampler.pace.idle_s):
            self._logs_s = now_s
            added = self._logs.next("files", WHILE_RUNNING_BYTES)
            if added is not None:
                self._connection.send(added)

    # -- what it has to say --------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The head's."""
        return clean(self._connection.host, 120)

    def lost_node(self, own: Iterable[int]) -> LostNode:
        """The head, that is silent; or this node, where that was suspended and the head has given
        it up. `own`: the ranks here."""
        if self._absent:
            return LostNode(socket.gethostname(), self.lost_ns, tuple(own))
        return LostNode(self.host, self.lost_ns, self._heads_ranks)

    def tell_stacks(self, stacks: Mapping[str, Any]) -> None:
        """Sends the stacks that the head has asked for."""
        self.stacks_wanted = None
        self._connection.send(Message("stacks", stacks))

    def tell_end(self, status: ExitStatus | None, over: bool) -> None:
        """Tells the head how the command has ended, and whether nothing is left of it; if something
        is, it is ranks that the command has left behind."""
        raw = None
        if status is not None:
            raw = status.signal if status.signal is not None else (status.code or 0) << 8
        value = {"status": raw, "over": over, "left": not over}
        if value == self._told_end or self.lost:
            return
        self._told_end = value
        if over:
            self._sampler.fill()
            self._tell()
            self._tell_all_logs()
        self._connection.send(Message("ended", value))

    def _tell_all_logs(self) -> None:
        told_bytes = 0
        while told_bytes < MOST_LOGS_BYTES and (added := self._logs.next("files")):
            told_bytes += len(added.blob)
            self._connection.send(added)

    def interrupted(self, signal: int) -> None:
        """Tells the head of a Ctrl-C here, or the like: all nodes end."""
        if not self.stop_signal:
            self.stop_signal = self._interrupted = signal
            self._connection.send(Message("interrupted", {"signal": signal}))

    def report(self, hasten: Callable[[], bool], grace_s: float = 0.0) -> Mapping[str, Any] | None:
        """The head's report; None where it does not come. `grace_s`: what the ranks of other nodes
        may take to end."""
        until_s = time.monotonic() + COMES_S + grace_s
        while self.document is None and not self.lost and not hasten():
            self.take()
            if time.monotonic() > until_s:
                break
            time.sleep(0.02)
        return self.document

    def close(self) -> None:
        """Leave in good order."""
        self.view.close()
        self.prompts.close()
        self._connection.send(Message("bye"))
        self._connection.close()

    @staticmethod
    def hello(version: str, task: str, ranks: int) -> dict[str, Any]:
        """Returns what this node says of itself. By `id` the head knows it again after a moment
        without a connection, where all nodes have one key. `ranks`: how many it starts (0: not
        known)."""
        from .keys import SCHEMA

        host, own = socket.gethostname(), secrets.token_hex(16)
        about = {"host": host, "task": task, "ranks": ranks, "id": own}
        return {"schema": SCHEMA, "version": version, **about}
