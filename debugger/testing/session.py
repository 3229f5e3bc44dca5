"""Distributed tests within a pytest session: what stands in for an item's own phases, and what
becomes of their reports."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ..record.requests.breakpoints import connect, stops
from ..record.safe_text import clean
from ..supervisor.terminal import show_prompt
from . import coverage_in_ranks
from .channel import Message
from .limits import TIMEOUT_S
from .marks import Wanted, wanted
from .outcome import Merged, Merger, properties, sections
from .pytest_private import NEUTRAL, nodeid_of, report_of, temporary
from .running import PytestSurroundings, RankRun, RankTest
from .server import ForkServer, dump


class Prompt:
    """The prompt of one session. `test` is the one that runs."""

    def __init__(self, config: pytest.Config, capture: Any) -> None:
        self._config = config
        self._capture = capture
        self.test = ""

    def show(self, directory: Path, ranks: Sequence[RankRun]) -> None:
        """Talk to each rank that stands, until it goes on. Where nobody can type (an xdist worker,
        a closed stdin) the rank goes on at once."""
        if self._capture is not None:
            self._capture.suspend_global_capture(in_=True)
        self._config.hook.pytest_enter_pdb(config=self._config, pdb=None)
        left = False
        try:
            for stop in stops(directory):
                for rank in ranks:
                    if rank.pid == stop.pid:
                        self._tell(rank)
                try:
                    connection = connect(directory, stop)
                except OSError:
                    continue  # it has gone on meanwhile
                left = show_prompt(connection, stop, directory) or left
        finally:
            self._config.hook.pytest_leave_pdb(config=self._config, pdb=None)
            if self._capture is not None:
                self._capture.resume_global_capture()
        if left and self._config.option.usepdb:
            pytest.exit("Quitting debugger")

    def _tell(self, rank: RankRun) -> None:
        """Prints what brings us here: the traceback, where there is one."""
        said = [f"{self.test}, rank {rank.number}"]
        for data, _ in rank.reports.values():
            if data["outcome"] == "failed":
                said.append(str(report_of(copy.deepcopy(data), self._config).longrepr))
        sys.stdout.write("\n" + clean("\n".join(said), 10_000, newlines=True) + "\n")


_TEST = pytest.StashKey["_Distributed"]()


class RanksStopped(Exception):
    """A phase did not pass in all ranks; the report says more."""


def distribute(item: pytest.Item, session: Callable[[], PluginSession]) -> None:
    """Makes the item's phases those of its ranks: they make the fixtures, not we."""
    distributed = _Distributed(item, session)
    item.stash[_TEST] = distributed
    item.setup = distributed.setup  # type: ignore[method-assign]
    item.runtest = distributed.call  # type: ignore[method-assign]
    item.teardown = distributed.teardown  # type: ignore[method-assign]


class _Distributed:
    """A distributed item, however often it is run."""

    def __init__(self, item: pytest.Item, session: Callable[[], PluginSession]) -> None:
        self._item = item
        self._session = session
        self._merger: Merger | None = None
        self.test: RankTest | None = None
        self.outcomes: dict[str, Merged] = {}

    def setup(self) -> None:
        item, session = self._item, self._session()
        self.outcomes = {}
        try:
            asked = wanted(item, session.timeout_s, session.hang_timeout_s)
        except ValueError as error:
            self.test, wrong = None, str(error)
        else:
            wrong = ""
        if wrong:
            pytest.fail(f"@pytest.mark.distributed {wrong}", pytrace=False)
        self.test = session.new_test(item, asked)
        path, line, _ = item.location
        self._merger = Merger(self.test, item.config, (path, (line or 0) + 1))
        self._phase("setup", self.test.setup)

    def call(self) -> None:
        if self.test is not None:
            self._phase("call", self.test.call)

    def teardown(self) -> None:
        test = self.test
        if test is not None:
            failed = any(one.outcome == "failed" for one in self.outcomes.values())
            keep = failed or self._session().keep
            self._phase("teardown", lambda: test.teardown(keep))

    def _phase(self, when: str, act: Callable[[], None]) -> None:
        assert self.test is not None
        assert self._merger is not None
        try:
            act()
        except pytest.fail.Exception as error:  # pytest-timeout's: where does everybody stand?
            self.test.broken_off(str(error.msg))
        except BaseException:  # Ctrl-C, or the user has left the prompt
            self.test.abandoned = True
            raise
        if self.test.exit_reason is not None:
            pytest.exit(self.test.exit_reason)
        found = self.outcomes[when] = self._merger.of(when)
        if found.outcome == "failed" or (found.outcome == "skipped" and when != "teardown"):
            raise RanksStopped(when)


