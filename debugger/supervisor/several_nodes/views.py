"""The head's side of who looks at the run of all nodes from another one.

A node asks for it while somebody looks there (`watch`); then, and only then, it is told what the
head's run directory has (`node_links.view_source`), as fast as it takes it in: it says how many
messages it has read. What somebody wants done there (`request`) is done as if he had asked on the
head, and answered behind what has changed by it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...node_links.limits import AT_ONCE_S
from ...node_links.messages import Message
from ...node_links.mirror import Mirror
from ...node_links.patches import Patch
from ...node_links.view_source import ViewSource
from ...record.limits import LOOK_EVERY_S, MOST_RANKS

REST = 4
"""The ratio of rest to work: a look for news takes a fifth of the time at most."""
MOST_AHEAD = 8
"""The most messages of up to `PART_BYTES` that may be on the way to a node."""

Reply = tuple[int, bool, str]


@dataclass(slots=True)
class _Viewer:
    """A node on which somebody looks. `done`: what was done that somebody there had asked for, put
    by threads; `replies`: of that, what was done before the last look; `told_all`: it has had all
    that there was once."""

    source: ViewSource
    sent: int = 0
    taken: int = 0
    looked_s: float = -1e9
    rest_s: float = 0.0
    told_all: bool = False
    done: deque[Reply] = field(default_factory=deque)
    replies: list[Reply] = field(default_factory=list)


class Views:
    """The viewers of one head. `send`: to the node of that number. `mirrors`: of all nodes that
    have joined."""

    def __init__(self, directory: Path, send: Callable[[int, Message], None]) -> None:
        self._directory = directory
        self._send = send
        self.mirrors: dict[int, Mirror] = {}
        self._viewers: dict[int, _Viewer] = {}
        self.on_request: Callable[[Mapping[str, Any]], str] = lambda _request: ""
        """Does what the control socket here would be asked for. Raises ValueError."""

    def take(self, node: int, message: Message) -> None:
        """Takes what the node has told of a viewer there. Raises ValueError, TypeError and KeyError
        for what makes no sense."""
        if message.kind == "watch":
            self._watched(node, message.data)
        else:
            self._requested(node, message.data)

    def _watched(self, node: int, data: Mapping[str, Any]) -> None:
        """Begins, or ends, to serve a viewer on that node."""
        if data["on"] is not True:
            self._viewers.pop(node, None)
            return
        viewer = self._viewers.get(node)
        if viewer is None or data.get("anew") is True:
            source = ViewSource(self._directory, self.mirrors, node)
            viewer = self._viewers[node] = _Viewer(source)
        ranks = data["ranks"]
        viewer.taken = int(data["taken"])
        viewer.source.ranks_there = frozenset(map(int, ranks[:MOST_RANKS]))

    def changed(self, node: int, patches: Iterable[Patch]) -> None:
        """Hands on what the node has told of its records."""
        for viewer in self._viewers.values():
            viewer.source.changed(node, patches)

    def _requested(self, node: int, data: Mapping[str, Any]) -> None:
        """Does what a viewer there asks for, in a thread of its own, since it may take a while."""
        number, request = int(data["number"]), data["request"]
        viewer = self._viewers.get(node)
        if viewer is None or not isinstance(request, Mapping):
            raise ValueError("nobody looks from there")

        def act() -> None:
            try:
                viewer.done.append((number, True, self.on_request(request)))
            except ValueError as refusal:
                viewer.done.append((number, False, str(refusal)))
            except Exception as error:  # the node waits for an answer
                viewer.done.append((number, False, f"{type(error).__name__}: {error}"))

        threading.Thread(target=act, name="distdebug-request", daemon=True).start()

    def gone(self, node: int) -> None:
        """Forgets the viewer of a node that is gone."""
        self._viewers.pop(node, None)

    def look(self) -> None:
        """Tell what is new."""
        for node, viewer in list(self._viewers.items()):
            began_s = time.monotonic()
            if began_s - viewer.looked_s >= max(LOOK_EVERY_S, viewer.rest_s):
                self._tell(node, viewer, began_s)

    def _tell(self, node: int, viewer: _Viewer, began_s: float) -> None:
        done = [viewer.done.popleft() for _ in range(len(viewer.done))]
        viewer.replies += done
        until_s = began_s + AT_ONCE_S
        if self._tell_all(node, viewer, viewer.source.other_files, until_s):
            for number, ok, text in viewer.replies:  # behind what has changed by it
                data = {"number": number, "ok": ok, "text": text}
                self._send_to(node, viewer, Message("reply", data))
            viewer.replies.clear()
        if not _is_ahead(viewer):
            for message in viewer.source.own_records():
                self._send_to(node, viewer, message)
        told = self._tell_all(node, viewer, viewer.source.copies, until_s)
        if told and not viewer.told_all:
            viewer.told_all = True
            self._send_to(node, viewer, Message("view", {"whole": True}))
        viewer.looked_s = time.monotonic()
        viewer.rest_s = REST * (viewer.looked_s - began_s)

    def _tell_all(
        self, node: int, viewer: _Viewer, next_: Callable[[], Message | None], until_s: float
    ) -> bool:
        """Whether there was time and room for all of it."""
        while not _is_ahead(viewer) and time.monotonic() < until_s:
            message = next_()
            if message is None:
                return True
            self._send_to(node, viewer, message)
        return False

    def _send_to(self, node: int, viewer: _Viewer, message: Message) -> None:
        viewer.sent += 1
        self._send(node, message)


def _is_ahead(viewer: _Viewer) -> bool:
    return viewer.sent - viewer.taken >= MOST_AHEAD
