"""The app: takes pictures from the reader thread, keys from the user, and draws one screen."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.command import Provider
from textual.message import Message

from ..record import steady_clock
from ..record.kinds import KINDS, page_of
from ..record.requests.control import ControlError
from ..record.runs.run_directory import planned_faults
from ..record.snapshot import GroupKey
from . import actions, attaching
from .feed import Feed
from .keys import KEYS, VIEWS, bar_keys, bindings
from .picture import Focus, Picture, Stage
from .screens.base import Body, Chosen, Key, View
from .screens.collectives import CollectivesView
from .terminal import LastingDriver
from .text import Line, line, plain, safe, wrap
from .widgets.header import banner_lines, bar_lines, header_lines, missed_text
from .widgets.sheet import Lines, Pressed, Sheet, palette_of

Result = TypeVar("Result")
MOST_SENTENCE = 600


class Guard:
    """The net below what draws and what answers keys: a fault becomes a sentence, and the app goes
    on. The first fault of each place is kept with its traceback, for `main` to print when the app
    is left: while it runs, the terminal is its own."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        """Place -> the traceback of its first fault."""

    def noted(self, place: str, error: Exception) -> str:
        """The sentence to show for it."""
        if place not in self.kept:
            lines = traceback.format_exception(error)
            self.kept[place] = "".join(safe(row, 2000) + "\n" for row in "".join(lines).split("\n"))
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return safe(
            f"{place} failed, a bug of distdebug's app ({what}); the rest goes on", MOST_SENTENCE
        )

    def run(
        self, place: str, make: Callable[[], Result], otherwise: Callable[[str], Result]
    ) -> Result:
        """Returns what `make` returns; where it raises, what `otherwise` makes of the sentence."""
        try:
            return make()
        except Exception as error:
            return otherwise(self.noted(place, error))


Method = TypeVar("Method", bound=Callable[..., None])


def guarded(place: str, again: bool = True) -> Callable[[Method], Method]:
    """A method that tells its fault instead of raising it; without `again` the first one alone:
    it is not the user who calls it, and it may be called very often."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: TerminalApp, *arguments: Any, **named: Any) -> None:
            try:
                method(self, *arguments, **named)
            except Exception as error:
                known = place in self.guard.kept
                sentence = self.guard.noted(place, error)
                if again or not known:
                    self.say(sentence, "error")

        return cast(Method, call)

    return decorate


SCROLLBAR = 1
LINES_PER_BAR = 8
"""The keys at the foot may take one line of so many: all of them are in sight at 80x24."""
PARTS = ("head", "banner", "top", "below", "bar")


class Fresh(Message):
    """A new picture of the run. A newer one takes the place of one that was not drawn yet."""

    def __init__(self, picture: Picture) -> None:
        super().__init__()
        self.picture = picture

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Fresh)


def _faulty(sentence: str, width: int) -> list[Line]:
    return [line((row, "bad")) for row in wrap(sentence, max(20, width))]


def _commands() -> type[Provider]:
    """Returns the provider of the command palette, which the first screen does not wait for."""
    from .commands import Commands

    return Commands


