"""An address at which a process listens, as launchers and programs write it: `HOST:PORT`."""

from __future__ import annotations

from .whole_numbers import whole_number


def port_of(text: str | None) -> int | None:
    """The port that this text is, 1 to 65535; None where it is none."""
    port = whole_number(text, 5)
    return port if port is not None and 0 < port < 1 << 16 else None


def endpoint(text: str) -> tuple[str, int | None]:
    """The host and the port of `HOST:PORT`; an IPv6 address may stand in brackets. The host is ""
    where no colon parts the two, and the port None where it is none."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return host[1:-1] if bracketed else host, port_of(port)
