"""The pytest plugin `distdebug`: options, markers, fixtures. Importing it costs next to nothing:
what it needs is imported by the first test that uses it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .rank_session import DistRank
    from .run_fixture import RunScript
    from .session import PluginSession

RANK = "distdebug-rank"
"""The plugin that makes a pytest process a rank: `rank_plugin.NAME`."""
MARK = "distributed"
SESSION = pytest.StashKey["PluginSession"]()
TIMES = ("timeout", "hang_timeout")
_REQUIREMENTS = ("requires_gpus", "requires_mpi")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("distdebug", "tests of torch.distributed programs")
    group.addoption(
        "--distdebug-timeout",
        type=float,
        metavar="S",
        help="seconds for a distributed test that names no timeout (default 60)",
    )
    group.addoption(
        "--distdebug-hang-timeout",
        type=float,
        metavar="S",
        help="end a test when a rank is late by this many seconds (default: at the test's timeout)",
    )
    group.addoption(
        "--distdebug-level",
        choices=("OFF", "INFO", "DETAIL"),  # as DEBUG_LEVELS, which is not imported for it
        type=str.upper,
        help="debug level of tests that name none (default: TORCH_DISTRIBUTED_DEBUG, or INFO)",
    )
    group.addoption(
        "--distdebug-preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module once for all ranks, beside torch (may be repeated)",
    )
    group.addoption(
        "--distdebug-keep",
        action="store_true",
        help="keep the run directories of tests that passed, too",
    )
    parser.addini("distdebug_timeout", "as --distdebug-timeout")
    parser.addini("distdebug_hang_timeout", "as --distdebug-hang-timeout")
    parser.addini("distdebug_preload", "as --distdebug-preload", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "distributed(nproc=2, backend='gloo', timeout=60, hang_timeout=None, level=None, "
        "check='', ignore=(), strict=False): run the body of the test in nproc ranks, whose "
        "default group is made. nproc and backend may be lists, which parametrise the test. "
        "timeout: seconds for the whole test; hang_timeout: seconds after which a late rank "
        "ends it; level, check: as `distdebug run --debug-level` and `--check`; ignore: kinds "
        "of findings that do not fail the test by themselves; what a check raises at its line "
        "is raised all the same; strict: a warning fails the test.",
    )
    config.addinivalue_line(
        "markers",
        "requires_gpus(n=1): skip the test where fewer than n NVIDIA GPUs can be used",
    )
    config.addinivalue_line(
        "markers", "requires_mpi: skip the test where there is no mpiexec or no mpi4py"
    )
    for name in TIMES:
        seconds(config, name)  # what is wrong is said once, and not by each test


def seconds(config: pytest.Config, name: str) -> float | None:
    """Returns what the command line, or else the ini file, has for one of TIMES; None: nothing.

    Raises pytest.UsageError.
    """
    given = getattr(config.option, f"distdebug_{name}")
    text = config.getini(f"distdebug_{name}") if given is None else given
    if text in (None, ""):
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    from ..record.limits import MOST_S  # not before a test needs it

    if not 0 < value < MOST_S:
        raise pytest.UsageError(f"distdebug_{name} takes seconds above 0, not {text}")
    return value


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker(MARK) is not None:
        from .marks import generate

        generate(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    in_rank = item.config.pluginmanager.has_plugin(RANK)
    if not in_rank and item.get_closest_marker(MARK) is not None:
        from .session import distribute

        distribute(item, lambda: session_of(item.config))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if any(item.get_closest_marker(name) is not None for name in _REQUIREMENTS):
        from .marks import missing
        from .pytest_private import skip_here

        reason = missing(item)
        if reason is not None:
            skip_here(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if SESSION in item.config.stash:
        item.config.stash[SESSION].complete(item, call, report)
    return report


def pytest_exception_interact(call: pytest.CallInfo[object]) -> None:
    """A rank of `distdebug run -m pytest` has failed a test; pytest ends it with status 1 for that,
    and keeps the exception to itself."""
    install = sys.modules.get("_distdebug.rank.install")
    layer = None if install is None else install.installed()
    if layer is not None and call.excinfo is not None:
        layer.exits.caught(call.excinfo.value)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].close()
        del config.stash[SESSION]


@pytest.fixture(scope="session")
def dist_rank(request: pytest.FixtureRequest) -> DistRank:
    """The rank of a distributed test: rank, world_size, local_rank, backend, device."""
    rank: Any = request.config.pluginmanager.get_plugin(RANK)
    if rank is None:
        pytest.fail(
            "dist_rank is for tests with @pytest.mark.distributed(nproc=...)", pytrace=False
        )
    found: DistRank = rank.dist_rank
    return found


@pytest.fixture
def distdebug_nproc(request: pytest.FixtureRequest) -> int:
    """The number of ranks, also where the mark gives a list of them."""
    given = getattr(request, "param", None)
    return int(given or request.getfixturevalue("dist_rank").world_size)


@pytest.fixture
def distdebug_backend(request: pytest.FixtureRequest) -> str:
    """The backend, also where the mark gives a list of them."""
    given = getattr(request, "param", None)
    return str(given or request.getfixturevalue("dist_rank").backend)


@pytest.fixture
def distdebug_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RunScript:
    """Runs a script under `distdebug run`, as a user would; what was found can be asserted.

    `distdebug_run("train.py", "--epochs", "1", nproc=4, inject="...")` gives a report.
    """
    from .run_fixture import RunScript

    return RunScript(tmp_path_factory.mktemp("distdebug_run"), request.path.parent)


def session_of(config: pytest.Config) -> PluginSession:
    """The distributed side of this pytest session, made when it is first asked for."""
    if SESSION not in config.stash:
        from .session import PluginSession

        config.stash[SESSION] = PluginSession(config, *(seconds(config, name) for name in TIMES))
    return config.stash[SESSION]
