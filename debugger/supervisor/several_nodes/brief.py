"""The report of a large job as its other nodes get it: what was found, and who it is about.

Of 16,384 ranks a report takes megabytes, and would go to each of 2,048 nodes; the head has all of
it in its run directory, and says so.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from ...record.safe_files import object_of
from ...reports.stored import Document

MOST_ABOUT = 256
"""The most ranks named by findings that the other nodes are told of."""
MOST_WHOLE_BYTES = 8 << 20
"""A greater report goes to the other nodes only in part, however few they are."""
_MOST_BYTES = 64 << 20


def brief(report: Document) -> Document:
    """Findings and all that concerns the run stay; of ranks and hosts those that findings name."""
    named: dict[str, None] = {}
    for finding in report["findings"]:
        named.update(dict.fromkeys(map(str, finding["culprits"][:MOST_ABOUT])))
        named.update(dict.fromkeys(finding["ranks"]))
    about = set(list(named)[:MOST_ABOUT])
    ranks = {number: row for number, row in report["ranks"].items() if number in about}
    hosts = report.get("hosts", {})
    told = {host: rows for host, rows in hosts.items() if any(str(one) in about for one in rows)}
    left_out = len(report["ranks"]) - len(ranks)
    note = f"this report has {len(ranks)} of the ranks; {left_out} more are in the head's report"
    notes = [*report.get("notes", ()), *([note] if left_out else [])]
    return {**report, "ranks": ranks, "hosts": told, "ddp": [], "notes": notes}


def packed(report: Document, few: bool = False) -> bytes:
    """Packs the report for the wire: whole to `few` nodes, unless there are very many ranks on
    them."""
    text = _text(report) if few else b""
    if not 0 < len(text) <= MOST_WHOLE_BYTES:
        text = _text(brief(report))
    return zlib.compress(text, 1)


def _text(report: Document) -> bytes:
    return json.dumps(report, separators=(",", ":"), default=str).encode()


def unpacked(blob: bytes) -> dict[str, Any]:
    """The opposite; empty for what is none."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(blob, _MOST_BYTES)
    except zlib.error:
        return {}
    return {} if inflater.unconsumed_tail else object_of(plain)
