"""The offers of the command palette: every screen, key and action by its words, ranks and groups by
their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from textual.command import DiscoveryHit, Hit, Hits, Provider

from . import actions
from .keys import KEYS, VIEWS
from .text import safe

_NUMBER = re.compile(r"\d+")


class PaletteCommand(NamedTuple):
    """A thing to do, in the words that it is found by, and what there is to say of it."""

    words: str
    about: str
    do: Callable[[], object]


class Commands(Provider):
    """Commands for what is on the screen now."""

    async def discover(self) -> Hits:
        """Yields the offers before anything was typed: all but ranks, groups and keys of a
        screen."""
        for one in self._fixed():
            yield DiscoveryHit(one.words, one.do, help=one.about)

    async def search(self, query: str) -> Hits:
        """Yields what the words fit, the best first. A rank is found by its number, also where only
        those that stand out have rows."""
        matcher = self.matcher(query)
        for one in (*self._of_query(query), *self._fixed(), *self._own_keys(), *self._named()):
            score = matcher.match(one.words)
            if score > 0:
                yield Hit(score, matcher.highlight(one.words), one.do, help=one.about)

    @property
    def _app(self) -> Any:  # `TerminalApp`, which imports this when it is asked for
        return self.app

    def _fixed(self) -> Iterator[PaletteCommand]:
        app = self._app
        for view in VIEWS:
            do = partial(app.action_view, view.name)
            yield PaletteCommand(f"{view.title} screen", f"{view.key}: {view.explained}", do)
        for one in actions.ACTIONS:
            about = f"{one.key}: {one.explained}"
            yield PaletteCommand(one.label, about, partial(app.action_act, one.name))
        for key in KEYS:
            if key.key != "ctrl+p":
                about = f"{key.shown}: {key.explained}"
                yield PaletteCommand(key.label, about, partial(app.action_common, key.key))

    def _own_keys(self) -> Iterator[PaletteCommand]:
        app = self._app
        for key in app.view.keys:
            about = f"{key.shown} on this screen: {key.explained}"
            yield PaletteCommand(key.label, about, partial(app.action_press, key.key))

    def _of_query(self, query: str) -> Iterator[PaletteCommand]:
        """The rank whose number was typed, if it has no row."""
        picture = self._app.picture
        for number in {int(one) for one in _NUMBER.findall(query)[:2] if len(one) < 10}:
            if number in picture.states and number not in picture.rows:
                state = picture.states[number].value
                yield PaletteCommand(f"rank {number}", state, partial(self._app.open_rank, number))

    def _named(self) -> Iterator[PaletteCommand]:
        app, picture = self._app, self._app.picture
        for number, row in picture.rows.items():
            about = "  ".join(part for part in (row.words, row.call, row.site) if part)
            yield PaletteCommand(f"rank {number}", about, partial(app.open_rank, number))
        for key, name in picture.groups:
            words = f"group {safe(name)}"
            yield PaletteCommand(words, "its last collectives", partial(app.open_group, key))
