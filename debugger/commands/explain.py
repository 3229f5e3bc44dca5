"""`distdebug explain`: prints the page of a kind: what happened, what causes it, how to mend it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..record.kinds import KINDS, page_of
from ..record.wording import nearest_word
from .base import Command


class ExplainCommand(Command):
    name = "explain"
    epilog = (
        "examples:\n"
        "  distdebug explain                    all kinds, a line each\n"
        "  distdebug explain op_mismatch"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "kind",
            nargs="?",
            metavar="KIND",
            help="a kind of finding, or its title in a report (default: list them)",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.kind is None:
            for name in KINDS:
                print(page(name).partition("\n")[0].removeprefix("# "))
            return 0
        titled = [kind for kind, one in KINDS.items() if one.title == args.kind.upper()]
        name = titled[0] if len(titled) == 1 else args.kind.lower()
        name = name.replace(" ", "_").replace("-", "_")
        if name not in KINDS:
            near = ", ".join(titled) or nearest_word(name, KINDS)
            hint = f"did you mean {near}?" if near else "`distdebug explain` lists them"
            raise UsageError(f"no kind of finding is called {args.kind!r}: {hint}")
        print(page(name), end="")
        return 0


def page(kind: str) -> str:
    """Returns the page of a kind, as Markdown. Raises OSError where it is not installed."""
    return Path(page_of(kind)).read_text(encoding="utf-8")
