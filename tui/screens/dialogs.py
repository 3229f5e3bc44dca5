"""What opens above a screen: a question, something to read, the line for a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from debugger.record.wording import ranks_text

from ..picture import Picture, State
from ..text import Line, fit, line, wrap
from ..widgets import grid, heat
from ..widgets.palette import Palette
from ..widgets.sheet import Lines, Pressed, Sheet
from .base import Key, View

_STATES = {
    State.STARTING: "not seen yet, or in init_process_group or new_group",
    State.COMPUTING: "in the program's own code; nobody waits for it",
    State.IN_CALL: "in a call that everybody has entered, or that may end by itself",
    State.WAITING: "in a call that others have not entered yet",
    State.LATE: "in its own code, while others have waited for it for a second or more",
    State.BREAKPOINT: "paused at a breakpoint",
    State.STOPPED: "stopped by a signal (SIGSTOP, Ctrl-Z, a debugger)",
    State.DEAD: "the process was killed or ended with a status other than 0",
    State.FINISHED: "the process ended with status 0",
}


class Confirm(ModalScreen[bool]):
    """Asks before an action is taken."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("enter", "answer(True)"),
        Binding("n", "answer(False)"),
        Binding("escape", "answer(False)"),
        Binding("q", "answer(False)"),
    ]

    def __init__(self, question: str, palette: Palette) -> None:
        super().__init__()
        self._question = question
        self._palette = palette

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Lines("question")

    def on_mount(self) -> None:
        lines = self.query_one("#question", Lines)
        lines.palette = self._palette
        rows = [line((row, "title")) for row in wrap(self._question, 60)]
        answers = line((" y ", "key"), "yes     ", (" n ", "key"), "no")
        lines.show([*rows, (), answers])
        self._answers_at = len(rows) + 1

    def on_pressed(self, message: Pressed) -> None:
        message.stop()
        if message.row == self._answers_at:
            self.action_answer(message.column < 9)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Reading(ModalScreen[None]):
    """Lines to read above a screen: the help, or the findings in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "close") for key in ("escape", "q", "enter", "question_mark", "d")
    ]

    def __init__(self, lines: Callable[[int], list[Line]], palette: Palette) -> None:
        super().__init__()
        self._lines, self._palette = lines, palette

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="reading"):
            yield Sheet("reading-text")

    def on_mount(self) -> None:
        sheet = self.query_one("#reading-text", Sheet)
        sheet.palette = self._palette
        sheet.can_focus = True
        sheet.focus()
        self.call_after_refresh(self._fill)

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        sheet = self.query_one("#reading-text", Sheet)
        sheet.show(self._lines((sheet.size.width or 70) - 2))

    def action_close(self) -> None:
        self.dismiss()


def finding_lines(picture: Picture, width: int) -> list[Line]:
    """Every finding in full, then notices and what cannot be read."""
    lines: list[Line] = []
    for found in picture.found:
        tone = "bad" if found.is_error else "warn"
        who = f"  ▸ {ranks_text(found.culprits)}" if found.culprits else ""
        title = f" {found.kind} "
        lines.append(line((title, "mark" if found.is_error else "warn"), (who, tone)))
        lines += [line("  ", row) for row in wrap(found.message, width - 2)]
        lines += [
            line("    ", (row, "dim")) for one in found.details for row in wrap(one, width - 4)
        ]
        lines += [line(("  found by the " + found.told_by, "dim")), ()]
    for sign, rows in (("… ", picture.notices), ("! ", picture.faults)):
        for text in rows:
            lines += [line((sign, "warn"), row) for row in wrap(text, width - 2)]
    return lines or [line(("nothing was found", "dim"))]


def help_lines(views: Sequence[View], keys: Sequence[Key], width: int) -> list[Line]:
    """The help: states, screens with their keys, keys that work everywhere."""
    lines: list[Line] = [line(("What a rank does", "title"))]
    for state, explained in _STATES.items():
        lines += _entry(f"{heat.LETTERS[state]} {state.value}", explained, width, heat.TONE[state])
    lines += [(), line(("In the collectives", "title"))]
    cells = {
        "left": "the call is complete on this rank",
        "entered": "the rank is in the call, or it goes on in the background",
        "failed": "the call raised on this rank",
        "differs": "the rank's call is not that of most",
        "to come": "the rank has not entered it",
        "forgotten": "older than the 4,096 calls that a rank keeps",
    }
    for name, explained in cells.items():
        text, tone = grid.SYMBOLS[name]
        lines += _entry(f"{text} {name}", explained, width, tone)
    lines += [(), line(("Everywhere", "title"))]
    for key in keys:
        lines += _entry(key.shown, key.explained, width, "key")
    lines += _entry("▸", "before a rank: look here first", width, "mark")
    for view in views:
        lines += [(), line((view.title, "title"), (f"   {view.key}", "key"))]
        lines += [line(f"  {row}") for row in wrap(view.explained, max(20, width - 2))]
        for key in view.keys:
            lines += _entry(key.shown, key.explained, width, "key")
    return lines


def _entry(name: str, explained: str, width: int, tone: str) -> list[Line]:
    rows = wrap(explained, max(20, width - 17))
    first, rest = rows[0], rows[1:]
    return [
        line("  ", (fit(name, 14), tone), " ", first),
        *(line(" " * 17, row) for row in rest),
    ]


class Filter(ModalScreen[str | None]):
    """Asks for the text that lines must contain; empty: all lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="filter"):
            yield Input(self._text, placeholder="only lines with ... (Enter; empty: all)")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
