"""`distdebug plan` in a forked process that has torch: what runs its ranks is forked, too."""

from __future__ import annotations

import io
import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distdebug.record.exits import ExitStatus
from distdebug.testing.channel import MessageChannel
from tests.support import runs
from tests.support.in_fork import end, surroundings
from tests.support.torch_loaded import TorchLoaded, request

LIMIT_S = 300.0


def plan(loaded: TorchLoaded, arguments: Sequence[str], tmp_path: Path) -> runs.Run:
    """Plan with these arguments; the run directory is `run` below `tmp_path`."""
    directory, stdout, stderr = (tmp_path / name for name in ("run", "stdout", "stderr"))
    for path in (stdout, stderr):
        path.write_bytes(b"")
    argv = ["plan", "--run-dir", str(directory), *arguments]
    order = request(tmp_path, runs.environment(None), stdout, stderr, argv=argv)
    ((process, channel),) = loaded.fork("tests.support.planned:be_plan", order)
    channel.close()
    code = process.wait(LIMIT_S)
    texts = (path.read_text(errors="replace") for path in (stdout, stderr))
    return runs.Run(code if code >= 0 else 128 - code, *texts, directory)


def be_plan(
    _number: int,
    _count: int,
    channel: MessageChannel,
    order: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be `distdebug`; never returns."""
    channel.close()
    listener.close()
    surroundings(order)
    end(lambda: _plan(order["argv"]))


def _plan(argv: Sequence[str]) -> None:
    from distdebug import cli
    from distdebug.supervisor.command import launch

    sys.argv = ["distdebug", *argv]
    launch.run_leaving_nothing = _run_forked
    sys.exit(cli.main())


def _run_forked(_command: Sequence[str], text: str, _env: Mapping[str, str]) -> ExitStatus:
    """What runs the ranks, without a warden."""
    pid = os.fork()
    if not pid:
        status = 121
        try:
            from distdebug.rank.plan import forker

            sys.stdin = io.StringIO(text)
            forker.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return ExitStatus.from_wait(os.waitpid(pid, 0)[1])
