"""`distdebug exec`: run any command that starts ranks by itself, and watch it."""

from __future__ import annotations

import argparse
import os

from ..errors import UsageError
from ..record.safe_text import whole_number
from . import options
from .base import Command


class ExecCommand(Command):
    name = "exec"
    epilog = (
        "examples:\n"
        "  distdebug exec -- python spawn_train.py\n"
        "  distdebug exec --hang-timeout 20 -- mpiexec -n 4 python train.py"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "distdebug exec [distdebug flags] -- command [arguments]"
        options.add(parser)
        parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, args: argparse.Namespace) -> int:
        # Imported here, so that `exec --help` answers at once.
        from ..launch.launchers import nodes_of_launcher
        from ..nodes.several import of_tasks, perhaps
        from ..supervisor.run_options import Options

        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        if not command:
            raise UsageError(
                "no command was given; write one after `--`, "
                "for example: distdebug exec -- python spawn_train.py"
            )
        if command[0].startswith("-"):
            raise UsageError(f"unknown flag {command[0]}; put `--` before the command")
        size = whole_number(os.environ.get("WORLD_SIZE"))  # as a rank that it starts will read it
        several = of_tasks(os.environ, args.interface)
        if several is None:
            several = options.of_launcher(nodes_of_launcher(command), args.interface)
        several = options.with_head(args, several) or perhaps(args.interface)
        return options.supervise(
            Options(
                command=command,
                several=several,
                world_size=0,  # what the ranks say counts as long as they are all on this node
                **options.common(args, command, size),
            )
        )
