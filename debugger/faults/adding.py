"""Adds faults to the plan of a run directory; several ranks may do so at once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..record.safe_files import replacing
from .plan import FILE, Fault, Plan, load

LOCK = f".{FILE}.lock"


def add(directory: Path, faults: Iterable[Fault]) -> Plan:
    """Add those whose text is not in the plan yet: every rank of a program asks for the same.

    Each gets the next number. Returns the whole plan. Raises OSError, and as `plan.load` where
    there is a plan that cannot be read.
    """
    # Not the directory itself: its supervisor holds that for as long as the run lasts.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(directory / LOCK, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = load(directory) or Plan(())
        rows = list(found.faults)
        for fault in faults:
            if fault.text not in {one.text for one in rows}:
                rows.append(replace(fault, number=len(rows)))
        whole = replace(found, faults=tuple(rows))
        with replacing(directory / FILE, lasts=False) as file:
            file.write(json.dumps(whole.to_json(), indent=2).encode())
        return whole
    finally:
        os.close(lock)
