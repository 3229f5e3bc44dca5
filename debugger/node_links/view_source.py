"""The run directory as a head tells it to a node on which somebody looks at the run of all nodes.

Records of other nodes are copies here, and told as such: of each the blocks that have changed since
it was told last, as they stand when they are told. So what waits for a slow connection does not
grow. The head's own records are sampled as any node samples its own. The other files are told as
they grow, or as a whole where they are replaced. What the node has itself is not told.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.reading import copies
from ..record.safe_files import open_regular
from ..record.snapshot import Process
from .logs import NAME as LOG
from .messages import Message
from .mirror import Copy, Mirror
from .patches import Patch, packed
from .sampler import Sampler
from .view_files import GROWING, PART_BYTES, REPLACED, SentPart

BLOCK = 512
"""Bytes: what is told of a copy when one of them has changed."""


class ViewSource:
    """The source for one node, the `own`-th. `directory` is the head's run directory, `mirrors` its
    copies of other nodes' records; `ranks_there` are those of the node."""

    def __init__(self, directory: Path, mirrors: Mapping[int, Mirror], own: int) -> None:
        self._directory = directory
        self._mirrors = mirrors
        self._own = own
        self.ranks_there: Collection[int] = ()
        self._dirty: dict[tuple[int, int], set[int] | None] = {}
        self._named: dict[tuple[int, int], str] = {}
        self._sampler = Sampler(directory / "ranks", lambda _pid, _ticks: Process(alive=True))
        self._files: dict[str, SentPart] = {}
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

    def _can_be_told(self, key: tuple[int, int]) -> bool:
        copy = self._mirrors[key[0]].files.get(key[1])
        return copy is not None and copy.begun

    def copies(self) -> Message | None:
        """The next part of what has changed in them: of one node all that fits. None where that is
        nothing."""
        node, size, patches, files = 0, 0, list[Patch](), list[list[Any]]()
        for key in [one for one in self._dirty if self._can_be_told(one)]:
            if node not in (0, key[0]) or size >= PART_BYTES:
                break
            node, number = key
            blocks = self._dirty.pop(key)
            copy = self._mirrors[node].files[number]
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
        """The next part of what is new in them; None where that is nothing."""
        pieces: list[list[Any]] = []
        blob = b""
        for name in self._names():
            if len(blob) >= PART_BYTES:
                break
            told = self._files.setdefault(name, SentPart())
            piece = told.next(self._directory / name, name, PART_BYTES - len(blob))
            if piece is not None:
                at, data, total = piece
                pieces.append([name, at, len(data), total])
                blob += data
        if not pieces:
            return None
        # Times of the wall clock here, which `shift_ns` and the node's own clock make the node's.
        shift_ns = -self._mirrors[self._own].offset_ns
        return Message("view", {"pieces": pieces, "shift_ns": shift_ns}, blob)

    def _names(self) -> Iterator[str]:
        yield from REPLACED
        yield from GROWING
        try:
            logs = sorted(os.listdir(self._directory / "logs"))
        except OSError:
            return
        for name in logs:
            if LOG.fullmatch(name) and int(name.partition(".")[0]) not in self.ranks_there:
                yield f"logs/{name}"


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
