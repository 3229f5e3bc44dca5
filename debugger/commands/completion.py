"""`distdebug completion`: makes a shell complete the command, by argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UsageError
from ..launch.torchrun_flags import split_at_script, torchrun_parser
from ..record.kinds import ALL_CHECKS, CHECKS, KINDS
from ..record.runs.run_directory import nearest, run_names
from . import COMMANDS, load
from .base import Command

_SHELLS = ("bash", "zsh", "fish")


class CompletionCommand(Command):
    name = "completion"
    epilog = (
        "For this terminal, or at the end of ~/.bashrc, ~/.zshrc (behind compinit) or\n"
        "~/.config/fish/config.fish:\n"
        '  eval "$(distdebug completion bash)"\n'
        '  eval "$(distdebug completion zsh)"\n'
        "  distdebug completion fish | source"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help="bash, zsh or fish")

    def run(self, args: argparse.Namespace) -> int:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["distdebug"], shell=args.shell))
        return 0


def complete() -> int:
    """Answer the shell, as argcomplete's code in it asks; returns the exit code."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        return 2
    parser = argparse.ArgumentParser(prog="distdebug", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    typed = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = typed[: len(typed) - len(typed.split(" ")[-1])].split()[1:]
    excluded: list[str] = []
    for name, does in COMMANDS.items():
        below = commands.add_parser(name, help=does, allow_abbrev=False)
        if [name] == words[:1]:
            load(name).configure(below)
            for action in below._actions:
                setattr(action, "completer", _COMPLETERS.get(str(action.metavar)))  # noqa: B010
            if name in ("run", "exec", "plan"):
                excluded = _with_torchrun(below, words[1:])
    commands.add_parser("help", help="say more of a command").add_argument("of", choices=COMMANDS)
    argcomplete.autocomplete(parser, always_complete_options=False, exclude=excluded)
    return 0


def _with_torchrun(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Add torchrun's flags and the script to a command that takes them; returns the flags that are
    not offered: behind a script all of them, since what stands there belongs to the script."""
    flags = parser._option_string_actions
    try:
        behind = split_at_script(words, parser)[1]
    except UsageError:
        behind = []  # a flag still lacks its value
    if not parser._get_positional_actions():
        try:
            offered = torchrun_parser()._actions
        except UsageError:
            offered = []  # without torch
        for action in offered:
            if not flags.keys() & set(action.option_strings):
                parser._add_action(action)
    return [flag for flag in flags if behind or "_" in flag]  # with dashes they are there, too


def _runs(prefix: str, **_: Any) -> Iterable[str]:
    """The names of runs, or else files: a run may also be given by its path."""
    from argcomplete.completers import FilesCompleter

    names = {name: "" for name in run_names(nearest()) if name.startswith(prefix)}
    return names or FilesCompleter()(prefix)


def _checks(prefix: str, **_: Any) -> Iterable[str]:
    before, comma, _last = prefix.rpartition(",")
    return {f"{before}{comma}{name}": "" for name in (*CHECKS, ALL_CHECKS)}


_COMPLETERS = {"RUN": _runs, "NAMES": _checks, "KIND": lambda **_: dict.fromkeys(KINDS, "")}
"""The function that completes a value, by the name that the help has for it; else choices, or
files. They answer with texts that stand beside the words: without one zsh shows "None" there."""
