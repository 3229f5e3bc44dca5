"""Messages between two ranks: send and receive with tags, from one rank or any.

They do not wait for the group's collectives: messages overtake collectives and each other, except
between the same two ranks with the same tag.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..base import call_text
from ..engine.base import MessageRequest
from ..engine.work import CallWork
from . import arguments
from .collectives import Issuing


class PointToPoint(Issuing):
    """Mixed into the process group."""

    def send(self, tensors: Any, dst: Any, tag: Any = 0) -> Any:
        """Send a tensor to group rank `dst`. The handle is done when the tensor may be changed."""
        caller = self._caller("send")
        data = arguments.only_one(caller, "tensors", tensors)
        flat = data
        if not self._is_plain(data):
            arguments.tensor(caller, "tensor", data)
            staging = self._engine.staging()
            flat = staging.take(data, True, False)
            staging.load()
        dst = arguments.peer(caller, "dst", dst)
        tag = arguments.tag(caller, tag)
        kind = call_text.tensor(data.dtype, data.numel())
        text = call_text.message("send", self._ranks[dst], tag, kind)
        tensors = [data] if flat is data else [data, flat]
        message = MessageRequest(text, kind, self._timeout_s, flat, dst, tag, tensors)
        return self._post("send", self._engine.send, message)

    def recv(self, tensors: Any, src: Any, tag: Any = 0) -> Any:
        """Receive the next message of group rank `src` with this tag."""
        caller = self._caller("recv")
        data = arguments.only_one(caller, "tensors", tensors)
        src = arguments.peer(caller, "src", src)
        return self._receive(caller, data, src, tag)

    def recv_anysource(self, tensors: Any, tag: Any = 0) -> Any:
        """Receive the next message with this tag, whoever sends it; see the handle's
        `source_rank`."""
        caller = self._caller("recv")
        data = arguments.only_one(caller, "tensors", tensors)
        return self._receive(caller, data, None, tag)

    def recvAnysource(self, tensors: Any, tag: Any = 0) -> Any:
        """Called by this name from torch's C++ code, since 2.14."""
        return self.recv_anysource(tensors, tag)

    def _receive(self, caller: Any, data: Any, src: int | None, tag: Any) -> Any:
        tag = arguments.tag(caller, tag)
        flat, arrived = data, None
        if not self._is_plain(data):
            arguments.tensor(caller, "tensor", data, written=True)
            staging = self._engine.staging()
            flat, arrived = staging.take(data, False, True), staging.store
        source = None if src is None else self._ranks[src]
        kind = call_text.tensor(data.dtype, data.numel())
        text = call_text.message("recv", source, tag, kind)
        tensors = [data] if flat is data else [data, flat]
        message = MessageRequest(text, kind, self._timeout_s, flat, src, tag, tensors, arrived)
        return self._post("recv_", self._engine.receive, message)

    def _post(
        self, operator: str, start: Callable[[MessageRequest], CallWork], message: MessageRequest
    ) -> CallWork:
        if not self._profiled():
            work = start(message)
        else:
            work = self._recorded(operator, message.text, partial(start, message))
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work
