"""Says what it takes to read the stacks of a process, where that is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..system.proc import PROC, owner, read_status, setting

_SCOPE = "kernel.yama.ptrace_scope"
_CAP_SYS_PTRACE = 1 << 19
_HOW = {
    1: "it takes root or CAP_SYS_PTRACE, or `sysctl kernel.yama.ptrace_scope=0`, or ranks started "
    "with `distdebug run --ptrace-any`",
    2: "it takes CAP_SYS_PTRACE, or `sysctl kernel.yama.ptrace_scope=0`",
    3: "no process may, until the host is started again",
}


def needed(pids: Iterable[int], proc: Path = PROC, user: int | None = None) -> str:
    """Returns a sentence: why these stacks cannot be read by this process, and what would help."""
    mine = os.geteuid() if user is None else user
    if bool(int(read_status("self", proc).get("CapEff", "0"), 16) & _CAP_SYS_PTRACE):
        return (
            "stacks cannot be read though this process has CAP_SYS_PTRACE: the system call "
            "process_vm_readv is filtered (seccomp), or the ranks run in another user namespace"
        )
    for pid in pids:
        try:
            user_of_it = owner(pid, proc)
        except OSError:
            continue
        if user_of_it != mine:
            return (
                f"stacks of process {pid} belong to user {user_of_it}, and this is user {mine}: "
                "look as that user, or as root"
            )
    scope = _scope(proc)
    if scope in _HOW:
        return f"stacks cannot be read because ptrace_scope is {scope}: {_HOW[scope]}"
    return (
        "stacks cannot be read: it takes CAP_SYS_PTRACE, which a container has when it is started "
        "with --cap-add SYS_PTRACE"
    )


def _scope(proc: Path) -> int:
    try:
        return int(setting(_SCOPE, proc).read_text())
    except (OSError, ValueError):
        return 0
