"""Asks torch's debug servers (`torch.distributed.debug`) for the flight recorders of the ranks.

A program that has called `start_debug_server()` has an HTTP server in each rank, whose address is a
key of the job's store. The answer is made by a C++ thread: a rank that hangs, or holds its GIL,
gives it as well.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ..foreign.flight_recorder import Dump, NoDump, read
from ..record.safe_text import clean
from .store import Keys, values_of

_KEY = re.compile(r"(?:^|/)debug_server/rank(\d{1,6})$")
_HANDLER = "/handler/fr_trace_json?includestacktraces=false"
_ADDRESS = re.compile(r"http://[\w.\-\[\]:]{1,250}:\d{1,5}/?$")
_LIMIT_S = 5.0
_MOST_BYTES = 1 << 26
_WORKERS = 16


def dumps_of(keys: Keys) -> tuple[Mapping[int, Dump], list[str]]:
    """What the recorders of the ranks hold, by rank, and sentences about those that do not tell."""
    names = {name: int(match[1]) for name in keys.names if (match := _KEY.search(name))}
    addresses = {names[name]: text for name, text in values_of(keys, names).items()}
    if not addresses:
        return {}, []
    with ThreadPoolExecutor(min(_WORKERS, len(addresses)), "distdebug-dumps") as pool:
        answers = dict(zip(addresses, pool.map(_asked, addresses.values()), strict=True))
    found = {rank: answer for rank, answer in answers.items() if isinstance(answer, Dump)}
    return found, [
        f"the debug server of rank {rank} at {clean(addresses[rank], 120)} {answer}"
        for rank, answer in sorted(answers.items())
        if isinstance(answer, str)
    ]


def _asked(address: str) -> Dump | str:
    """A rank's dump, or what is wrong with it. The address is whatever somebody put into the store:
    nothing but plain HTTP is spoken, and no redirect followed."""
    if not _ADDRESS.match(address):
        return "has an address that is none"
    url = address.rstrip("/") + _HANDLER
    request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310  # see _ADDRESS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=_LIMIT_S) as answer:
            data = answer.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"does not answer: {clean(str(error), 200)}"
    if len(data) > _MOST_BYTES:
        return f"answers with more than {_MOST_BYTES} bytes"
    try:
        return read(data)
    except NoDump as error:
        return f"has given what {error}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """None is followed: urllib then raises the answer as an error."""
