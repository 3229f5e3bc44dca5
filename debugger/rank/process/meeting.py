"""The meeting of the supervisors of several nodes: this process has the job's store.

A thread hands the address and the public key of this node's supervisor to the store, or takes the
head's from there. Who stands under `head` first is the head; the node that serves the store goes
first, the others wait for it a moment. Then each node adds its own key, and the head's process
passes the keys on to its supervisor, which takes nobody else. The store never carries more.

A rank whose process does it makes its group after that: what ends the job may be the next line, by
a signal or `os._exit`, and what a node had not told by then would be missing from the verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...record.exits import tell_asked
from ...record.limits import LOOK_EVERY_S, POLL_EVERY_S
from ...record.requests.control import PERHAPS, ControlError, ask
from ...record.runs.run_directory import RunDirectory
from ...record.safe_text import whole_number
from ..limits import CONNECT_S, MEET_S, OTHERS_COME_S, QUICK_S, SELDOM_S
from ..log.rank_log import at_exit

VARIABLE = "DISTDEBUG_MEET"
"""Set where the job has more nodes than this supervisor sees."""
MOST_KEY_BYTES = 1024
MOST_NODES = 1 << 14


def observe_launcher() -> None:
    """In torchrun's own process: meet in the store in which its nodes do, and tell which ranks it
    ends for a new world."""
    from ..torch_private.stores import on_launcher_store, on_new_world

    directory = Path(os.environ["DISTDEBUG_RUN_DIR"])

    def begins(host: str) -> None:
        with contextlib.suppress(ControlError):
            ask(directory, "rendezvous", {"host": host})

    def ends(pids: Sequence[int]) -> None:
        with contextlib.suppress(OSError):
            for pid in pids:
                tell_asked(RunDirectory(directory).exits, pid, signal.SIGTERM, replaced=True)

    on_launcher_store(NodesMeeting(directory).begin, begins)
    with contextlib.suppress(ImportError, AttributeError):
        on_new_world(ends)


def meet_nodes(directory: Path) -> None:
    """In a rank: torchrun's own process does it where that is ours; else the first rank that has a
    store."""
    several = os.environ.get(VARIABLE)
    if several and os.environ.get("DISTDEBUG_LAUNCHER") != "torchrun":
        from ..torch_private.stores import launchers_store, on_rank_store, store_of_environment

        nodes = nodes_of_environment(os.environ) if several == PERHAPS else None
        if nodes is not None and nodes[1] == 1:
            return  # all ranks are on this one
        meeting = NodesMeeting(directory, nodes)
        known = None
        if several != PERHAPS or nodes is not None:
            known = store_of_environment(meeting.is_wanted)
        if known is not None:
            meeting.begin_early(*known, "distdebug")

        shared = launchers_store() if known is not None else None

        def meet(open_store: Callable[[], Any], host: str, prefix: str) -> None:
            if shared is not None:
                # Not in one that the program has made: who does not come to that, or comes late,
                # meets here, and no node would meet those that met there.
                open_store, host = partial(shared[0], open_store), shared[1]
            meeting.begin(open_store, host, prefix)
            meeting.wait()

        on_rank_store(meet)


def nodes_of_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The fewest and the most nodes that the job has, by what its launcher has told a rank:
    torchrun says it, others how many ranks are on this node. None where nobody has said it."""
    names = ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    nodes, here, ranks = (whole_number(environment.get(name), 7) or 0 for name in names)
    if nodes:
        return nodes, nodes
    if not (here and ranks):
        return None
    return (1, 1) if here >= ranks else (2, ranks - here + 1)


