"""All ranks' stacks as one prefix tree: ranks that stand at the same place share a branch."""

from __future__ import annotations

from typing import ClassVar

from ...record.wording import ranks_text
from ..picture import Picture, StackNode, Stage
from ..text import Line, fit, fold, line, standing
from .base import Body, Key, View, taken

DEEPEST = 20
MOST_LABEL = 30


class StacksView(View):
    name = "stacks"
    key = "s"
    title = "Stacks"
    explained = (
        "Where every rank stands, outermost frame first. A branch shows its ranks where they part. "
        "S takes the stacks again, without stopping anybody."
    )
    keys: ClassVar = (Key("a", "a", "all frames", "show torch's and Python's own frames too"),)

    everything = False

    def body(self, picture: Picture, width: int, height: int) -> Body:
        stacks = picture.stacks
        if picture.focus.view != self.name:
            return Body(lines=[line(("reading ...", "dim"))])
        if stacks is None or not stacks.threads:
            live = picture.stage is Stage.LIVE
            hint = "press S to take them" if live else "none were taken in this run"
            return Body(lines=[line((f"no stacks yet: {hint}", "dim"))])
        top = [taken(picture, stacks)]
        for problem in stacks.problems[:3]:
            top += fold(line((problem, "warn")), width)
        lines: list[Line] = []
        for name, ranks, tree in stacks.threads:
            found: list[Line] = []
            for node in tree:
                _draw(node, 1, ranks, self.everything, found)
            if found:
                lines.append(line((name, "title"), (f" of {_who(ranks)}", "dim")))
                lines += found
        rows = self.matching(lines)
        return Body(top=top, lines=[part for row in rows for part in standing(row, width)])

    def press(self, key: str, picture: Picture, page: int) -> bool:
        if key != "a":
            return False
        self.everything = not self.everything
        return True


def _who(ranks: tuple[int, ...]) -> str:
    """The ranks; of a list that is too long its beginning, and how many they are."""
    text = ranks_text(ranks)
    return text if len(text) <= MOST_LABEL else f"{fit(text, MOST_LABEL)} ({len(ranks)} in all)"


def _draw(
    node: StackNode, depth: int, above: tuple[int, ...], everything: bool, lines: list[Line]
) -> None:
    """Frames that nobody asked for are left out; the ranks of a branch stay."""
    rows = [
        (frame, quiet)
        for frame, quiet in zip(node.frames, node.quiet, strict=True)
        if everything or not quiet
    ]
    last = len(rows) - 1
    label = f"  ◂ {_who(node.ranks)}" if node.ranks != above else ""
    for index, (frame, quiet) in enumerate(rows):
        indent = "  " * min(depth + index, DEEPEST)
        notes = f"  [{', '.join(node.notes)}]" if node.notes and index == last else ""
        lines.append(
            line((indent, ""), (frame, "dim" if quiet else ""), (notes, "warn"), (label, "key"))
        )
        label = ""
    if label and not node.children and (node.notes or depth == 1):  # else they part in torch
        indent = "  " * min(depth, DEEPEST)
        hidden = node.frames[-1] if node.frames else "?"
        notes = f"  [{', '.join(node.notes)}]" if node.notes else ""
        lines.append(line(indent, (hidden, "dim"), (notes, "warn"), (label, "key")))
    parent = node.ranks if rows else above
    for child in node.children:
        _draw(child, depth + len(rows), parent, everything, lines)
