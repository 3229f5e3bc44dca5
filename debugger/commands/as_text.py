"""A report as text for this terminal: its width, and its colours where it has them."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..reports.stored import Document


def as_text(report: Document) -> str:
    """The report as `stdout` can show it."""
    from ..reports import text
    from ..supervisor.output import colour_wanted

    width = text.WIDTH
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((text.WIDTH, 24)).columns
    return text.render(report, colour_wanted(sys.stdout), width)
