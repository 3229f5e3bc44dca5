"""`distdebug run`: start a script on several ranks, as torchrun does, and watch it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from . import options
from .base import Command


class RunCommand(Command):
    name = "run"
    epilog = (
        "examples:\n"
        "  distdebug run -n 4 train.py --epochs 3\n"
        "  distdebug run --nproc-per-node 2 --hang-timeout 20 -m package.train\n"
        "  distdebug run -n 2 --netns --inject 'link(0<->1, reset) @ 3s' train.py\n"
        "  distdebug run --python .venv/bin/python -n 2 train.py    # with its torch\n"
        "  distdebug run --launcher mpi -n 4 train.py\n"
        "  distdebug run --launcher mpi --hostfile hosts -n 32 train.py\n"
        "\n"
        "Takes every flag of torchrun, in both spellings, before the script;\n"
        "what follows the script belongs to the script."
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "distdebug run [distdebug flags] [torchrun flags] script [arguments]"
        parser.add_argument(
            "-n", metavar="N", dest="nproc", help="ranks to start (torchrun's --nproc-per-node)"
        )
        parser.add_argument(
            "--launcher",
            choices=("torchrun", "mpi"),
            default="torchrun",
            help="who starts the ranks: torchrun (default), or mpiexec",
        )
        parser.add_argument(
            "--hostfile", metavar="FILE", help="with --launcher mpi: the ranks' hosts, by line"
        )
        runs = "the Python that runs the script, with its torch (default: distdebug's own)"
        parser.add_argument("--python", metavar="PATH", help=runs)
        options.add(parser)

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Everything behind the script is the script's, so argparse must not see it."""
        from ..launch.torchrun_flags import split_command_line

        return argparse.Namespace(request=split_command_line(argv, parser))

    def run(self, args: argparse.Namespace) -> int:
        # Imported here, so that `run --help` answers at once.
        from ..launch.launchers import nodes_of_torchrun
        from ..launch.torchrun_flags import expected_world_size, free_port_arguments
        from ..supervisor.run_options import Options

        request = args.request
        over_hosts = request.own.hostfile is not None
        if over_hosts and request.own.launcher != "mpi":
            raise UsageError("--hostfile is of --launcher mpi; torchrun is started on each node")
        torchrun = request.torchrun
        size = expected_world_size(torchrun)
        several = options.of_launcher(nodes_of_torchrun(torchrun), request.own.interface)
        if request.own.launcher == "mpi" and request.own.head is not None and not over_hosts:
            raise UsageError(
                "--head with --launcher mpi needs --hostfile: without it all ranks are on this "
                "host, and where another mpiexec starts them, give it `distdebug exec --head ...`"
            )
        environment = dict(os.environ)  # with the key, which `with_head` takes out
        several = options.with_head(request.own, several)
        alone = not _several_nodes(torchrun.nnodes) and not over_hosts
        if request.own.head is not None and alone:
            size = None  # of the whole job: nobody has said it
        if over_hosts:
            return self._become_mpi_over_nodes(request, size, environment)
        if request.own.launcher == "mpi":
            return self._run_mpi(request, size)
        far = _several_nodes(torchrun.nnodes) or several is not None
        one_host = not (_several_nodes(torchrun.nnodes) or request.own.netns or request.own.head)
        launcher = [request.python.executable, "-m", "torch.distributed.run"]
        with free_port_arguments(request) as port:
            command = [*launcher, *port, *request.command_line]
            return options.supervise(
                Options(
                    command=command,
                    launcher="torchrun",
                    shown_command=["distdebug", "run", *request.command_line],
                    max_restarts=int(torchrun.max_restarts or 0),
                    world_size=0 if size is None and far else None,
                    several=several,
                    # Torch's own listeners keep to loopback where all ranks are on this host.
                    environment={"DISTDEBUG_ONE_HOST": "1" if one_host else ""},
                    redirect=not {"redirects", "tee"} & request.given,
                    **options.common(request.own, request.command_line, size),
                )
            )

    def _become_mpi_over_nodes(
        self, request: Any, size: int | None, environment: Mapping[str, str]
    ) -> int:
        """Each rank has a supervisor: there is nothing left to do here. Signals go to mpiexec."""
        from ..launch.mpi_launcher import command_over_nodes

        options.common(request.own, request.command_line, size)  # what is wrong is said once, here
        made = command_over_nodes(request, size, environment)
        os.execvpe(made.words[0], made.words, made.environment)  # noqa: S606 - what was asked for

    def _run_mpi(self, request: Any, size: int | None) -> int:
        from ..launch.mpi_launcher import mpi_job
        from ..supervisor.run_options import Options

        shown = ["--launcher", "mpi", *request.command_line]
        with mpi_job(request, size) as job:
            return options.supervise(
                Options(
                    command=job.command,
                    environment=job.environment,
                    scratch=job.scratch,
                    shown_command=["distdebug", "run", *shown],
                    **options.common(request.own, shown, size),
                )
            )


def _several_nodes(nodes: str) -> bool:
    """Whether there are several nodes, by the flag, or by torchrun's own variable for it."""
    return str(nodes) not in ("1", "1:1")
