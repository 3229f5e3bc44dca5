"""The keys: on every screen, on one, for an action; and those that the foot tells."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from . import actions
from .screens.base import MOVES, Key, View
from .screens.collectives import CollectivesView
from .screens.overview import Overview
from .screens.rank import RankView
from .screens.stacks import StacksView
from .screens.waits import WaitsView

VIEWS: tuple[type[View], ...] = (Overview, CollectivesView, RankView, StacksView, WaitsView)
KEYS = (
    Key("question_mark", "?", "help", "this help"),
    Key("q", "q", "quit", "leave; the run goes on"),
    Key("space", "Space", "pause", "freeze the screen, and go on counting; again: go on"),
    Key("slash", "/", "filter", "only lines with a text; empty: all"),
    Key("d", "d", "details", "all findings in full"),
    Key("p", "p", "page", "what a finding means, and how to mend it; again: the next one"),
    Key("f", "f", "follow", "keep the cursor on this rank, wherever it is sorted to"),
    Key("enter", "Enter", "open", "open the chosen rank"),
    Key("escape", "Esc", "back", "back to the overview; ends a filter"),
    Key("e", "e", "svg", "export the view as SVG"),
    Key("E", "E", "text", "export the view as text"),
    Key("T", "T", "theme", "the next colour theme"),
    Key("ctrl+p", "^p", "find", "a screen, a rank, a group or a key by its name"),
)
"""Keys that work on every screen; those of the actions are in `actions.ACTIONS`."""


def bindings() -> list[BindingType]:
    """Returns the bindings of all keys, for the app."""
    found: list[BindingType] = [
        Binding(key.key, f"common({key.key!r})", show=False, priority=True) for key in KEYS
    ]
    found.append(Binding("ctrl+c", "common('q')", show=False, priority=True))
    own = {key.key for view in VIEWS for key in view.keys} | set(MOVES)
    found += [Binding(key, f"press({key!r})", show=False, priority=True) for key in sorted(own)]
    for number, view in enumerate(VIEWS, 1):
        action = f"view({view.name!r})"
        found += [Binding(k, action, show=False, priority=True) for k in (view.key, str(number))]
    found += [
        Binding(one.key, f"act({one.name!r})", show=False, priority=True) for one in actions.ACTIONS
    ]
    return found


def bar_keys(view: View) -> list[Key]:
    """The keys at the foot of that screen, the most wanted first."""
    common = {key.key: key for key in KEYS}
    first = [common[name] for name in ("question_mark", "q", "space", "slash", "enter")]
    acts = [Key(one.key, one.key, one.label, one.explained) for one in actions.ACTIONS]
    rest = [common[name] for name in ("d", "f", "ctrl+p", "e", "E", "T", "escape")]
    return [*first, *view.keys, *acts, *rest]
