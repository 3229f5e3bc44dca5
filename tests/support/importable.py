"""Makes a copy of the tree importable by its packages' names, as installing it does."""

from __future__ import annotations

from pathlib import Path


def make_importable(root: Path) -> None:
    """Lay links: `distdebug` is the folder `debugger`, and has `tui` in it."""
    if (root / "debugger").is_dir():
        (root / "distdebug").symlink_to("debugger")
        if (root / "tui").is_dir():
            (root / "debugger" / "tui").symlink_to("../tui")
