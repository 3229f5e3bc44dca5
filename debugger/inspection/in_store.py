"""Nobody waits in a call: all ranks wait for the store, for a key that none of them sets."""

from __future__ import annotations

from collections.abc import Mapping

from ..record.wording import ranks_text, site_text, verb
from .stance import Doing, Stance


def in_store(one: Stance) -> bool:
    """Whether the rank waits for the store."""
    return one.doing is Doing.STORE and not one.running and one.cause != "stopped"


def all_in_store(ranks: Mapping[int, Stance], world_size: int, after_s: float) -> str | None:
    """What is suspicious of it, once all have waited for so long; None where nothing is. Somebody
    outside the job may be about to set the key."""
    if not ranks or world_size > len(ranks) or not all(map(in_store, ranks.values())):
        return None
    if min(one.still_s for one in ranks.values()) < after_s:
        return None
    first = min(ranks)
    site = ranks[first].site
    where = f" at {site_text(site)}" if site is not None else ""
    return (
        f"suspected: {ranks_text(ranks)} {verb(tuple(ranks), 'waits', 'wait')} for store keys that "
        f"none of them sets; rank {first}: {ranks[first].call}{where}"
    )
