"""`distdebug.step(n)`: the program says which step of its training begins.

Nothing is imported for it but this file, and without a plan of faults nothing but a number is kept.
"""

from __future__ import annotations

from collections.abc import Callable


class NamedSteps:
    """The steps of this process's program, which may name them before the layer is there."""

    def __init__(self) -> None:
        self.current: int | None = None
        """The step that the program has named last; None before the first."""
        self.observer: Callable[[int], None] | None = None
        """Called on the program's own thread when a step begins."""


of_program = NamedSteps()


def step(number: int) -> None:
    """Step `number` begins now, in all threads of this process."""
    of_program.current = number
    if of_program.observer is not None:
        of_program.observer(number)
