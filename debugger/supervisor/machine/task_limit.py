"""Tells that a run failed at a limit of processes and threads: `pids.max` of a cgroup, or the
user's RLIMIT_NPROC. A program that just fits below it does not fit beside what watches it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from dataclasses import replace
from pathlib import Path

from ...diagnosis.findings import Finding
from ...diagnosis.story import step
from ...system.memory import CGROUPS, cgroup_folders
from ...system.proc import PROC, owner
from ...system.processes import Tree
from ..command.launch import Launch

CAUSE = "task_limit"
_REFUSED = re.compile(r"Resource temporarily unavailable|can't start new thread")
_NEAR_SHARE = 0.5
"""The share of RLIMIT_NPROC that counts as near: nothing counts refusals, and a process that was
refused may have ended since."""


class TaskLimit:
    """The limits of this process, in which all that it starts begins."""

    def __init__(self, proc: Path = PROC, mounted: Path = CGROUPS) -> None:
        self._proc = proc
        self._folders: dict[Path, None] = {}
        with contextlib.suppress(OSError):
            for folder in cgroup_folders(os.getpid(), "pids", proc, mounted):
                above = [one for one in folder.parents if one.is_relative_to(mounted)]
                self._folders.update(dict.fromkeys((folder, *above)))
        self._refused_before = self._refused()

    @step("task limit")
    def explained(self, finding: Finding | None, launch: Launch) -> Finding | None:
        """The finding, with the limit for its cause where it is about what could not be started."""
        if finding is None or finding.cause or not _REFUSED.search(finding.message):
            return finding
        limit = self.reached()
        if not limit:
            return finding
        tree = Tree()
        own = {os.getpid(), *tree.below(os.getpid())} - {*launch.descendants()}
        count = sum(stat.threads for pid, stat in tree.stats.items() if pid in own)
        advice = (
            f"{count} of the processes and threads are distdebug's, and one more in each rank: "
            "raise the limit by as many, or run the program without distdebug"
        )
        return replace(
            finding,
            message=f"{limit}: {finding.message}",
            details=(advice, *finding.details),
            cause=CAUSE,
        )

    def reached(self) -> str:
        """The limit at which something could not be started since this was made; "" for none."""
        if self._refused() > self._refused_before:
            limits = [
                (int(text), folder)
                for folder in self._folders
                if (text := _read(folder / "pids.max").strip()).isdigit()
            ]
            where = f"pids.max is {min(limits)[0]} in {min(limits)[1]}" if limits else "pids.max"
            return f"the limit of processes and threads of this cgroup was reached ({where})"
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if os.geteuid() and 0 < most <= self._of_this_user() / _NEAR_SHARE:
            return f"the user's limit of processes and threads was reached (`ulimit -u` is {most})"
        return ""

    def _refused(self) -> int:
        texts = (_read(folder / "pids.events") for folder in self._folders)
        found = (re.search(r"^max (\d+)$", text, re.MULTILINE) for text in texts)
        return sum(int(one[1]) for one in found if one)

    def _of_this_user(self) -> int:
        count = 0
        for pid, stat in Tree(self._proc).stats.items():
            with contextlib.suppress(OSError):
                count += stat.threads if owner(pid, self._proc) == os.getuid() else 0
        return count


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