class TerminalApp(App[None]):
    """Shows one run directory until the user leaves."""

    TITLE = "distdebug"
    CSS_PATH = "tui.tcss"
    COMMANDS: ClassVar = {_commands}
    BINDINGS: ClassVar[list[BindingType]] = bindings()

    def __init__(self, path: Path, clock: Callable[[], int] = steady_clock.now_ns) -> None:
        super().__init__(driver_class=LastingDriver)
        self.feed = Feed(path, self._post, clock)
        self.guard = Guard()
        self._away = False
        self._unseen: Picture | None = None
        """The newest picture that came while the terminal was a rank's."""
        self.picture = Picture(path, stage=Stage.READING)
        self.newest = self.picture
        self.missed: int | None = None
        """While paused: how many newer pictures there are."""
        self.chosen = Chosen()
        self.views: dict[str, View] = {view.name: view(self.chosen) for view in VIEWS}
        self.view: View = self.views["overview"]
        self._bar: list[tuple[int, int, int, int]] = []

    def compose(self) -> ComposeResult:
        for name in ("head", "banner", "top"):
            yield Lines(name)
        yield Sheet("body")
        yield Lines("below")
        yield Lines("bar")

    def on_mount(self) -> None:
        self._parts = {name: self.query_one(f"#{name}", Lines) for name in PARTS}
        self._sheet = self.query_one("#body", Sheet)
        self._sheet.can_focus = False
        self.watch(self, "theme", self._paint, init=True)
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread: a test
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.feed.start()

    def on_unmount(self) -> None:
        self.feed.stop()

    def on_resize(self) -> None:
        self.call_later(self.draw)  # when the new size is known everywhere

    def _paint(self) -> None:
        palette = palette_of(self.current_theme, self.no_color)
        for lines in self._parts.values():
            lines.palette = palette
            lines.refresh()
        self._sheet.palette = palette
        self._sheet.refresh()

    # -- pictures ------------------------------------------------------------------------------

    def _post(self, picture: Picture) -> None:
        """Called by the reader's thread."""
        if self._away:
            self._unseen = picture  # thousands may come: only the last is kept
        else:
            self.post_message(Fresh(picture))

    @guarded("the taking of a picture", again=False)
    def on_fresh(self, message: Fresh) -> None:
        self.newest = message.picture
        if self.missed is None:
            self.picture = message.picture
        else:
            self.missed += 1
            wanted = self.view.focus()
            if self.picture.focus != wanted == message.picture.focus:
                self.picture = message.picture  # what is frozen lacks what this screen shows
        self.draw()

    @guarded("the drawing", again=False)
    def draw(self) -> None:
        """Show the present picture on the present screen."""
        width, height = self.size
        if not width or not hasattr(self, "_parts"):
            return
        self.view.width = width - SCROLLBAR
        picture = self.picture
        tabs = [(view.key, view.title) for view in VIEWS]
        parts = self._parts
        wanted = safe(self.view.filter) if self.view.filters else ""
        told = self.view.told()
        run, view = self.guard.run, self.view
        missed = missed_text(picture, self.newest, self.missed)
        parts["head"].show(
            run(
                "the header",
                lambda: header_lines(picture, tabs, view.title, missed, width, wanted, told),
                lambda sentence: _faulty(sentence, width)[:3],
            )
        )
        banner = run(
            "the banner",
            lambda: banner_lines(picture, width),
            lambda sentence: _faulty(sentence, width),
        )
        banner = banner[: max(2, height // 3)]
        parts["banner"].show(banner)
        keys = [(key.shown, key.label) for key in bar_keys(self.view)]
        rank = self.chosen.rank
        idle = run("the keys", lambda: actions.idle(self.newest, rank), lambda _: frozenset())
        bar, self._bar = bar_lines(keys, width, max(1, height // LINES_PER_BAR), idle)
        parts["bar"].show(bar)
        view.room = height - len(parts["head"].lines) - len(banner) - len(bar)
        body = run(
            f"the screen {view.title}",
            lambda: view.body(picture, width - SCROLLBAR, height),
            lambda sentence: Body(lines=_faulty(sentence, width - SCROLLBAR)),
        )
        parts["top"].show(body.top)
        parts["below"].show(body.below)
        # What is below comes right after the rows where all fit, the line between them included.
        fits = body.below and len(body.lines) < view.room - len(body.top) - len(body.below)
        self._sheet.styles.height = len(body.lines) if fits else "1fr"
        self._sheet.show(body.lines, body.cursor, self.chosen.follow, body.wanted)
        focus = run("the choice of what to read", view.focus, lambda _: Focus(view.name))
        self.feed.show(focus)

    def screen_lines(self) -> list[Line]:
        """Everything of the view, the lines that are scrolled out of sight included."""
        parts = self._parts
        above = [one for name in PARTS[:3] for one in parts[name].lines]
        return [*above, *self._sheet.lines, *parts["below"].lines]

    # -- keys ----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a dialog is open, its own keys count and ours do not."""
        if action in ("common", "press", "view", "act"):
            return len(self.screen_stack) == 1
        return super().check_action(action, parameters)

    @guarded("this key")
    def action_press(self, key: str) -> None:
        self.chosen.touched = True
        height = self._sheet.size.height
        page = max(1, height - 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
        if self.view.press(key, self.picture, max(1, height)):
            pass
        elif key in steps:
            self._sheet.scroll_relative(y=steps[key], animate=False)
        elif key in ("home", "end"):
            to = 0 if key == "home" else len(self._sheet.lines)
            self._sheet.scroll_to(y=to, animate=False)
        self.draw()

    @guarded("this key")
    def action_view(self, name: str) -> None:
        if self.view.name != name:
            self.view = self.views[name]
            self._sheet.scroll_to(y=0, animate=False)
            if self.missed is None:
                self.picture = self.newest
        self.draw()

    def open_rank(self, rank: int) -> None:
        """Show that rank from close up."""
        self.chosen.rank, self.chosen.touched = rank, True
        self.action_view("rank")
        self.draw()

    def open_group(self, group: GroupKey) -> None:
        """Show the collectives of that group."""
        collectives = self.views["collectives"]
        assert isinstance(collectives, CollectivesView)
        collectives.open(group)
        self.action_view("collectives")
        self.draw()

    @guarded("this key")
    def action_common(self, key: str) -> None:
        match key:
            case "q":
                self.exit()
            case "question_mark":
                from .screens.dialogs import help_lines

                acts = (Key(one.key, one.key, "", one.explained) for one in actions.ACTIONS)
                screens, keys = list(self.views.values()), [*KEYS, *acts]
                self._read("the help", partial(help_lines, screens, keys))
            case "d":
                from .screens.dialogs import finding_lines

                self._read("the list of findings", partial(finding_lines, self.picture))
            case "p":
                from .screens.dialogs import Explained

                kinds = dict.fromkeys(one.kind for one in self.picture.found if one.kind in KINDS)
                if kinds:
                    self.push_screen(Explained(list(map(page_of, kinds))))
                else:
                    self.say("nothing was found")
            case "slash":
                self._ask_filter()
            case "space":
                if self.missed is None:
                    self.missed = 0
                else:
                    self.missed = None
                    self.picture = self.newest
            case "f":
                self.chosen.follow = not self.chosen.follow
                rank = f" rank {self.chosen.rank}" if self.chosen.rank is not None else ""
                self.say(f"follows{rank}" if self.chosen.follow else "follows nobody")
            case "enter":
                self.action_view("rank")
            case "escape":
                self.view.filter = ""
                self.action_view("overview")
            case "e" | "E":
                self._export("svg" if key == "e" else "txt")
            case "ctrl+p":
                self.action_command_palette()
            case "T":
                names = sorted(self.available_themes)
                self.theme = names[(names.index(self.theme) + 1) % len(names)]
                self.say(f"theme {self.theme}")
        self.draw()

    @guarded("this click")
    def on_pressed(self, message: Pressed) -> None:
        """The mouse: a tab, a key at the foot, or a line of the sheet."""
        if message.sender == "bar":
            for row, start, end, index in self._bar:
                if row == message.row and start <= message.column < end:
                    self.call_later(self._run_key, bar_keys(self.view)[index])
        elif message.sender == "head" and message.row == 2:
            at = 0
            for view in VIEWS:
                end = at + len(view.key) + len(view.title) + 3
                if at <= message.column < end:
                    self.action_view(view.name)
                at = end
        elif message.sender == "body":
            self.chosen.touched = True
            self.view.pointed(message.column, message.row, self.picture)
            self.draw()

    async def _run_key(self, key: Key) -> None:
        await self._check_bindings(key.key, priority=True)

    # -- what keys do --------------------------------------------------------------------------

    def _read(self, place: str, make: Callable[[int], list[Line]]) -> None:
        from .screens.dialogs import Reading

        def lines(width: int) -> list[Line]:
            return self.guard.run(place, lambda: make(width), lambda told: _faulty(told, width))

        self.push_screen(Reading(lines, self._sheet.palette))

    def _ask_filter(self) -> None:
        from .screens.dialogs import FilterInput

        if not self.view.filters:
            self.say("there is nothing to filter on this screen")
            return

        def show(text: str) -> None:
            self.view.filter = text
            self.draw()

        self.push_screen(FilterInput(self.view.filter, show))

    def _export(self, kind: str) -> None:
        def make() -> str:
            if kind == "svg":
                return self.export_screenshot(title="distdebug")
            return "\n".join(plain(row).rstrip() for row in self.screen_lines()) + "\n"

        try:
            path = actions.export(kind, self.view.name, make)
        except OSError as error:
            self.say(f"cannot export: {error}", "error")
        else:
            self.say(f"written to {path}")

    @guarded("this action")
    def action_act(self, name: str) -> None:
        action = next(one for one in actions.ACTIONS if one.name == name)
        rank = self.chosen.rank
        refusal = actions.refusal(action, self.newest, rank)
        if refusal:
            self.say(refusal, "warning")
        elif name == "inject":
            self._choose_fault(action)
        else:
            self._confirm(action, rank)

    def _confirm(self, action: actions.UserAction, rank: int | None) -> None:
        from .screens.dialogs import Confirm

        def answered(answer: str | None) -> None:
            if not answer:
                return
            if action.name == "attach" and rank is not None:
                self._open_prompt(rank)
            elif action.for_rank:
                self._take(action, rank=None if answer == Confirm.ALL else rank)
            else:
                self._take(action)

        question = action.question.format(rank=rank)
        self.push_screen(Confirm(question, self._sheet.palette, action.all_too), answered)

    def _choose_fault(self, action: actions.UserAction) -> None:
        from .screens.dialogs import Choose

        faults = planned_faults(self.newest.directory)

        def answered(at: int | None) -> None:
            if at is not None:
                self._take(action, fault=faults[at].number)

        rows = [f"{fault.number:>3}  {safe(fault.text)}" for fault in faults]
        self.push_screen(Choose(action.question, rows, self._sheet.palette), answered)

    @guarded("this action")
    def _take(self, action: actions.UserAction, **arguments: int | None) -> None:
        """Sends an action in a thread of its own: the supervisor may need a while."""

        def ask() -> None:
            try:
                answer = actions.take(action, self.newest.directory, **arguments)
            except ControlError as error:
                self.call_from_thread(self.say, str(error), "error")
            except Exception as error:  # it would end the app
                sentence = self.guard.noted("this action", error)
                self.call_from_thread(self.say, sentence, "error")
            else:
                self.call_from_thread(self.say, answer)

        self.run_worker(ask, thread=True)

    @guarded("the prompt")
    def _open_prompt(self, rank: int) -> None:
        """The terminal is the rank's until the user comes back; so long, nothing is drawn."""
        self._away = True
        try:
            with self.suspend():
                attaching.attach(self.newest.directory, rank)
        except SuspendNotSupported:
            self.say(f"not in this terminal; use distdebug attach --rank {rank}", "error")
        finally:
            self._away = False
        if self._unseen is not None:
            self.post_message(Fresh(self._unseen))
            self._unseen = None

    def say(self, sentence: str, severity: str = "information") -> None:
        """A sentence that goes away again."""
        self.notify(sentence, severity=severity, markup=False)  # type: ignore[arg-type]
