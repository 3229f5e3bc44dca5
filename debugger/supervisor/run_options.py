"""The options of a supervised run: the flags of `run` and `exec`, read and checked; and what they
make of its run directory, its run.json and the environment of its command."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__, hook
from ..diagnosis.limits import Limits
from ..record.log_file import DEFAULT_MAX_MB, INFO, MAX_MB
from ..record.runs.run_directory import BASE, RunDirectory
from ..record.secret_words import masked

if TYPE_CHECKING:
    from ..faults.plan import Plan
    from ..nodes.several import Several
    from .ci import Ci


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
    on_finding_run: Sequence[str] = ()
    strict: bool = False
    why: bool = False
    values: bool = False
    values_every: int = 1
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


def here() -> tuple[str, Path]:
    """The working directory, and where run directories are made. One that was removed is still a
    place to run in, but not one to keep anything in."""
    try:
        return os.getcwd(), BASE
    except OSError:
        return ".", Path(tempfile.gettempdir()) / f"distdebug-{os.geteuid()}"


def about(options: Options) -> dict[str, Any]:
    """The run.json of this run, with the supervisor's versions, host and start."""
    import platform  # the command starts without them
    from importlib import metadata

    versions = {}
    for name in ("torch", "structlog", "py-spy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "command": masked(options.shown_command or options.command),
        "distdebug": __version__,
        "python": platform.python_version(),
        "versions": versions,
        "host": platform.node(),
        "platform": platform.platform(),
        "pid": os.getpid(),
        "started_ns": time.time_ns(),
        "level": options.level,
        "checks": list(options.checks),
        "hang_timeout_s": options.limits.hang_timeout_s,
    }


def environment(
    options: Options,
    directory: Path,
    aside: int | None,
    drained: bool,
    of_faults: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the command. `aside`: where what the command itself prints goes, while the
    app has the terminal. `drained`: somebody takes what the ranks print. `of_faults`: what the
    injection of faults adds."""
    streams = (1, 2) if aside is None else (aside, aside)
    outer = {**os.environ, **options.environment}
    found = hook.environment(outer, directory, options.launcher, streams)
    found["DISTDEBUG_REDIRECT"] = "1" if options.redirect and drained else "0"
    found.update(hook.drained(streams))
    found["DISTDEBUG_LEVEL"] = options.level
    found["DISTDEBUG_LEVEL_UNASKED"] = "" if options.level_asked else "1"
    found.update(of_faults)
    if options.ci is not None:
        found.update(options.ci.environment(found))
    found[MAX_MB] = f"{options.log_max_mb:g}"
    found["DISTDEBUG_BREAK"] = "\n".join(options.breaks)
    found["DISTDEBUG_PDB"] = "1" if options.post_mortem else ""
    found["DISTDEBUG_PTRACE_ANY"] = "1" if options.ptrace_any else ""
    found["DISTDEBUG_TUI"] = "1" if options.tui else ""
    found["DISTDEBUG_DEBUGGER"] = options.debugger
    found["DISTDEBUG_CHECK"] = ",".join(options.checks)
    found["DISTDEBUG_CHECK_EVERY"] = str(options.check_every)
    found["DISTDEBUG_WHY"] = "1" if options.why else ""
    found["DISTDEBUG_VALUES"] = str(options.values_every) if options.values else ""
    found["DISTDEBUG_ON_FINDING"] = options.on_finding
    if found.get("TORCH_DISTRIBUTED_DEBUG", "").upper() not in ("", options.level):
        found["TORCH_DISTRIBUTED_DEBUG"] = options.level  # which a flag overrides
    return found


USERS = "DISTCORE_KEY_FILE"
VARIABLE = "DISTDEBUG_KEY_FILE"
"""The file of the key that is made here. The user's goes before it, and a program sees none that it
has not been given."""
FILE = "group.key"
_BYTES = 32


def key_variables(environment: Mapping[str, str], directory: RunDirectory) -> dict[str, str]:
    """The variable that names the key, for ranks that are all on this host (`DISTDEBUG_ONE_HOST`).
    Where the user has set it, to nothing even, that holds."""
    if not environment.get("DISTDEBUG_ONE_HOST") or USERS in environment:
        return {}
    if not directory.write_text(FILE, secrets.token_hex(_BYTES)):
        return {}
    return {VARIABLE: str(directory.path / FILE)}
