"""The run of all nodes on one that has a head: kept while somebody looks at it there.

See `record.runs.job_view` for who looks, and `views` for the head's side. What somebody asks of the
control socket of that run directory is done by the head, which knows where each rank is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..record import steady_clock
from ..record.limits import LOOK_EVERY_S
from ..record.reading import copies
from ..record.requests.control import ControlError, ControlServer, ask
from ..record.runs import job_view
from ..record.runs.run_directory import RunDirectory
from ..record.safe_files import whole
from .files import GROWING, REPLACED, FileCopies, logs_of
from .limits import COMES_S
from .listener import MOST_NODES
from .messages import Message, Requests, unpacked
from .mirror import Mirror

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