class PluginSession:
    """The session of a pytest process, made by its first distributed test."""

    def __init__(
        self, config: pytest.Config, timeout_s: float | None, hang_timeout_s: float | None
    ) -> None:
        """The times are the session's defaults; None: not given."""
        self._config = config
        self._option = config.option
        self.timeout_s = timeout_s or TIMEOUT_S
        self.hang_timeout_s = hang_timeout_s
        self.keep = bool(self._option.distdebug_keep)
        self._factory = temporary(config)
        self._place = self._factory.mktemp("distdebug")
        blocked = [one for one in self._option.plugins or () if one.startswith("no:")]
        preload = [*config.getini("distdebug_preload"), *self._option.distdebug_preload]
        self.server = ForkServer(self._place / "server.log", preload, blocked)
        """Runs the ranks of all tests."""
        self._capture: Any = config.pluginmanager.get_plugin("capturemanager")
        self._captured = getattr(self._option, "capture", "no") != "no"
        self._prompt = Prompt(config, self._capture)
        self._warned: set[tuple[str, str, int]] = set()

    def close(self) -> None:
        """No further test will come."""
        self.server.close()

    def new_test(self, item: pytest.Item, asked: Wanted) -> RankTest:
        """A test that can be started."""
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in item.name)[:40]
        place = self._factory.mktemp(name)
        around = PytestSurroundings(
            self.server,
            self._request(item),
            self._prompt.show,
            self._warn,
            None if self._captured else self._follow,
        )
        self._prompt.test = item.nodeid
        return RankTest(nodeid_of(item), asked, place, around)

    def _request(self, item: pytest.Item) -> Message:
        """Returns what is the same for all ranks, but for what the mark says."""
        level = self._option.distdebug_level or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "INFO")
        return {
            "level": level.upper() or "INFO",
            "environment": dict(os.environ),
            "cwd": os.getcwd(),
            "argv": sys.argv,
            "sys_path": sys.path,
            "post_mortem": bool(self._option.usepdb),
            "arguments": self._arguments(item),
            "options": self._options(),
            "workerinput": getattr(self._config, "workerinput", {"workerid": "master"}),
            "coverage": coverage_in_ranks.asked(),
        }

    def _arguments(self, item: pytest.Item) -> list[str]:
        """The command line of a rank: what pytest reads before the other options."""
        config, option = self._config, self._option
        arguments = ["--capture=no", f"--rootdir={config.rootpath}"]
        if config.inipath is not None:
            arguments += ["-c", str(config.inipath)]
        if option.confcutdir:
            arguments.append(f"--confcutdir={option.confcutdir}")
        if option.noconftest:
            arguments.append("--noconftest")
        arguments.append(f"--import-mode={option.importmode}")
        for filter_ in option.pythonwarnings or ():
            arguments += ["-W", filter_]
        for setting in option.override_ini or ():
            arguments += ["-o", setting]
        for plugin in [*(option.plugins or ()), "no:terminal"]:
            arguments += ["-p", plugin]
        _, _, within = nodeid_of(item).partition("::")
        # From the folder in which the rank begins, whose own name pytest cannot take for a
        # parameter, as it would one with a bracket in it.
        return [*arguments, f"./{os.path.relpath(item.path)}::{within}"]

    def _options(self) -> Message:
        """All other options, plugins' too, as far as they are plain values."""
        known = vars(self._option)
        plain = {name: dump(value) for name, value in known.items()}
        plain = {name: value for name, value in plain.items() if value is not None}
        for name in ("plugins", "file_or_dir", "inifilename", "rootdir", "distdebug_keep"):
            plain.pop(name, None)
        return plain | {name: value for name, value in NEUTRAL.items() if name in known}

    # -- what comes back -----------------------------------------------------------------------

    def complete(
        self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        """Make the report of a phase that of its ranks."""
        distributed = item.stash.get(_TEST, None)
        if distributed is None or distributed.test is None:
            return
        found = distributed.outcomes.get(report.when)
        if found is None:
            return
        report.outcome = found.outcome  # type: ignore[assignment]
        report.longrepr = found.longrepr
        if found.wasxfail is not None:
            report.wasxfail = found.wasxfail
        elif hasattr(report, "wasxfail"):
            del report.wasxfail
        report.sections += sections(distributed.test, self._captured)
        report.user_properties += properties(distributed.test)
        # The error of this process says nothing: --pdb is to leave it alone.
        call.excinfo = None

    def _follow(self, logs: Path) -> Callable[[], None]:
        """With -s, show what the ranks print as they do."""
        from ..supervisor.output.follower import OutputFollower

        follower = OutputFollower(logs, sys.stdout, sys.stderr)
        follower.start()
        return follower.finish

    def _warn(self, message: Message) -> None:
        """A warning of a rank is one of this session, the same of several ranks once."""
        import warnings

        key = (str(message["warning"]), str(message["file"]), int(message["line"]))
        if key in self._warned:
            return
        self._warned.add(key)
        text, file, line = key
        category: type[Warning] = UserWarning
        module, qualname = map(str, message["category"])
        # Where this process can have the class without importing torch for it.
        if module == "builtins" or module in sys.modules:
            found = getattr(import_module(module), qualname, None)
            if isinstance(found, type) and issubclass(found, Warning):
                category = found
        location = message.get("location")
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(text, category, file, line),
                "when": str(message["when"]),
                "nodeid": self._prompt.test,
                "location": tuple(location) if location else None,
            }
        )
