"""The levels of log records and of checking, and how torch's two variables choose among them."""

from __future__ import annotations

LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
"""From the least to the gravest."""

DEBUG_LEVELS = OFF, INFO, DETAIL = ("OFF", "INFO", "DETAIL")
"""The levels of torch's TORCH_DISTRIBUTED_DEBUG, which are distdebug's as well."""

_CPP_LEVELS = {
    **dict.fromkeys(("0", "INFO"), "info"),
    **dict.fromkeys(("1", "WARNING"), "warning"),
    **dict.fromkeys(("2", "ERROR"), "error"),
    **dict.fromkeys(("3", "FATAL"), "fatal"),
}
_MORE_THAN_INFO = {INFO: "debug", DETAIL: "trace"}


def chosen(cpp_log_level: str, distributed_debug: str) -> str:
    """The least level that is logged, by TORCH_CPP_LOG_LEVEL and TORCH_DISTRIBUTED_DEBUG.

    ERROR and WARNING (torch's own default, also for what it does not know) give their own level
    whatever the other says; INFO gives info, with INFO debug, with DETAIL trace.
    """
    level = _CPP_LEVELS.get(cpp_log_level.strip().upper(), "warning")
    if level != "info":
        return level
    return _MORE_THAN_INFO.get(distributed_debug.strip().upper(), level)


def at_least(level: object, least: str) -> bool:
    """Whether `level` is as grave as `least`; a level that does not exist is."""
    return level not in LEVELS or LEVELS.index(str(level)) >= LEVELS.index(least)
