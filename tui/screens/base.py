"""The base of every screen: keys of its own, a focus for the reader, and lines to show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..picture import Focus, Picture, Stacks, Stage
from ..text import Line, duration, line, plain


@dataclass(frozen=True, slots=True)
class Key:
    """A key of one screen. `key` is textual's name, `shown` what is printed for it."""

    key: str
    shown: str
    label: str
    explained: str


@dataclass(frozen=True, slots=True)
class Body:
    """The lines of a screen: some stay on top, some scroll, some stay below."""

    top: Sequence[Line] = ()
    lines: Sequence[Line] = ()
    below: Sequence[Line] = ()
    cursor: int | None = None
    wanted: int | None = None
    """The scrolling line to have in sight, where no line is the cursor's."""


class Chosen:
    """The user's choices, shared by all screens: a rank above all."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.follow = False
        self.touched = False
        """Whether the user has moved anything: until then the cursor goes to the culprit."""

    def settle(self, picture: Picture) -> int | None:
        """The chosen rank; of its own accord it is the first to look at."""
        known = [rank for rank in sorted(picture.culprits) if rank in picture.states]
        if known and not self.touched:
            self.rank = known[0]
        elif self.rank not in picture.states:
            self.rank = next(iter(picture.states), None)
        return self.rank


class View(ABC):
    """A screen. Draws without an app; remembers sort order, cursor, filter."""

    name: ClassVar[str]
    key: ClassVar[str]
    title: ClassVar[str]
    keys: ClassVar[Sequence[Key]] = ()
    explained: ClassVar[str]
    words: ClassVar[Mapping[str, str]] = {}
    """The meanings of its words, for the help."""
    filters: ClassVar[bool] = True
    """Whether / means anything here."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.filter = ""
        self.width = 80
        self.room = 0
        """Lines between the findings and the keys at the foot; 0: not known."""

    def focus(self) -> Focus:
        """Returns what the reader must gather for this screen."""
        return Focus(self.name, self.chosen.rank)

    @abstractmethod
    def body(self, picture: Picture, width: int, height: int) -> Body:
        """The screen at that many cells, of the picture alone."""

    def matching(self, lines: Sequence[Line]) -> Sequence[Line]:
        """The lines that the filter lets through, or that there are none."""
        wanted = self.filter.lower()
        if not wanted or not lines:
            return lines
        return [row for row in lines if wanted in plain(row).lower()] or [self.nothing_matches()]

    def nothing_matches(self) -> Line:
        """Returns the line shown where a filter leaves nothing."""
        return line((f"no line matches {self.filter!r}; Esc ends the filter", "dim"))

    def told(self) -> str:
        """Returns what is shown beside the screens' names while it is so: the order of the rows."""
        return ""

    def press(self, key: str, picture: Picture, page: int) -> bool:
        """The key was pressed; whether this screen knows it. `page` is the height of the sheet."""
        return False

    def pointed(self, column: int, row: int, picture: Picture) -> None:
        """The mouse was pressed on the line `row` of those that scroll."""
        return


def no_rank(picture: Picture) -> str:
    """Why there is no rank to show."""
    match picture.stage:
        case Stage.READING:
            return "reading ..."
        case Stage.LIVE:
            return "no rank has been seen yet: each shows up when it has imported torch"
        case Stage.NOTHING:
            return "no rank has been seen yet"
    return "no rank has left a record in this run"


def taken(picture: Picture, stacks: Stacks) -> Line:
    """When the stacks were taken."""
    ago = duration(picture.now_ns - stacks.taken_ns)
    return line((f"taken {ago} {'before the end' if picture.is_over else 'ago'}", "dim"))


def moved(at: int, key: str, count: int, page: int) -> int | None:
    """Returns where a cursor at `at` of `count` lines goes with this key; None: it moves no
    cursor."""
    goals = {"up": at - 1, "k": at - 1, "down": at + 1, "j": at + 1, "home": 0, "end": count - 1}
    goals |= {"pageup": at - page, "pagedown": at + page}
    return max(0, min(count - 1, goals[key])) if key in goals else None


MOVES = ("up", "down", "left", "right", "k", "j", "h", "l", "pageup", "pagedown", "home", "end")
