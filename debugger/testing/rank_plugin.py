"""pytest's hooks within a rank: keeps the ranks of a test in step, and passes on what they report.

Before the body, and before the fixtures are torn down, each rank waits until pytest says that all
have come so far: no rank tears down a group that another still uses, and one whose fixtures failed
leaves no rank alone in the body.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import pytest

from ..errors.in_ranks import FindingRaised
from ..rank.install import install
from .channel import MessageChannel
from .pytest_private import subtest_of
from .world import DistRank, RankWorld

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
        self.world.begin()

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
