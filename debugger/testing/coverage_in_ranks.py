"""Coverage in ranks: each measures as pytest itself does, into a data file of its own.

pytest-cov combines those files with its own; after `coverage run -m pytest` that is done by
`coverage combine --append`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

PROCESS_START = "COVERAGE_PROCESS_START"


def asked() -> dict[str, Any] | None:
    """Returns how this process is measured, for its ranks; None where it is not."""
    module = sys.modules.get("coverage")
    current = getattr(module, "Coverage", None) and module.Coverage.current()  # type: ignore[union-attr]
    if current:
        config = current.config
        return {
            "config_file": config.config_file or False,
            "data_file": os.path.abspath(config.data_file),
            "source": list(config.source or ()) or None,
            "include": list(config.run_include or ()) or None,
            "omit": list(config.run_omit or ()) or None,
            "branch": bool(config.branch),
        }
    if os.environ.get(PROCESS_START):
        return {"config_file": os.environ[PROCESS_START]}
    return None


def begin(how: dict[str, Any] | None) -> Any:
    """Measure from now on; what `end` needs."""
    if how is None:
        return None
    import coverage

    measured = coverage.Coverage(data_suffix=True, messages=False, **how)
    measured.start()
    return measured


def end(measured: Any) -> None:
    """Write the data file."""
    if measured is not None:
        measured.stop()
        measured.save()
