"""How soon a watch looks again: the dearer a look is, the later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from debugger.diagnosis.findings import Finding
from debugger.record.snapshot import Snapshot
from debugger.supervisor import watch
from debugger.supervisor.watch import Policy, Watch


class Reader:
    """Nobody is there; each look takes `cost_s` of the processor."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s, self.used_s = cost_s, 0.0

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        del finished
        self.used_s += self.cost_s
        return ()

    @property
    def change_mark(self) -> tuple[object, ...]:
        return (self.used_s,)

    def starting(self) -> bool:
        return False

    def settled(self, since_s: float, about: Finding) -> bool:
        del since_s, about
        return True


@pytest.mark.parametrize(
    ("cost_s", "pause_s"), [(0.0, 0.1), (0.04, 0.1), (0.5, 1.0)], ids=["none", "small", "large"]
)
def test_the_pause_after_a_look(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, pause_s: float
) -> None:
    reader = Reader(cost_s)
    monkeypatch.setattr(watch.time, "thread_time", lambda: reader.used_s)
    made = Watch(reader, Policy())
    assert made.pause_s == watch.LOOK_EVERY_S
    made.look()
    assert made.pause_s == pytest.approx(pause_s)
