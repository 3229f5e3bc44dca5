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
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ..errors.in_ranks import FindingRaised
from ..rank.group import wrap  # noqa: F401 - the ranks that are forked share it
from ..rank.install import RUN_DIRECTORY, install
from ..rank.log import own_streams
from ..rank.record import call_site
from . import coverage_in_ranks
from .channel import MessageChannel
from .pytest_private import rank_config, subtest_of

STORE_TIMEOUT = timedelta(minutes=10)
"""The test's own limit is shorter, and says more."""


@dataclass(frozen=True, slots=True)
class DistRank:
    """The value of the fixture `dist_rank`: which rank this is, of how many, on what.

    `device` is a torch.device: a GPU of the rank's own for backends with NCCL, else the CPU.
    """

    rank: int
    world_size: int
    local_rank: int
    backend: str
    device: Any


class RankWorld:
    """Begins and ends the group; knows the rank's place in it."""

    def __init__(self, rank: int, size: int, backend: str, listener: socket.socket) -> None:
        self._listener = listener
        self._begun = False
        self._backend = backend
        self._rank, self._size = rank, size
        import torch

        device = torch.device("cuda", rank) if "nccl" in backend else torch.device("cpu")
        self.dist_rank = DistRank(rank, size, rank, backend, device)

    def begin(self) -> None:
        """init_process_group, with a store on a port that is bound already."""
        import torch
        import torch.distributed as dist

        if "tcp" in self._backend:
            import distcore  # noqa: F401 - registers the backend
        if self.dist_rank.device.type == "cuda":
            if (found := torch.cuda.device_count()) <= self._rank:
                skips = f"@pytest.mark.requires_gpus({self._size}) skips the test"
                raise RuntimeError(f"rank {self._rank} has no GPU, torch finds {found}: {skips}")
            torch.cuda.set_device(self.dist_rank.device)
        host, port = self._listener.getsockname()
        options: dict[str, Any] = {}
        if self._rank == 0:
            options["master_listen_fd"] = self._listener.detach()
        else:
            self._listener.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            self._size,
            is_master=self._rank == 0,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            **options,
        )
        dist.init_process_group(self._backend, store=store, rank=self._rank, world_size=self._size)
        self._begun = True

    def end(self) -> None:
        """Destroy what groups there are, unless the run was ended: then a call may never return."""
        if not self._begun:
            return
        self._begun = False
        import torch.distributed as dist

        from ..rank.install import installed
        from ..rank.torch_private.gloo import settle

        layer = installed()
        ended = layer is not None and layer.verdict.was_raised
        if dist.is_initialized() and not ended:
            dist.destroy_process_group()
            settle()


NAME = "distdebug-rank"
"""Under which the plugin is registered; who asks whether this process is a rank asks for it."""


class Abandoned(pytest.skip.Exception):  # type: ignore[name-defined,misc]
    """The body is not run: another rank did not come so far."""


class RankPlugin:
    """The plugin of one rank, for one test."""

    def __init__(
        self, channel: MessageChannel, world: RankWorld, nodeid: str, *, post_mortem: bool
    ) -> None:
        self._channel = channel
        self._nodeid = nodeid
        self._post_mortem = post_mortem
        self._layer = install()
        self._about: dict[str, Any] = {}
        self._in_body = False
        """Whether the body runs: what fails meanwhile is a subtest, after which it goes on."""
        self.world = world

    @property
    def dist_rank(self) -> DistRank:
        return self.world.dist_rank

    # -- collecting ----------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._channel.send({"error": f"{report.longreprtext}\n"})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        found = [item.nodeid for item in session.items]
        if found != [self._nodeid] and not session.testsfailed:
            self._channel.send({"error": f"a rank collected {found}, not {self._nodeid}\n"})
            session.items.clear()

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._channel.send({"error": f"{excrepr}\n"})

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if isinstance(excinfo.value, pytest.exit.Exception):
            self._channel.send({"exit": str(excinfo.value.msg)})
        else:
            self._channel.send({"error": "KeyboardInterrupt\n"})

    # -- the phases ----------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before the fixtures. No wrapper: where it fails, what others do around the fixtures has
        begun, and can end."""
        try:
            self.world.begin()
        except FindingRaised:
            raise
        except Exception as error:  # of its traceback no line is the user's
            made = f"@pytest.mark.distributed(backend={self.dist_rank.backend!r}) made no group"
            why = f"{made}: {type(error).__name__}: {error}"
            raise pytest.fail.Exception(why, pytrace=False) from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        if not self._await_others("call"):
            raise Abandoned("another rank has not come so far")
        self._in_body = True
        try:
            return (yield)
        finally:
            self._in_body = False
            self._stand_down()  # what is raised from here on would hit pytest, not the test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        self._stand_down()
        self._await_others("teardown")
        try:
            return (yield)
        finally:
            self.world.end()

    def _stand_down(self) -> None:
        if self._layer is not None:
            self._layer.verdict.stand_down()

    def _await_others(self, phase: str) -> bool:
        """Whether to go on as usual."""
        self._channel.send({"reached": phase})
        answer = self._channel.next()
        return answer is not None and bool(answer.get("go"))

    # -- what is reported ----------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        self._about = {"time_ns": time.time_ns()}
        if error is None or isinstance(error, Abandoned):
            return report
        self._about |= self._of(error)
        expected = hasattr(report, "wasxfail")
        if expected or (report.failed and not self._post_mortem):
            self._record(error)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        if subtest_of(data) is None:
            self._channel.send({"report": data, "about": self._about})
        elif report.failed:
            self._channel.send({"subtest": data, "about": self._about})

    def pytest_exception_interact(
        self, call: pytest.CallInfo[Any], report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        if (
            not self._post_mortem
            or call.excinfo is None
            or not isinstance(report, pytest.TestReport)
        ):
            return
        error = call.excinfo.value
        try:
            if self._layer is not None and not isinstance(error, FindingRaised):
                self._layer.breakpoints.post_mortem(error, lambda: self._record(error))
        except FindingRaised:
            pass  # the run was ended meanwhile
        finally:
            self._record(error)

    def _record(self, error: BaseException) -> None:
        """Put on record that this rank ends with the error: the others need not wait for it."""
        if self._layer is not None and not self._in_body:
            self._layer.exceptions.record(error)

    def _of(self, error: BaseException) -> dict[str, Any]:
        """Returns what tells a cause from a consequence: a finding that the rank was told of
        (`told`), and an error of the communication, which another rank's failure may have brought.
        """
        if isinstance(error, FindingRaised):
            return {"finding": error.kind, "told": not error.own}
        lost = False
        if isinstance(error, Exception) and self._layer is not None:
            lost = self._layer.exceptions.nature(error)["communication"]
        return {"communication": lost}

    def pytest_warning_recorded(self, warning_message: Any, when: str, location: Any) -> None:
        category = warning_message.category
        self._channel.send(
            {
                "warning": str(warning_message.message),
                "category": [category.__module__, category.__qualname__],
                "file": warning_message.filename,
                "line": warning_message.lineno,
                "when": when,
                "location": location,
            }
        )

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool:
        """pytest-timeout keeps its time in the process that the user sees, and not here."""
        return True

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config


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
