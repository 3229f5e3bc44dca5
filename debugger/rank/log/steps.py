"""`debugger.step(n)`: the program says which step of its training begins.

Nothing is imported for it but this file, and without a plan of faults nothing but a number is kept.
"""

from __future__ import annotations

from collections.abc import Callable

current: int | None = None
"""The step that the program has named last; None before the first."""
_observer: Callable[[int], None] | None = None


def step(number: int) -> None:
    """Step `number` begins now, in all threads of this process."""
    global current
    current = number
    if _observer is not None:
        _observer(number)


def observe(observer: Callable[[int], None]) -> None:
    """`observer(number)` is called, on the program's own thread, when a step begins."""
    global _observer
    _observer = observer
