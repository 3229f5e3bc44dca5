"""The palette of tones: one table from tone to style, made of the colours of the app's theme."""

from __future__ import annotations

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

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
