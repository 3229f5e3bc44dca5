"""All that the plugin uses of pytest's private parts, in one file: releases may differ there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback
from _pytest.config import Config

# The command line's choices that are not a rank's: which tests, what is shown, what is kept.
NEUTRAL: Mapping[str, Any] = {
    "capture": "no",
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "cacheclear": False,
    "cacheshow": None,
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "ignore": None,
    "ignore_glob": None,
    "collectonly": False,
    "xmlpath": None,
    "durations": None,
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "tx": [],
    "px": [],
    "looponfail": False,
    "cov_source": [],
    "no_cov": True,
    "timeout": None,
    "reruns": None,
    "pastebin": None,
    "log_file": None,
    "live_logs_context": None,
    "help": False,
    "version": 0,
}


def rank_config(
    arguments: Sequence[str], options: Mapping[str, Any], workerinput: Mapping[str, Any]
) -> Config:
    """The configuration of a rank's session, with pytest's own plugins and the user's."""
    config = Config.fromdictargs(options, list(arguments))
    # As under xdist: conftest files and plugins leave to the main process what is to be done once.
    config.workerinput = dict(workerinput)  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    return config


def skip_here(reason: str) -> NoReturn:
    """Skip the test for what its mark says: the summary shows the test's place, not ours."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


def nodeid_of(item: pytest.Item) -> str:
    """The item's own id, to which xdist adds a group (`--dist loadgroup`)."""
    return item.nodeid if item.parent is None else f"{item.parent.nodeid}::{item.name}"


def temporary(config: pytest.Config) -> pytest.TempPathFactory:
    """Returns what the fixture `tmp_path_factory` gives, without a test that asks for it."""
    found: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return found


def chain_of(report: Any) -> list[tuple[ReprTraceback, ReprFileLocation | None, str | None]]:
    """The parts of a report's failure that pytest shows one after the other."""
    found = report.longrepr
    if isinstance(found, ExceptionChainRepr):
        return list(found.chain)
    if hasattr(found, "reprtraceback"):
        return [(found.reprtraceback, found.reprcrash, None)]
    return [(native(str(found)), None, None)]


def native(text: str) -> ReprTraceback:
    """Text, shown as it is."""
    whole = text if text.endswith("\n") else f"{text}\n"
    return ReprTraceback([ReprEntryNative([whole])], None, "native")


def failure(
    parts: Sequence[tuple[ReprTraceback, ReprFileLocation | None, str | None]],
    path: str,
    line: int,
    message: str,
) -> ExceptionChainRepr:
    """A failure that consists of these parts. `path`, `line` and `message` are for summaries."""
    *others, (last, _, described) = parts
    # Of the last part: from there a report that xdist has sent takes it.
    crash = ReprFileLocation(path, line, message)
    return ExceptionChainRepr([*others, (last, crash, described)])


def subtest_of(data: Mapping[str, Any]) -> str | None:
    """Returns what a report as text says of the part of a test that it is about, `subtest [part]
    (i=1)`; None where it is about the whole."""
    context = data.get("_subtest.context")
    if data.get("_report_type") != "SubTestReport" or not isinstance(context, dict):
        return None
    message, values = context.get("msg"), context.get("kwargs") or {}
    named = [] if message is None else [f"[{message}]"]
    told = ", ".join(f"{name}={value}" for name, value in values.items())
    return " ".join(["subtest", *named, *([f"({told})"] if told else [])])


def value_of(argument: Any) -> Any:
    """The value of an argument of `parametrize`, be it bare or within `pytest.param`."""
    return argument.values[0] if isinstance(argument, type(pytest.param())) else argument


def report_of(data: dict[str, Any], config: pytest.Config) -> pytest.TestReport:
    """A report that another process has made."""
    found = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert isinstance(found, pytest.TestReport)
    return found
