"""The exception of a rank that ends before it has imported torch, so before the layer is in place.

A missing module or a wrong configuration on one rank is as good a reason for a failed run as any.
Imports no torch.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from pathlib import Path

from ...record.layout import Definition, Phase
from ...record.notes import ExceptionNote
from ...record.writing.flight_file import FlightFile, place_of_this_process
from ..log import rank_log
from ..record import call_site
from ..record.exception_text import name_of, stack_of, titled


def record(error: BaseException, rank: int) -> None:
    """Write a flight record that holds nothing but who this rank was, and this exception."""
    if not isinstance(error, Exception):
        return
    rank_log.of_this_process.rank_of = lambda: rank
    summary = traceback.extract_tb(error.__traceback__)
    users = [row for row in summary if call_site.frame_kind(row.filename) == call_site.USER]
    place = (users[-1].filename, users[-1].lineno or 0) if users else None
    message = titled(error)
    note = ExceptionNote(type=name_of(error), stack=stack_of(error), communication=False)
    rank_log.note(note, message, place)  # first: the flight record ends the run
    environment = os.environ
    file = FlightFile(place_of_this_process(Path(environment["DISTDEBUG_RUN_DIR"])))
    address = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
    file.identify({"host": socket.gethostname(), "job": address})
    file.claim(
        rank,
        int(environment.get("WORLD_SIZE", 0)),
        int(environment.get("LOCAL_RANK", -1)),
        int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0)),
    )
    site = 0
    if place is not None:
        site = file.define(Definition.SITE, json.dumps([*place, users[-1].name]))
    file.note(note, message, site)
    file.phase(Phase.EXITING, 1)
