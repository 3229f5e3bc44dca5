"""The head's side of who looks at the run of all nodes from another one (`view` is the other).

A node asks for it while somebody looks there (`watch`); then, and only then, it is told what the
head's run directory has, as fast as it takes it in: it says how many messages it has read. What
somebody wants done there (`request`) is done as if he had asked on the head, and answered behind
what has changed by it.

Records of other nodes are copies here, and told as such: of each the blocks that have changed since
it was told last, as they stand when they are told. So what waits for a slow connection does not
grow. The head's own records are sampled as any node samples its own. The other files are told as
they grow, or as a whole where they are replaced. What the node has itself is not told.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.limits import LOOK_EVERY_S, MOST_RANKS
from ..record.reading import copies
from ..record.safe_files import open_regular
from ..record.snapshot import Process
from .files import GROWING, PART_BYTES, REPLACED, FileSource
from .messages import Act, Message, Patch, answer, packed
from .mirror import Copy, Mirror
from .sampler import Sampler

BLOCK = 512
"""Bytes: what is told of a copy when one of them has changed."""


class ViewSource:
    """The source for one node, the `own`-th. `directory` is the head's run directory, `mirrors` its
    copies of other nodes' records."""

    def __init__(self, directory: Path, mirrors: Mapping[int, Mirror], own: int) -> None:
        self._directory = directory
        self._mirrors = mirrors
        self._own = own
        self._dirty: dict[tuple[int, int], set[int] | None] = {}
        self._named: dict[tuple[int, int], str] = {}
        self._sampler = Sampler(directory / "ranks", lambda _pid, _ticks: Process(alive=True))
        self.files = FileSource(directory, (*REPLACED, *GROWING))
        for node, mirror in mirrors.items():
            if node != own:
                self._dirty |= dict.fromkeys((node, number) for number in mirror.files)

    def changed(self, node: int, patches: Iterable[Patch]) -> None:
        """This was told of that node's files."""
        if node == self._own:
            return
        for one in patches:
            key = (node, one.file)
            if key not in self._named:
                self._dirty[key] = None
                continue
            blocks = self._dirty.setdefault(key, set())
            if blocks is not None:
                end = one.offset + len(one.data)
                blocks.update(range(one.offset // BLOCK, -(-end // BLOCK)))

    def own_records(self) -> list[Message]:
        """Returns what is new in the records of the head itself. The node takes the head for the
        one with the number that it has itself here, and itself for this node."""
        told = self._sampler.digests()
        return [self._view(self._own, one.data.get("files", ()), one.blob) for one in told]

    # -- copies of other nodes' records --------------------------------------------------------

    def copies(self) -> Message | None:
        """The next part of what has changed in them: of one node all that fits. None where that is
        nothing."""
        node, size, patches, files = 0, 0, list[Patch](), list[list[Any]]()
        for key in list(self._dirty):
            copy = self._mirrors[key[0]].files.get(key[1])
            if copy is None or not copy.begun:
                continue
            if node not in (0, key[0]) or size >= PART_BYTES:
                break
            node, number = key
            blocks = self._dirty.pop(key)
            if self._named.get(key) != copy.name:
                self._named[key] = copy.name
                files.append([number, copies.own_name(copy.name), copy.size])
            for at, data in self._read(copy, blocks):
                patches.append(Patch(number, at, data))
                size += len(data)
        return self._view(node, files, packed(patches)) if node else None

    def _read(self, copy: Copy, blocks: set[int] | None) -> Iterator[tuple[int, bytes]]:
        try:
            descriptor = open_regular(self._directory / "ranks" / copy.name)
        except OSError:
            return
        try:
            for start, end in _data(descriptor) if blocks is None else _joined(blocks):
                yield start, os.pread(descriptor, min(end, copy.size) - start, start)
        except OSError:
            return  # what cannot be read cannot be told
        finally:
            os.close(descriptor)

    def _view(self, node: int, files: Iterable[Any], blob: bytes) -> Message:
        """`add_ns` to a time in these files gives the monotonic clock of the node that looks."""
        theirs_ns = self._mirrors[self._own].offset_ns
        offset_ns = steady_clock.offset_ns() if node == self._own else self._mirrors[node].offset_ns
        return Message(
            "view", {"node": node, "add_ns": offset_ns - theirs_ns, "files": list(files)}, blob
        )

    # -- everything else -----------------------------------------------------------------------

    def other_files(self) -> Message | None:
        """The next part of what is new in them; None where that is nothing. Times in them are of
        the wall clock here, which `shift_ns` and the node's own clock make the node's."""
        return self.files.next("view", shift_ns=-self._mirrors[self._own].offset_ns)


def _joined(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields where stretches of blocks begin and end, in bytes."""
    start = end = -1
    for block in sorted(blocks):
        if block * BLOCK != end:
            if end >= 0:
                yield start, end
            start = block * BLOCK
        end = (block + 1) * BLOCK
    if end >= 0:
        yield start, end


def _data(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yields where the file has something: most of a copy is a hole."""
    at = 0
    while True:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError:
            return  # nothing follows
        yield at, end
        at = end


REST = 4
"""The ratio of rest to work: a look for news takes a fifth of the time at most."""
MOST_AHEAD = 8
"""The most messages of up to `PART_BYTES` that may be on the way to a node."""


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
    done: deque[Message] = field(default_factory=deque)
    replies: list[Message] = field(default_factory=list)


class Views:
    """The viewers of one head. `send`: to the node of that number. `mirrors`: of all nodes that
    have joined."""

    def __init__(self, directory: Path, send: Callable[[int, Message], None]) -> None:
        self._directory = directory
        self._send = send
        self.mirrors: dict[int, Mirror] = {}
        self._viewers: dict[int, _Viewer] = {}
        self.on_request: Act = lambda _request: ""
        """Does what the control socket here would be asked for."""

    def take(self, node: int, message: Message) -> None:
        """Takes what the node has told of a viewer there. Raises ValueError, TypeError and KeyError
        for what makes no sense."""
        if message.kind == "watch":
            self._watched(node, message.data)
        else:
            answer(self.on_request, message.data, self._viewers[node].done.append)

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
        viewer.source.files.without = frozenset(map(int, ranks[:MOST_RANKS]))

    def changed(self, node: int, patches: Iterable[Patch]) -> None:
        """Hands on what the node has told of its records."""
        for viewer in self._viewers.values():
            viewer.source.changed(node, patches)

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
        until_s = began_s + 0.1  # so long at most the supervisor's loop is held up by it
        if self._tell_all(node, viewer, viewer.source.other_files, until_s):
            for reply in viewer.replies:  # behind what has changed by it
                self._send_to(node, viewer, reply)
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
