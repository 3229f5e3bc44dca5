"""Measures how fast backends communicate, one number of ranks after the other.

python -m distdebug.benchmarks.communication REQUEST

REQUEST is `comm_ranks.Request`, as `forked.program` takes it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import Any

from . import comm_ranks
from .forked import Row, measure, program


def _rows(asked: dict[str, Any], began: float) -> Generator[Row, None, None]:
    request = comm_ranks.Request(**asked)
    ends_at = began + request.budget_s
    for index, size in enumerate(request.ranks):
        now = time.monotonic()
        share = (4 + size) / sum(4 + later for later in request.ranks[index:])
        body = partial(comm_ranks.rows, request)
        yield from measure(body, size, now + max(0.0, ends_at - now) * share)


def main() -> None:
    """The program."""
    program(_rows)
