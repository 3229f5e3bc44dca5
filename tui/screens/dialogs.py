"""The dialogs above a screen: a question, something to read, the line for a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, MarkdownViewer

from ...record.wording import ranks_text
from ..picture import Picture
from ..text import Line, fit, line, wrap
from ..widgets import heat
from ..widgets.header import BADGES
from ..widgets.sheet import Lines, Palette, Pressed, Sheet
from . import collectives
from .base import MOVES, Key, View, moved

_MOVES = {
    "↑↓←→ hjkl": "move, or scroll",
    "PgUp PgDn": "move by a page",
    "Home End": "to the first, to the last",
    "1-5": "the screens, as o c r s w",
    "mouse": "click on a rank, a cell, a screen's name, or a key at the foot",
}


class Confirm(ModalScreen[str]):
    """Asks before an action is taken. The answer: YES, ALL (where all ranks may be meant), NO."""

    YES, ALL, NO = "yes", "all", ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer('yes')"),
        Binding("enter", "answer('yes')"),
        Binding("a", "answer('all')"),
        Binding("n", "answer('')"),
        Binding("escape", "answer('')"),
        Binding("q", "answer('')"),
    ]

    def __init__(self, question: str, palette: Palette, all_too: bool = False) -> None:
        super().__init__()
        self._question = question
        self._palette = palette
        self._all_too = all_too

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Lines("question")

    def on_mount(self) -> None:
        if not self.query(Lines):  # left in the moment that it was opened: it is empty
            return
        lines = self.query_one("#question", Lines)
        lines.palette = self._palette
        rows = [line((row, "title")) for row in wrap(self._question, 60)]
        answers = [(" y ", "yes", self.YES), (" n ", "no", self.NO)]
        if self._all_too:
            answers.insert(1, (" a ", "all ranks", self.ALL))
        pieces: list[tuple[str, str]] = []
        self._places: list[tuple[int, str]] = []
        """The column in which each answer ends, and the answer."""
        for key, words, answer in answers:
            pieces += [(key, "key"), (f"{words}  ", "")]
            self._places.append((sum(len(text) for text, _ in pieces), answer))
        lines.show([*rows, (), tuple(pieces)])
        self._answers_at = len(rows) + 1

    def on_pressed(self, message: Pressed) -> None:
        message.stop()
        if message.row == self._answers_at:
            ends = [answer for end, answer in self._places if message.column < end]
            if ends:
                self.action_answer(ends[0])

    def action_answer(self, answer: str) -> None:
        if answer != self.ALL or self._all_too:
            self.dismiss(answer)


class Choose(ModalScreen[int | None]):
    """Asks which of some lines is meant; choosing one is the confirmation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"move({key!r})") for key in MOVES),
        Binding("enter", "choose"),
        Binding("escape", "leave"),
        Binding("q", "leave"),
    ]

    def __init__(self, question: str, rows: Sequence[str], palette: Palette) -> None:
        super().__init__()
        self._question, self._rows, self._palette = question, rows, palette
        self._at = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="choose"):
            yield Lines("question")
            yield Sheet("choices")

    def on_mount(self) -> None:
        if not self.query(Sheet):  # left in the moment that it was opened: it is empty
            return
        lines, sheet = self.query_one("#question", Lines), self.query_one("#choices", Sheet)
        lines.palette = sheet.palette = self._palette
        keys = line((" Enter ", "key"), "this one  ", (" Esc ", "key"), "none")
        lines.show([*(line((row, "title")) for row in wrap(self._question, 60)), keys, ()])
        sheet.can_focus = True
        sheet.focus()
        self._show()

    def _show(self) -> None:
        sheet = self.query_one("#choices", Sheet)
        sheet.show([line(row) for row in self._rows], self._at)

    def on_pressed(self, message: Pressed) -> None:
        message.stop()
        if message.sender == "choices" and message.row < len(self._rows):
            self._at = message.row
            self._show()

    def action_move(self, key: str) -> None:
        page = max(1, self.query_one("#choices", Sheet).size.height - 1)
        to = moved(self._at, key, len(self._rows), page)
        self._at = self._at if to is None else to
        self._show()

    def action_choose(self) -> None:
        self.dismiss(self._at)

    def action_leave(self) -> None:
        self.dismiss(None)


