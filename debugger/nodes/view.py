"""The run of all nodes on one that has a head: kept while somebody looks at it there.

See `record.runs.job_view` for who looks, and `views` for the head's side. What somebody asks of the
control socket of that run directory is done by the head, which knows where each rank is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..record.limits import LOOK_EVERY_S
from ..record.requests.control import ControlError, ControlServer, ask
from ..record.runs import job_view
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from .files import ViewCopies, link_own
from .limits import REPORT_S
from .messages import Message

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
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[bool, str]] = {}
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
        number = next(self._numbers)
        self._send(Message("request", {"number": number, "request": dict(request)}))
        until_s = time.monotonic() + REPORT_S
        while number not in self._answers:
            if self.why_lost:
                raise ValueError(self.why_lost)
            if time.monotonic() > until_s:
                raise ValueError(f"the head has not answered within {REPORT_S:.0f} s")
            time.sleep(0.02)
        ok, text = self._answers.pop(number)
        if not ok:
            raise ValueError(text)
        return text

    # -- in the supervisor's loop --------------------------------------------------------------

    def take(self, message: Message) -> None:
        """The head has told this. Raises ValueError, TypeError or KeyError for what makes no sense,
        and OSError."""
        with self._lock:
            if self._open is None or self._copies is None:
                return  # it was on the way when the last one went
            self._taken += 1
            if message.kind == "reply":
                number, ok, text = (message.data[name] for name in ("number", "ok", "text"))
                self._answers[int(number)] = ok is True, clean(str(text), 4000)
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