class NodesMeeting:
    """The meeting of this process, for the supervisor of this run directory. `nodes`: how many
    there are, where the supervisor may not know it."""

    def __init__(self, directory: Path, nodes: tuple[int, int] | None = None) -> None:
        self._directory = directory
        self._nodes = nodes
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        self._met, self._leaving = threading.Event(), threading.Event()

    def begin(self, open_store: Callable[[], Any], host: str, prefix: str) -> None:
        """Meet the other nodes in this store, in a thread; once for each prefix."""
        with self._lock:
            first = prefix not in self._begun
            self._begun.add(prefix)
        if not first:
            return

        def meet() -> None:
            # The program never notices: a store that has gone, or a supervisor, ends the meeting.
            try:
                with contextlib.suppress(Exception):
                    self._meet(open_store, host, prefix)
            finally:
                self._met.set()

        thread = threading.Thread(target=meet, name="distdebug-meeting", daemon=True)
        thread.start()

        def leave() -> None:
            self._met.wait(MEET_S)  # a program may be over before its nodes have met
            self._leaving.set()
            thread.join(1.0)  # no thread may be in torch's code when the interpreter is finalised

        at_exit(leave)

    def begin_early(self, open_store: Callable[[], Any], host: str, prefix: str) -> None:
        """Meet in a store that may come to be, or not: this rank may never come to where it makes
        its group, and that is what the others want to know. A store that it has itself counts."""

        def come() -> None:
            store = open_store()
            if store is not None:
                self.begin(lambda: store, host, prefix)

        thread = threading.Thread(target=come, name="distdebug-meeting-early", daemon=True)
        thread.start()

        def leave() -> None:
            self._leaving.set()
            thread.join(1.0)

        at_exit(leave)

    def is_wanted(self) -> bool:
        """In a moment: whether nobody has begun to meet by then, and the process goes on."""
        return not self._leaving.wait(LOOK_EVERY_S) and not self._begun

    def wait(self) -> None:
        """Until the nodes have met, or what is the matter with them has taken too long."""
        self._met.wait(MEET_S)

    def _meet(self, open_store: Callable[[], Any], host: str, prefix: str) -> None:
        directory = self._directory
        answer = json.loads(ask(directory, "meet", {"host": host, "nodes": self._nodes}))
        offer, key = answer.get("offer"), answer.get("key")
        if not offer:
            return  # another process of this node does it, or has done it
        store = open_store()
        place = f"{prefix}/head"
        if not answer.get("first"):
            self._comes(store, place, OTHERS_COME_S)
        head = _text(store.compare_set(place, "", offer))
        if head == offer:
            others = json.loads(ask(directory, "lead", {})).get("others", 0)
            self._pass_keys_on(store, prefix, others)
            return
        self._go_to(store, prefix, head, key)

    def join(self, store: Any, host: str, prefix: str, within_s: float) -> None:
        """Go to the head that is in this store, or comes there so soon. Never be the head: that
        is for who has ranks that others wait for, and they have ended here."""
        place = f"{prefix}/head"
        self._comes(store, place, within_s)
        if not store.check([place]):
            return
        request = {"host": host, "nodes": self._nodes}
        key = json.loads(ask(self._directory, "meet", request)).get("key")
        if key:
            self._go_to(store, prefix, _text(store.multi_get([place])[0]), key)

    def _go_to(self, store: Any, prefix: str, head: str, key: str) -> None:
        number = store.add(f"{prefix}/nodes", 1)
        store.set(f"{prefix}/node/{number}", key)
        ask(self._directory, "join", {"offer": head})

    def _comes(self, store: Any, key: str, within_s: float) -> None:
        """Wait until the key is there, or for so long."""
        until_s = time.monotonic() + within_s
        while not store.check([key]) and time.monotonic() < until_s:
            if self._leaving.wait(POLL_EVERY_S):
                break

    def _pass_keys_on(self, store: Any, prefix: str, others: int) -> None:
        """Until this process ends. A node may join late, so it is looked for all the time; all have
        met when so many others have come."""
        passed, began_s = 0, time.monotonic()
        quick_until_s = began_s + QUICK_S
        while not self._leaving.is_set():
            count = min(int(store.add(f"{prefix}/nodes", 0)), MOST_NODES)
            while passed < count:
                # Not `get`, whose waits are on record. The key follows its number within a moment.
                place = f"{prefix}/node/{passed + 1}"
                if not store.check([place]):
                    break
                key = _text(store.multi_get([place])[0])
                passed += 1
                quick_until_s = time.monotonic() + QUICK_S
                with contextlib.suppress(ControlError):
                    ask(self._directory, "admit", {"key": key})
            if passed >= others or (not passed and time.monotonic() - began_s > OTHERS_COME_S):
                self._met.set()
            self._leaving.wait(POLL_EVERY_S if time.monotonic() < quick_until_s else SELDOM_S)


def _text(value: Any) -> str:
    raw = value if isinstance(value, bytes) else str(value).encode()
    return raw[:MOST_KEY_BYTES].decode("utf-8", "replace")


def main() -> None:
    """Meets the other nodes for a supervisor whose ranks have all ended before one of them did.

    A short-lived process of that supervisor's, which itself imports no torch, and so cannot come to
    the store in which the others have met: `RUN_DIR HOST PORT SECONDS`. Torch is imported only
    where somebody listens there by then.
    """
    directory, host, port, within_s = sys.argv[1:]
    if not _is_served(host, int(port), float(within_s)):
        return
    from ..torch_private.stores import connected

    store = connected(host, int(port), CONNECT_S)
    # Those who have a store meet in it before they wait in it.
    NodesMeeting(Path(directory)).join(store, host, "distdebug", within_s=5.0)


def _is_served(host: str, port: int, within_s: float) -> bool:
    """Whether somebody listens there, or does so soon; one try is made in any case."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            return True
        except OSError:
            if time.monotonic() > until_s:
                return False
            time.sleep(LOOK_EVERY_S)