class Reading(ModalScreen[None]):
    """Lines to read above a screen: the help, or the findings in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, "close") for key in ("escape", "q", "enter", "question_mark", "d")),
        Binding("p", "page"),
    ]

    def __init__(self, lines: Callable[[int], list[Line]], palette: Palette) -> None:
        super().__init__()
        self._lines, self._palette = lines, palette

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="reading"):
            yield Sheet("reading-text")

    def on_mount(self) -> None:
        if not self.query(Sheet):  # left in the moment that it was opened: it is empty
            return
        sheet = self.query_one("#reading-text", Sheet)
        sheet.palette = self._palette
        sheet.can_focus = True
        sheet.focus()
        self.call_after_refresh(self._fill)

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        if not self.query(Sheet):  # left in the moment that it was opened: it is empty
            return
        sheet = self.query_one("#reading-text", Sheet)
        sheet.show(self._lines((sheet.size.width or 70) - 2))

    def action_close(self) -> None:
        self.dismiss()

    def action_page(self) -> None:
        """Shows the pages of what was found in the place of this."""
        self.dismiss()
        self.app.call_later(self.app.run_action, "common('p')")


class Page(MarkdownViewer):
    """A page of the documentation, whose links to other pages are followed."""

    async def go(self, location: str | PurePath) -> None:
        path, _ = self.document.sanitize_location(str(location))
        if (self.navigator.location.parent / path).is_file():  # else the app would end
            await super().go(location)


class Explained(ModalScreen[None]):
    """The pages of the kinds that were found, one after the other."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "next"),
        Binding("escape", "dismiss"),
        Binding("q", "dismiss"),
    ]

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__()
        self._files = list(files)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="reading"):
            yield Page(show_table_of_contents=False)

    async def on_mount(self) -> None:
        await self.action_next()

    async def action_next(self) -> None:
        if not self._files or not self.query(Page):  # left in the moment that it was opened
            self.dismiss()
            return
        shown = self.query_one(Page)
        await shown.go(self._files.pop(0))
        shown.document.focus()


def finding_lines(picture: Picture, width: int) -> list[Line]:
    """Every finding in full, then notices and what cannot be read."""
    lines: list[Line] = []
    for found in picture.found:
        tone = "bad" if found.is_error else "warn"
        who = f"  ▸ {ranks_text(found.culprits)}" if found.culprits else ""
        title = f" {found.title} "
        lines.append(line((title, "mark" if found.is_error else "warn"), (who, tone)))
        lines += [line("  ", row) for row in wrap(found.message, width - 2)]
        lines += [
            line("    ", (row, "dim")) for one in found.details for row in wrap(one, width - 4)
        ]
        lines += [line((f"  {found.kind} (p: its page), found by the {found.told_by}", "dim")), ()]
    for one in picture.told:
        word = (one.word, "warn" if one.doubt else "title")
        first, *rest = wrap(one.word + one.text, width - 2)
        lines += [line(word, first.removeprefix(one.word)), *(line("  ", row) for row in rest)]
    for row in picture.table:
        lines += [line(part) for part in ([row] if len(row) <= width else wrap(row, width))]
    for sign, rows in (("… ", picture.notices), ("! ", picture.faults)):
        for text in rows:
            lines += [line((sign, "warn"), row) for row in wrap(text, width - 2)]
    lines += [line(("! ", "warn"), row) for row in wrap(picture.problem, width - 2) if row]
    return lines or [line(("nothing was found", "dim"))]


def help_lines(views: Sequence[View], keys: Sequence[Key], width: int) -> list[Line]:
    """The help: states, screens with their keys, keys that work everywhere."""
    lines: list[Line] = [line(("What a rank does", "title"))]
    for state, (letter, tone, explained) in heat.LOOKS.items():
        lines += _entry(f"{letter} {state.value}", explained, width, tone)
    lines += [(), line(("The run, at the top", "title"))]
    for badge, tone, explained in BADGES.values():
        lines += _entry(badge, explained, width, tone)
    lines += [(), line(("In the collectives", "title"))]
    for name, (text, tone, explained) in collectives.SYMBOLS.items():
        lines += _entry(f"{text} {name}", explained, width, tone)
    lines += [(), line(("Everywhere", "title"))]
    for key in keys:
        lines += _entry(key.shown, key.explained, width, "key")
    for name, explained in _MOVES.items():
        lines += _entry(name, explained, width, "key")
    lines += _entry("▸", "before a rank: look here first", width, "mark")
    for view in views:
        lines += [(), line((view.title, "title"), (f"   {view.key}", "key"))]
        lines += [line(f"  {row}") for row in wrap(view.explained, max(20, width - 2))]
        for key in view.keys:
            lines += _entry(key.shown, key.explained, width, "key")
        for word, explained in view.words.items():
            lines += _entry(word, explained, width, "")
    return lines


def _entry(name: str, explained: str, width: int, tone: str) -> list[Line]:
    rows = wrap(explained, max(20, width - 17))
    first, rest = rows[0], rows[1:]
    return [
        line("  ", (fit(name, 14), tone), " ", first),
        *(line(" " * 17, row) for row in rest),
    ]


class FilterInput(ModalScreen[None]):
    """Asks for the text that lines must contain, which counts while it is typed; empty: all."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave")]

    def __init__(self, text: str, show: Callable[[str], None]) -> None:
        super().__init__()
        self._text, self._show_only = text, show

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="filter"):
            yield Input(
                self._text, placeholder="only lines with ... (Enter keeps it, Esc does not)"
            )

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show_only(event.value)

    def on_input_submitted(self) -> None:
        self.dismiss()

    def action_leave(self) -> None:
        self._show_only(self._text)
        self.dismiss()
