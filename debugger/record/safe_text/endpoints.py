"""Where somebody listens, as launchers and programs write it: `HOST:PORT`."""

from __future__ import annotations


def port_of(text: str | None) -> int | None:
    """The port that this text is, 1 to 65535; None where it is none. (Of digits of other scripts
    `isdigit` alone would say yes, and `int` fails for some.)"""
    if not text or not text.isascii() or not text.isdigit() or len(text) > 5:
        return None
    return int(text) if 0 < int(text) < 1 << 16 else None


def endpoint(text: str) -> tuple[str, int | None]:
    """The host and the port of `HOST:PORT`; an IPv6 address may stand in brackets. The host is ""
    where no colon parts the two, and the port None where it is none."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return host[1:-1] if bracketed else host, port_of(port)
