"""The options of a supervised run: the flags of `run` and `exec`, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..diagnosis.limits import Limits
from ..nodes.several import Several
from ..record.log_file import DEFAULT_MAX_MB, INFO
from .ci import Ci
from .injection import Plan


@dataclass(frozen=True, slots=True)
class Options:
    """The options that `run` and `exec` have in common. Times are in seconds."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: str = ""
    launcher: str = ""
    run_dir: Path | None = None
    keep_runs: int | None = None
    limits: Limits = field(default_factory=Limits)
    level: str = INFO
    level_asked: bool = False  # else the program sees torch's own
    checks: tuple[str, ...] = ()
    log_max_mb: float = DEFAULT_MAX_MB
    breaks: tuple[str, ...] = ()
    post_mortem: bool = False
    debugger: str = "pdb"
    check_every: int = 1
    on_finding: str = "stop"
    strict: bool = False
    native_stacks: bool = False
    ptrace_any: bool = False
    max_restarts: int = 0
    world_size: int | None = None
    redirect: bool = True
    shown_command: Sequence[str] = ()
    tui: bool = False
    ci: Ci | None = None
    prom: Path | None = None
    faults: Plan | None = None
    own_network: int = 0
    allow_unwatched: bool = False
    inspect: Callable[[Collection[int], float], Any] | None = None
    several: Several | None = None
