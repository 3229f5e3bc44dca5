"""Counts the rooms of a package, the arrows between them, their floors, and the circles.

A room is what lies on a package's first level: a folder with all that is in it, or a file (but for
`__init__.py`). An arrow goes from one room to another one if any file of the first imports anything
of the second, at its top, in a function or for types alone. `python -m tests.support.rooms` prints
the table.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

from tests.support.architecture import FOLDERS, Import, imports, module_name

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class House:
    """The rooms of one package and what they use of each other."""

    name: str
    arrows: dict[str, set[str]]

    @property
    def count(self) -> int:
        """How many arrows there are."""
        return sum(len(used) for used in self.arrows.values())

    @property
    def circles(self) -> list[list[str]]:
        """Sets of rooms that use each other, directly or through others; each sorted."""
        reached = {room: self._reached(room) for room in self.arrows}
        found = {
            tuple(sorted(other for other in reached[room] if room in reached[other]))
            for room in self.arrows
            if room in reached[room]
        }
        return sorted(map(list, found))

    @property
    def floors(self) -> int:
        """The longest way down, in rooms; 0 where a circle makes it endless."""
        if self.circles:
            return 0
        heights: dict[str, int] = {}

        def height(room: str) -> int:
            if room not in heights:
                heights[room] = 1 + max((height(below) for below in self.arrows[room]), default=0)
            return heights[room]

        return max((height(room) for room in self.arrows), default=0)

    def _reached(self, start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = self.arrows[waiting.pop()] - found
            found |= fresh
            waiting += fresh
        return found


LIMITS = "limits"
"""Each room has such a module of numbers with their reasons: it is no room, and what uses it tells
nothing of who needs whom."""


def house(name: str, root: Path = ROOT) -> House:
    """The rooms of the package `name`, read from its files under `root`."""
    imported = max((one for one in FOLDERS.values() if f"{name}.".startswith(f"{one}.")), key=len)
    top = root / next(folder for folder, one in FOLDERS.items() if one == imported)
    folder = top.joinpath(*name.removeprefix(imported).split("."))
    known = _imports_below(top, root)
    rooms = {_room(name, module) for _, module in known} - {""}
    arrows: dict[str, set[str]] = {room: set() for room in rooms}
    for (file, module), found in known.items():
        here = _room(name, module)
        if not here or not file.is_relative_to(folder):
            continue
        arrows[here] |= {_room(name, one.target) for one in found} - {"", here}
    return House(name, arrows)


@functools.cache
def _imports_below(top: Path, root: Path) -> dict[tuple[Path, str], list[Import]]:
    """By file and module. Each file belongs to several houses, and is read once."""
    files = {file: module_name(root, file) for file in sorted(top.rglob("*.py"))}
    modules = set(files.values())
    return {
        (file, module): list(imports(file, module, ast.parse(file.read_bytes()), modules))
        for file, module in files.items()
    }


def _room(package: str, module: str) -> str:
    """The room of `package` that `module` lies in, "" if in none."""
    if not module.startswith(package + "."):
        return ""
    room = module.removeprefix(package + ".").partition(".")[0]
    return "" if room == LIMITS else room


def houses(root: Path = ROOT) -> list[str]:
    """The packages that have rooms: the whole, and each of its rooms, whose rooms are files."""
    inits = (file for folder in FOLDERS for file in (root / folder).rglob("__init__.py"))
    return sorted(module_name(root, file) for file in inits if len([*file.parent.glob("*")]) > 2)


def main() -> None:
    """Print rooms, floors, arrows and circles of every house."""
    for name in houses():
        found = house(name)
        print(
            f"{name}: {len(found.arrows)} rooms, {found.floors} floors, {found.count} arrows,"
            f" circles: {found.circles or 'none'}"
        )
        for room, used in sorted(found.arrows.items()):
            print(f"    {room:20} -> {' '.join(sorted(used))}")


if __name__ == "__main__":
    main()
