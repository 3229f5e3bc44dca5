"""The pace at which nodes tell the head what they see: told to all of them as they become more, and
asked for in between."""

from __future__ import annotations

import sys

from ...node_links.head import Listener
from ...node_links.limits import SWITCH_S
from ...node_links.messages import Message
from ...node_links.pace import Pace, pace_for


class Pacing:
    """The pacing of all nodes of one job."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._pace = Pace()

    def joined(self, newcomer: int, nodes: int) -> None:
        """Takes a node that has joined: there are so many with it. All are told when that makes
        them tell less often; else this one is, which may have joined after that."""
        pace = pace_for(nodes)
        if pace != self._pace:
            self._pace = pace
            # Beside a look that takes long the link's thread gets its turn this soon: each of its
            # calls of ZeroMQ waits for one.
            sys.setswitchinterval(SWITCH_S)
            self._listener.broadcast(Message("pace", pace.told))
        elif pace != Pace():
            self._listener.send(newcomer, Message("pace", pace.told))

    def ask(self) -> bool:
        """Have all nodes tell how far their ranks are that go on calling. False where they tell it
        all the time."""
        if self._pace == Pace():
            return False
        self._listener.broadcast(Message("tell"))
        return True
