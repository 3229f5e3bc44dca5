"""The backend "plan": in place of whatever backend the program names, for every device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from ..groups.process_group import CoreGroup, Origin
from .engine import PlanEngine
from .exchange import Exchange
from .work import PlannedCall, PlannedLife

NAME = "plan"


class PlannedGroup(CoreGroup):
    """A group whose calls are planned. It answers by the name of the backend that it stands for."""

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier: no rank is late in a plan."""
        del timeout, wait_all_ranks
        number, self._monitored = self._monitored, self._monitored + 1
        slot = f"{self._origin.token}!{number}"
        assert isinstance(self._engine, PlanEngine)
        self._engine.meet(slot, PlannedCall(slot, "monitored_barrier()", True))


@dataclass
class PlanBackend:
    """See `distcore.backend.Backend`. `exchange`: where the values of small tensors come from."""

    exchange: Exchange
    name: str = NAME
    devices: tuple[str, ...] = ("cpu", "cuda", "meta")

    def __post_init__(self) -> None:
        self._made: dict[tuple[str, tuple[int, ...]], int] = {}
        self._of_size: dict[tuple[str, int], int] = {}

    def unavailable(self) -> str | None:
        return None

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """A group, at once: nobody is waited for. Groups of the same name and ranks that are made
        one after the other are told apart by their number."""
        del group_class
        world, size = self.exchange.world(origin.store), len(origin.ranks)
        key = (f"{world}/{origin.name}", origin.ranks)
        number = self._made[key] = self._made.get(key, 0) + 1
        ranks = ",".join(map(str, origin.ranks))
        token = f"{key[0]}/{number}/{ranks}"
        before = self._of_size[world, size] = self._of_size.get((world, size), 0) + 1
        role = f"{world}/{size} ranks/{before}"
        life = PlannedLife(origin.name, origin.ranks, origin.rank, token, role)
        engine = PlanEngine(life, self.exchange)
        return PlannedGroup(replace(origin, token=token), engine, self.create)
