"""What all tests have: skips where the machine cannot run a test (the markers `gpu` and `root`),
processes that need not import torch (`torch_loaded`), runs of distdebug in such (`zygote`), several
nodes on this machine (`make_nodes`), and a gdb that works here (`working_gdb`)."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from distdebug.inspection import injection
from distdebug.inspection.injection import NotInstallable
from distdebug.record.collection import no_collection
from distdebug.testing.plugin import session_of
from tests.support.forked_nodes import ForkedNodes
from tests.support.nodes import Nodes, Unavailable
from tests.support.shared_server import SharedServer, share
from tests.support.torch_loaded import TorchLoaded
from tests.support.zygote import Zygote


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and the modules they use stay to the end: the collector need not look
    through all that again and again, while it comes to be and in each test."""
    with no_collection():
        result = yield
    gc.collect()
    gc.freeze()
    gc.collect()  # what stays is nothing now: only what tests make counts for when to look
    return result


SHARED = pytest.StashKey[SharedServer]()


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        share(session_of(config).server)


def pytest_configure(config: pytest.Config) -> None:
    is_of_worker = "PYTEST_XDIST_WORKER" in os.environ  # as ranks are
    if getattr(config.option, "numprocesses", None) and not is_of_worker:
        config.stash[SHARED] = SharedServer()


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        config.stash[SHARED].close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The driver's device file answers without importing torch, which costs 2 s a worker.
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs to run as root")


@pytest.fixture(scope="session")
def torch_loaded(pytestconfig: pytest.Config) -> TorchLoaded:
    """Forks processes from the server of the plugin's ranks; one for each worker of xdist."""
    return TorchLoaded(session_of(pytestconfig).server)


@pytest.fixture(scope="session")
def zygote(torch_loaded: TorchLoaded) -> Zygote:
    """Runs programs on ranks that need not import torch."""
    return Zygote(torch_loaded)


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[Callable[[int], Nodes]]:
    """Makes so many nodes, once in a test; they end with it. Skips where this machine has none."""
    with ExitStack() as made:

        def make(count: int) -> Nodes:
            try:
                return made.enter_context(Nodes(count, tmp_path))
            except Unavailable as reason:
                pytest.skip(f"needs nodes of its own: {reason}")

        yield make


@pytest.fixture(scope="session")
def forked_nodes(torch_loaded: TorchLoaded) -> Iterator[ForkedNodes]:
    """Runs programs on nodes, on ranks that need not import torch."""
    made = ForkedNodes(torch_loaded)
    yield made
    made.close()


@pytest.fixture(scope="session")
def working_gdb(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where there is no gdb, or one that is older than the processor: that harms what it is
    attached to, and is not used (`test_rehearsal`)."""
    if shutil.which("gdb") is None:
        pytest.skip("it takes gdb")
    try:
        injection.rehearse(tmp_path_factory.mktemp("rehearsed"))
    except NotInstallable as reason:
        pytest.skip(f"it takes a gdb that can be relied on: {reason}")
