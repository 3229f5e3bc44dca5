"""Finds the folders of the cgroups that a process is in, of version 2 and of version 1."""

from __future__ import annotations

from pathlib import Path

PROC, MOUNTED = Path("/proc"), Path("/sys/fs/cgroup")


def folders(pid: int, controller: str, proc: Path = PROC, cgroups: Path = MOUNTED) -> list[Path]:
    """Returns where the files of this controller may be, for this process. Raises OSError where the
    process is not there."""
    found = []
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.strip("/")
        if controllers == "":
            found += [cgroups / inside, cgroups / "unified" / inside]
        elif controller in controllers.split(","):
            # Within a container the path may be the host's, and the mount shows its own root.
            found += [cgroups / controller / inside, cgroups / controller]
    return found
