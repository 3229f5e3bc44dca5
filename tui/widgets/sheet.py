"""The two widgets that all screens share: fixed lines, and lines that scroll."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color, ColorParseError
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from ..text import EMPTY, Line, clip

Palette = dict[str, Style]
_COLOURLESS: Palette = {
    "good": Style(),
    "busy": Style(),
    "warn": Style(bold=True),
    "bad": Style(bold=True),
    "mark": Style(bold=True, reverse=True),
    "key": Style(bold=True),
    "cursor": Style(reverse=True),
}


def palette_of(theme: Theme, colourless: bool = False) -> Palette:
    """The styles of all tones. What a theme leaves out is taken from the terminal's own colours.
    `colourless`: where colours become greys, a dark red can hardly be read; there weight and
    contrast say it alone."""
    dark = theme.dark
    styles = _COLOURLESS if colourless else {}
    return {
        "": Style(),
        "dim": Style(dim=True),
        "place": Style(dim=True),
        "title": Style(bold=True),
        "good": _ink(theme.success, "green"),
        "busy": _ink(theme.primary, "cyan" if dark else "blue"),
        "warn": _ink(theme.warning, "yellow"),
        "bad": _ink(theme.error, "red") + Style(bold=True),
        "mark": Style(bold=True, reverse=True) + _ink(theme.error, "red"),
        "key": Style(bold=True) + _ink(theme.accent, "magenta"),
        "cursor": _bar(theme.primary),
        **styles,
    }


def _bar(name: str) -> Style:
    """On a bar of that colour, letters that can be read on it."""
    try:
        colour = Color.parse(name)
        ink = colour.get_contrast_text(1).rich_color
    except ColorParseError:
        return Style(reverse=True)
    return Style(bgcolor=colour.rich_color, color=ink)


def _ink(name: str | None, otherwise: str) -> Style:
    try:
        return Style(color=Color.parse(name).rich_color) if name else Style(color=otherwise)
    except ColorParseError:
        return Style(color=otherwise)


class Pressed(Message):
    """The mouse was pressed on a cell of these lines; `row` counts from the first line."""

    def __init__(self, sender: str, column: int, row: int) -> None:
        super().__init__()
        self.sender = sender
        self.column = column
        self.row = row


def strip_of(row: Line, palette: Palette, base: Style, width: int, cursor: bool = False) -> Strip:
    """Returns a line as the terminal gets it; the cursor's is one bar, whatever its pieces'
    tones."""
    over = palette["cursor"] if cursor else Style()
    pieces = [
        Segment(text, base + (over or palette.get(tone, palette[""])))
        for text, tone in clip(row, width)
        if text
    ]
    return Strip(pieces).adjust_cell_length(width, base + over)


class Lines(Widget):
    """Lines that do not scroll; as high as they are many, and gone when there are none."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.lines: tuple[Line, ...] = ()
        self.palette: Palette = {"": Style(), "cursor": Style()}
        self.display = False

    def show(self, lines: Sequence[Line]) -> None:
        """Show these from now on."""
        found = tuple(lines)
        if found == self.lines:
            return
        if len(found) != len(self.lines):
            self.styles.height = len(found)
            self.display = bool(found)
        self.lines = found
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row = self.lines[y] if y < len(self.lines) else EMPTY
        return strip_of(row, self.palette, self.rich_style, self.size.width)

    def on_click(self, event: events.Click) -> None:
        self.post_message(Pressed(self.id or "", event.x, event.y))


class Sheet(ScrollView, can_focus=True):
    """Lines that scroll, one of which the cursor may be on."""

    DEFAULT_CSS = "Sheet { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.lines: tuple[Line, ...] = ()
        self._cursor: int | None = None
        self._wanted: int | None = None
        self.palette: Palette = {"": Style(), "cursor": Style()}

    def show(
        self,
        lines: Sequence[Line],
        cursor: int | None = None,
        follow: bool = False,
        wanted: int | None = None,
    ) -> None:
        """Show these from now on. The cursor's line, or where there is no cursor the one that is
        `wanted`, is brought into view when it is another one, and with `follow` always."""
        found = tuple(lines)
        before, self.lines = self.lines, found
        moved, self._cursor = self._cursor, cursor
        wanted = wanted if cursor is None else cursor
        before_wanted, self._wanted = self._wanted, wanted
        if found != before:
            size = Size(1, len(found))  # what is too wide is cut, not scrolled
            if size != self.virtual_size:
                self.virtual_size = size
                self.refresh()
            else:
                top = self.scroll_offset.y
                for y in range(top, min(len(self.lines), top + self.size.height)):
                    if found[y] != before[y]:
                        self.refresh_lines(y)
        if moved != cursor:
            self.refresh()
        if wanted is not None and (before_wanted != wanted or follow):
            self.call_after_refresh(self._bring_into_view)  # when the height is known

    def on_resize(self) -> None:
        self.call_after_refresh(self._bring_into_view)

    def _bring_into_view(self) -> None:
        row, top, height = self._wanted, self.scroll_offset.y, self.size.height
        if row is None:
            return
        if height and row < top:
            self.scroll_to(y=row, animate=False)
        elif height and row >= top + height:
            self.scroll_to(y=row - height + 1, animate=False)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        row = self.lines[index] if index < len(self.lines) else EMPTY
        width = self.size.width
        return strip_of(row, self.palette, self.rich_style, width, index == self._cursor)

    def on_click(self, event: events.Click) -> None:
        self.post_message(Pressed(self.id or "", event.x, event.y + self.scroll_offset.y))
