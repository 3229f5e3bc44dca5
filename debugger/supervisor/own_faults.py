"""The failures in the supervisor itself: each part is reported once, and the rest of it goes on.

The observer never breaks the program. A rule that raises, a sampler that meets a /proc it does not
know, a record with nonsense in it: that part is lost, its traceback is kept in the run directory,
and the report says that it was.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from typing import Any

from ..record.runs.run_directory import RunDirectory
from ..record.safe_files import append
from ..record.safe_text import clean

FILE = "own-faults.txt"
_RAISE = "DISTDEBUG_RAISE_OWN_FAULTS"
"""Set in our own tests, where a fault of ours must not be survived in silence."""
_MOST_PARTS = 64


class OwnFaults:
    """The faults of one run. `directory` may be set later; what came before is then lost from the
    file, never from the report."""

    def __init__(self) -> None:
        self.directory: RunDirectory | None = None
        self._why: dict[str, str] = {}

    def note(self, part: str, error: Exception) -> None:
        """Notes that this part of the watching has failed with this error. Kept once a part."""
        if os.environ.get(_RAISE):
            raise error
        if part in self._why or len(self._why) >= _MOST_PARTS:
            return
        try:
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
        except Exception:  # an exception may be unable to say what it is
            text = f"{type(error).__name__}: it cannot be printed"
        self.say(part, clean(text, 300))
        if self.directory is not None:
            text = "".join(traceback.format_exception(error))
            with contextlib.suppress(OSError):
                append(
                    self.directory.path / FILE,
                    f"{part} failed:\n{text}\n".encode(errors="backslashreplace"),
                )

    def say(self, part: str, why: str) -> None:
        """Notes that a part is off for a reason that is no fault of ours, such as a disk that is
        full."""
        self._why.setdefault(part, why)

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Notes an exception that is raised inside, and lets it go no further."""
        try:
            yield
        except Exception as error:
            self.note(part, error)

    @property
    def off(self) -> list[dict[str, Any]]:
        """The parts that failed at least once, as report.json has them."""
        return [{"part": part, "why": why} for part, why in self._why.items()]
