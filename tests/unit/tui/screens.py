"""Reads what the app shows: the cells of the terminal as text."""

from __future__ import annotations

from textual.app import App


def text_of(app: App[None]) -> str:
    """The screen as the terminal shows it, without colours and blanks at line ends."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)
