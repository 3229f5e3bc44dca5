"""The group that torch gets: torch's ProcessGroup, in Python, on one of our engines.

The calls themselves are in `collectives`, `coalesced` and `point_to_point`; here is the rest of
what torch asks of a group: names, devices, time limit, store, split, end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup

from .. import torch_private
from ..engine.base import Engine
from ..engine.work import CallWork
from .arguments import Caller
from .coalesced import Coalesced
from .monitored_barrier import monitored_barrier
from .point_to_point import PointToPoint


@dataclass
class GroupOptions:
    """A backend's options, as torch calls them; here only what torch itself reads."""

    backend: str
    _timeout: timedelta
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_name: str = ""


@dataclass(frozen=True)
class Origin:
    """The origin of a group: all that it takes to make another like it."""

    backend: str
    store: Any
    ranks: tuple[int, ...]
    rank: int
    name: str
    timeout: timedelta
    token: str = ""
    """Different for groups of the same name that were made one after the other in one store."""


MakeGroup = Callable[[Origin, "type[CoreGroup]"], "CoreGroup"]
"""The `create` of a backend."""


# torch's stubs list the overloads of each method one by one; ours take them all in one signature.
class CoreGroup(Coalesced, PointToPoint, ProcessGroup):  # type: ignore[misc]
    """A group of ranks on one of distcore's backends. Made by the backend's `create`."""

    supports_splitting = False  # in NCCL's sense: `torch.distributed.split_group` asks
    supports_coalescing = False
    supports_shrinking = False
    supports_time_estimate = False
    _supports_time_estimate = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    supports_completion_hooks = False

    _origin: Origin

    def __init__(self, origin: Origin, engine: Engine, make: MakeGroup) -> None:
        # Of torch's constructors a subclass in Python has only this one.
        ProcessGroup.__init__(self, origin.rank, len(origin.ranks))  # type: ignore[call-arg]
        self._origin = origin
        self._engine = engine
        self._session = engine.session
        self._is_plain = engine.reach.is_plain
        self._make = make
        self._ranks = origin.ranks
        self._rank = origin.rank
        self._size = len(origin.ranks)
        self._timeout_s = origin.timeout.total_seconds()
        self._coalescing: list[CallWork] | None = None
        self._callers: dict[str, Caller] = {}
        self._group_name = origin.name
        self._group_desc = "undefined"
        self._splits = 0
        self._monitored = 0

    def __repr__(self) -> str:
        session = self._session
        state = "failed" if session.failure is not None else f"{session.calls} collectives"
        return (
            f"<{type(self).__name__} {self._group_name!r} ({self._origin.backend}, "
            f"rank {self._rank} of {self._size}, {state})>"
        )

    # -- names: torch keeps them in its C++ backends, of which a Python group has none; it finds
    # the camel-case ones from C++ ---------------------------------------------------------------

    def getBackendName(self) -> str:
        return self._origin.backend

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: Any) -> None:
        self._group_name = str(name)

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    # -- what torch asks of a group's backend, which is the group itself ---------------------------

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(one) for one in self._engine.reach.devices]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type not in self._engine.reach:
            raise RuntimeError(
                f"group {self._group_name!r}: backend {self._origin.backend!r} has no transport "
                f"for device type {device.type}"
            )
        return self

    def get_backend(self, device: torch.device) -> Any:
        """Returns the backend, by the public name since torch 2.14."""
        return self._get_backend(device)

    @property
    def options(self) -> GroupOptions:
        return GroupOptions(
            self._origin.backend,
            timedelta(seconds=self._timeout_s),
            list(self._ranks),
            self._group_name,
        )

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        return False

    def eager_connect_single_device(self, _device: Any = None) -> None:
        """Nothing to do: connections are made by the first call."""

    def get_error(self) -> Any:
        failure = self._session.failure
        if failure is None:
            return torch_private.error_type("SUCCESS")
        late = isinstance(failure, TimeoutError)
        return torch_private.error_type("TIMEOUT" if late else "COMM_ERROR")

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit of calls from now on that have no time limit of their own."""
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout: expected a timedelta, given {type(timeout).__name__}")
        if timeout <= timedelta(0):
            raise ValueError(
                f"timeout: expected more than 0 s, given {timeout.total_seconds():g} s"
            )
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def get_group_store(self) -> Any:
        return self._origin.store

    def _get_sequence_number_for_group(self) -> int:
        return self._session.calls

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: all ranks count from 0."""

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        self._session.drain(self._timeout_s)

    def _enable_collectives_timing(self) -> None:
        """Nothing to do: torch.profiler has the times."""

    # -- the rest ----------------------------------------------------------------------------------

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the first rank that did not come in time, or all of them.

        Goes through the store; the group can be used afterwards. Raises BarrierFailed, which has
        all of them in any case.
        """
        number, self._monitored = self._monitored, self._monitored + 1
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        store = torch_private.dist.PrefixStore(f"distcore/{self._origin.token}", self._origin.store)
        monitored_barrier(store, self._ranks, self._rank, number, limit_s, wait_all_ranks)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002 - torch's signature; our backends have no options
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002
    ) -> CoreGroup | None:
        """A group of some of this one's ranks (in its own numbering); None on the others.

        Every rank of this group calls it. Raises ValueError for ranks that are not in it.
        """
        ranks = self._ranks_to_split(new_ranks)
        number, self._splits = self._splits, self._splits + 1
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._group_name}:split:{number}:{'_'.join(map(str, ranks))}"
        group = self._make(
            Origin(
                self._origin.backend,
                torch_private.dist.PrefixStore(f"{name}/", self._origin.store),
                tuple(self._ranks[rank] for rank in ranks),
                ranks.index(self._rank),
                name,
                timeout or timedelta(seconds=self._timeout_s),
            ),
            CoreGroup,
        )
        group._set_group_desc(group_desc or f"{self._group_desc}:split:{number}")
        return group

    def _ranks_to_split(self, new_ranks: Sequence[int]) -> list[int]:
        caller = self._caller("split_group")
        ranks = list(new_ranks)
        if not ranks or len(set(ranks)) != len(ranks):
            caller.wrong("new_ranks", "ranks of this group, each once", ranks)
        for rank in ranks:
            if not 0 <= rank < self._size:
                caller.wrong("new_ranks", f"ranks from 0 to {self._size - 1}", ranks)
        return ranks

    def abort(self) -> None:
        """End all calls of this group, on every rank; it cannot be used any more."""
        self._session.abort(f"rank {self._ranks[self._rank]} called abort()")

    def shutdown(self) -> None:
        """Leave the group. Calls that nobody waited for may finish first."""
        self._session.close()
