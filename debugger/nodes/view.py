"""The run of all nodes on one that has a head: kept while somebody looks at it there.

See `record.runs.job_view` for who looks. What somebody asks of the control socket of that run
directory is done by the head, which knows where each rank is.

A node asks for it while somebody looks there (`watch`); then, and only then, it is told what the
head's run directory has, as fast as it takes it in: it says how many messages it has read. What
somebody wants done there (`request`) is done as if he had asked on the head, and answered behind
what has changed by it.

Records of other nodes are copies on the head, and told as such: of each the blocks that have
changed since it was told last, as they stand when they are told. So what waits for a slow
connection does not grow. The head's own records are sampled as any node samples its own. The other
files are told as they grow, or as a whole where they are replaced. What the node has itself is not
told.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.limits import LOOK_EVERY_S, MOST_RANKS
from ..record.reading import copies
from ..record.requests.control import ControlError, ControlServer, ask
from ..record.runs import job_view
from ..record.runs.run_directory import RunDirectory
from ..record.safe_files import open_regular, whole
from ..record.snapshot import Process
from .files import GROWING, PART_BYTES, REPLACED, FileCopies, FileSource, logs_of
from .limits import COMES_S
from .listener import MOST_NODES
from .messages import Act, Message, Patch, Requests, answer, packed, unpacked
from .mirror import Copy, Mirror, Sampler

ACTIONS = ("stacks", "break", "continue", "inject")


class View:
    """The view of all nodes on one node. `asked` comes from the thread of the control socket,
    everything else from the supervisor's loop. `send`: to the head."""

    def __init__(self, directory: RunDirectory, send: Callable[[Message], None]) -> None:
        self._directory = directory
        self._send = send
        self._lock = threading.Lock()
        self._open: RunDirectory | None = None
        self._copies: ViewCopies | None = None
        self._control: ControlServer | None = None
        self._whole = False
        self._taken = self._told = 0
        self._ranks: list[int] = []
        self._looked_s = -1e9
        self._requests = Requests()
        self.why_lost = ""

    def headed(self, host: str) -> None:
        """This node has a head, which is on that host."""
        if not (self._directory.path / job_view.HEAD).exists():
            self._directory.write_json(job_view.HEAD, {"host": host})

    def asked(self, _request: Mapping[str, Any]) -> str:
        """Begins to serve a viewer here. Raises ValueError where there is nothing to be seen."""
        if self.why_lost:
            raise ValueError(self.why_lost)
        if not job_view.is_watched(self._directory.path):
            raise ValueError("nobody holds the lock by which it is seen that somebody looks")
        with self._lock:
            if self._open is None:
                self._begin()
        return "the head is asked for what it has on record"

    def _begin(self) -> None:
        path = self._directory.path / job_view.FOLDER
        shutil.rmtree(path, ignore_errors=True)
        view = RunDirectory.create(base=path / "none", explicit=path)
        try:
            (path / "breakpoints").symlink_to("../breakpoints")  # those that are reached from here
            self._ranks = link_own(self._directory.path, path)
        except OSError as error:
            view.close()
            raise ValueError(f"the run of all nodes cannot be kept here: {error}") from error
        self._copies, self._whole = ViewCopies(path), False
        self._taken = self._told = 0
        self._control = ControlServer(path, dict.fromkeys((*ACTIONS, "stop"), self._forward))
        self._control.start()
        self._open = view
        self._tell_state()
        self._watch(anew=True)

    # -- what somebody here wants done ---------------------------------------------------------

    def _forward(self, request: Mapping[str, Any]) -> str:
        if request.get("action") == "stop":  # every node can do that
            try:
                return ask(self._directory.path, "stop", {})
            except ControlError as error:
                raise ValueError(str(error)) from None
        return self._requests.ask(self._send, request, COMES_S, "the head", lambda: self.why_lost)

    # -- in the supervisor's loop --------------------------------------------------------------

    def take(self, message: Message) -> None:
        """The head has told this. Raises ValueError, TypeError or KeyError for what makes no sense,
        and OSError."""
        with self._lock:
            if self._open is None or self._copies is None:
                return  # it was on the way when the last one went
            self._taken += 1
            if message.kind == "reply":
                self._requests.answered(message.data)
            elif message.data.get("whole") is True:
                self._whole = True
                self._tell_state()
            else:
                self._copies.apply(message.data, message.blob)

    def anew(self) -> None:
        """The connection broke for a moment: what was on its way is lost."""
        with self._lock:
            if self._open is not None:
                self._taken = self._told = 0
                self._watch(anew=True)

    def look(self) -> None:
        """See whether somebody still looks, and keep up with what is new here."""
        with self._lock:
            if self._open is None:
                return
            if self._taken != self._told:
                self._watch()
            now_s = time.monotonic()
            if now_s - self._looked_s < LOOK_EVERY_S:
                return
            self._looked_s = now_s
            if self._ended_with_the_last_one():
                return
            ranks = link_own(self._directory.path, self._open.path)
            if ranks != self._ranks:
                self._ranks = ranks
                self._watch()

    def _watch(self, anew: bool = False) -> None:
        self._told = self._taken
        data: dict[str, Any] = {"on": True, "taken": self._taken, "ranks": self._ranks}
        self._send(Message("watch", {**data, "anew": True} if anew else data))

    def lost(self, why: str) -> None:
        """Notes that there is no head any more."""
        with self._lock:
            self.why_lost = why
            if self._open is not None:
                self._tell_state()

    def _tell_state(self) -> None:
        if self._open is not None:
            lost = {"lost": self.why_lost} if self.why_lost else {}
            self._open.write_json(job_view.STATE, {"whole": self._whole, **lost})

    def _ended_with_the_last_one(self) -> bool:
        """Whether nobody looks any more. Who comes meanwhile waits until nothing is left of what
        others have seen, which he would take for what is there now."""
        with job_view.left_alone(self._directory.path) as nobody:
            if nobody:
                self._send(Message("watch", {"on": False}))
                path = self._open.path if self._open is not None else None
                self._shut()
                if path is not None:
                    shutil.rmtree(path, ignore_errors=True)
        return nobody

    def close(self) -> None:
        """The run is over, and its report in this node's run directory. It stays to be seen if
        somebody looks."""
        with self._lock:
            if self._open is None:
                return
            if self._ended_with_the_last_one():
                return
            with contextlib.suppress(OSError):
                link_own(self._directory.path, self._open.path)
            report = self._directory.report_json.name
            with contextlib.suppress(OSError):
                os.link(self._directory.path / report, self._open.path / report)
            self._shut()

    def _shut(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._open is not None:
            self._open.close()
        self._open = self._copies = self._control = None


class ViewCopies:
    """Makes the run directory `directory` of what the head tells. There every file that it tells of
    is a copy; this node's own files are linked (`link_own`), so that they are read as they are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mirrors: dict[int, Mirror] = {}
        self._files = FileCopies(directory, (*REPLACED, *GROWING))

    def apply(self, data: Mapping[str, Any], blob: bytes) -> None:
        """Raises ValueError, TypeError or KeyError for what makes no sense, and OSError."""
        if "pieces" in data:
            self._files.apply(data, blob)
            return
        node = whole(data["node"])
        if not 0 < node <= MOST_NODES:
            raise ValueError("the head reports a node that is none")
        mirror = self._mirrors.get(node)
        if mirror is None:
            mirror = self._mirrors[node] = Mirror(self._directory / "ranks", node)
        mirror.correct(whole(data["add_ns"]) + steady_clock.offset_ns())
        for number, name, size in data["files"]:
            mirror.announced(int(number), str(name), int(size))
        mirror.apply(unpacked(blob))


def link_own(own: Path, directory: Path) -> list[int]:
    """Have this node's own records, logs and ends stand in `directory`, too, under their names and
    as the same files; the ranks that have logs here. Raises OSError."""
    _link_all(own / "ranks", directory / "ranks")
    _link_all(own / "logs", directory / "logs")
    _link_all(own / "stacks", directory / "stacks", ".txt")
    for name in ("exits.jsonl", "host.jsonl", "run.json"):
        _link(own / name, directory / name)
    return sorted(set(logs_of(own).values()))


def _link_all(folder: Path, into: Path, suffix: str = "") -> None:
    ours = {
        name
        for name in os.listdir(folder)
        if not name.startswith(".") and name.endswith(suffix) and f"stacks/{name}" not in REPLACED
    }
    for name in ours:
        _link(folder / name, into / name)
    if folder.name == "ranks":  # a record that has got its rank's name
        for name in set(os.listdir(into)) - ours:
            if not copies.node_of(name) and not name.startswith("."):
                (into / name).unlink()


def _link(path: Path, into: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        here = path.stat().st_ino
        try:
            if into.stat().st_ino == here:
                return
        except FileNotFoundError:
            pass
        temporary = into.with_name(f".{into.name}.link")
        temporary.unlink(missing_ok=True)
        os.link(path, temporary)
        os.replace(temporary, into)


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
