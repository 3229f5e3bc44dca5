"""A rank of a test, from the fork to its end: the layer, then a pytest session for that one test.

The rank imports conftest.py and the test's module itself, as any pytest does, so fixtures,
parametrised values and rewritten assertions are there, and nothing has to be pickled.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ..rank.install import RUN_DIRECTORY, install
from ..rank.log import own_streams
from ..rank.record import call_site
from . import coverage_in_ranks
from .channel import MessageChannel
from .pytest_private import rank_config
from .rank_plugin import NAME, RankPlugin
from .world import RankWorld

_BELOW_THE_TEST = frozenset({"_pytest", "pluggy", "pytest"})
"""Packages whose lines are nobody's whereabouts."""


def main(
    rank: int, size: int, channel: MessageChannel, request: dict[str, Any], listener: socket.socket
) -> None:
    """Be this rank; never returns. `request` is what `server.start` was given."""
    code = 0
    try:
        _surroundings(rank, size, request, listener.getsockname()[1])
        _run(rank, size, channel, request, listener)
    except BaseException:
        code = 1
        channel.send({"error": traceback.format_exc()})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # As multiprocessing does it: what the server has registered for its end is not the rank's.
    os._exit(code)


def _surroundings(rank: int, size: int, request: dict[str, Any], port: int) -> None:
    """The environment, the folder and the streams of this rank; the layer."""
    directory = Path(request["run_dir"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DISTDEBUG_RUN_STARTED=f"{time.time():.3f}",
        DISTDEBUG_RANK_PID=str(os.getpid()),
        DISTDEBUG_LEVEL=request["level"],
        # Left as they are, breakpoints and checks of an outer run would hold here as well.
        DISTDEBUG_BREAK="",
        DISTDEBUG_PDB="",
        DISTDEBUG_PTRACE_ANY="",
        DISTDEBUG_CHECK=request["check"],
    )
    os.environ[RUN_DIRECTORY] = str(directory)
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"  # torch's own crashes DDP on gloo
    os.chdir(request["cwd"])
    sys.path[:] = request["sys_path"]
    sys.argv[:] = request["argv"]
    random.seed()  # forked ranks would all draw the server's numbers; torch's seed is a constant
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    own_streams.into_files(directory / "logs", rank)
    install(str(directory))
    for name in [one for one in sys.modules if one.partition(".")[0] in _BELOW_THE_TEST]:
        file = getattr(sys.modules[name], "__file__", None)
        if file:
            call_site.kinds[str(file)] = call_site.OWN
    # Where torch keeps every failed call to itself; pytest would print that for each rank.
    logging.getLogger("c10d-NullHandler-default").setLevel(logging.INFO)


def _run(
    rank: int, size: int, channel: MessageChannel, request: dict[str, Any], listener: socket.socket
) -> None:
    measured = coverage_in_ranks.begin(request["coverage"])
    try:
        plugin = RankPlugin(
            channel,
            RankWorld(rank, size, request["backend"], listener),
            request["nodeid"],
            post_mortem=request["post_mortem"],
        )
        options = {**request["options"], "basetemp": f"{request['temporary']}/rank{rank}"}
        config = rank_config(request["arguments"], options, request["workerinput"])
        config.pluginmanager.register(plugin, NAME)
        config.hook.pytest_cmdline_main(config=config)
        plugin.world.end()
    finally:
        coverage_in_ranks.end(measured)
    channel.send({"end": True})
