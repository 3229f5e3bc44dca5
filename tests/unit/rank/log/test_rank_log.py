"""The log inside a rank: what a record holds, whatever the program gives; nothing where none is."""

from __future__ import annotations

import collections
import functools
import json
import os
import signal
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import distdebug
from distdebug.rank.log import rank_log
from distdebug.rank.log.rank_log import is_interruption
from distdebug.record.notes import ReplicasNote

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs of a run in which this process is rank 3."""
    (tmp_path / "logs").mkdir()
    for name, value in {
        "DISTDEBUG_RUN_DIR": str(tmp_path),
        "DISTDEBUG_RANK_PID": str(os.getpid()),
        "RANK": "3",
        "DISTDEBUG_RAISE_OWN_FAULTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCH_CPP_LOG_LEVEL", "DISTDEBUG_LEVEL", "DISTDEBUG_LOG_MAX_MB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rank_log, "of_this_process", rank_log.ThisProcess())
    monkeypatch.setattr("distdebug.rank.log.user_log.of_program.current", None)
    return tmp_path / "logs"


def _records(logs: Path, name: str = "3.jsonl") -> list[dict[str, Any]]:
    path = logs / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_record_of_the_program(logs: Path) -> None:
    log = distdebug.log.bind(model="m")
    log.step(7)
    log.info("loss", value=1.5)
    distdebug.log.warning("other", step=8)
    first, second = _records(logs)
    line = first.pop("line")
    assert (first.pop("time_ns") > 0, first.pop("host") != "") == (True, True)
    assert first == {
        "rank": 3,
        "pid": os.getpid(),
        "level": "info",
        "event": "loss",
        "file": __file__,
        "step": 7,
        "model": "m",
        "value": 1.5,
    }
    assert (second["step"], second["line"], second["level"]) == (8, line + 1, "warning")
    assert next(iter(second)) == "time_ns"


class _NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class _NoScalar:
    def __repr__(self) -> str:
        return "<_NoScalar>"

    @property
    def ndim(self) -> int:
        raise RuntimeError("no")


class _Changing(list[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise RuntimeError("changed size during iteration")


KNOT: list[Any] = []
KNOT.extend([KNOT] * 40)


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        ([_NoScalar(), 1], ["<_NoScalar>", 1]),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([1, 2]), "tensor([1, 2])"),
        (torch.empty(3, device="meta").sum(), "tensor(..., device='meta', size=())"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        ({1: (1, {2})}, {"1": [1, [2]]}),
        (range(5), "range(0, 5)"),
        (b"\x00", "b'\\x00'"),
        ("x" * 10_000, "x" * 4096),
        (list(range(9999)), [*range(2000), "..."]),
        ([[0] * 1999, [1], 2], [[0] * 1999, "..."]),
        ([[[[[[[[[1]]]]]]]]], [[[[[[[["..."]]]]]]]]),
        (KNOT, ["..."] * 40),
        ({b"b": 1, (1, "a"): 2, None: 3, 1.5: 4}, {"b'b'": 1, "(1, 'a')": 2, "None": 3, "1.5": 4}),
        (_Changing(), [1, "..."]),
        (collections.deque([1, 2]), [1, 2]),
        ({1: 2}.keys(), [1]),
        (b"\0" * 9999, repr(b"\0" * 4096)[:4096]),
        ([1 << 99_999], ["<int of 100000 bits>"]),
        (_NoRepr(), "<_NoRepr without a repr>"),
        (10**400, repr(10**400)),
        ("\ud800\n\x1b", "\ud800\n\x1b"),
        (None, None),
    ],
)
def test_values(logs: Path, value: object, logged: object) -> None:
    distdebug.log.info("x", value=value)
    [record] = _records(logs)
    assert record["value"] == logged


def test_what_is_large_is_not_copied(logs: Path) -> None:
    distdebug.log.info("first")  # what it takes to import the chain
    large = bytes(20_000_000)
    rows = [[0] * 1000] * 1000
    tracemalloc.start()
    try:
        distdebug.log.info("x", large=large, array=bytearray(large), rows=rows, keys={large: 1})
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 22_000_000  # of which the bytearray is 20


def test_names_and_sizes_that_could_do_harm(logs: Path) -> None:
    fields = {"rank": 1, "event": 2, "method_name": 3, "self": 4, "time_ns": 5, "put": 6}
    fields["printed"] = 7
    distdebug.log.info("x", **fields)
    knot: list[Any] = []
    knot.append(knot)
    distdebug.log.info("y", knot=knot, **{f"k{i}": "v" * 4000 for i in range(99)})
    first, second = _records(logs)
    assert first["printed_"] == 7
    assert "printed" not in first
    assert {name: first[name] for name in ("rank", "rank_", "event_", "method_name", "self")} == {
        "rank": 3,
        "rank_": 1,
        "event_": 2,
        "method_name": 3,
        "self": 4,
    }
    assert second["event"] == "y"
    assert second["cut"] > 100_000
    assert "k1" not in second


def test_an_exception_has_its_traceback(logs: Path) -> None:
    try:
        raise ValueError("x" * 5000 + " the end")
    except ValueError:
        distdebug.log.exception("failed")
    distdebug.log.exception("none is handled")
    first, second = _records(logs)
    assert first["level"] == "error"
    assert first["exception"].endswith("the end")
    assert second["event"] == "none is handled"


@pytest.mark.parametrize(
    ("cpp", "level", "written", "printed"),
    [
        (None, "DETAIL", "info warning error", "warning error"),
        ("ERROR", "DETAIL", "error", "error"),
        ("WARNING", "INFO", "warning error", "warning error"),
        ("INFO", "OFF", "info warning error", "info warning error"),
        ("INFO", "INFO", "debug info warning error", "debug info warning error"),
        ("INFO", "DETAIL", "trace debug info warning error", "trace debug info warning error"),
    ],
)
def test_levels(
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
    cpp: str | None,
    level: str,
    written: str,
    printed: str,
) -> None:
    monkeypatch.setenv("DISTDEBUG_LEVEL", level)
    if cpp is not None:
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", cpp)
    every = ("trace", "debug", "info", "warning", "error")
    for one in every:
        rank_log.write(f"layer_{one}", one)
        getattr(distdebug.log, one)(f"user_{one}")
    found = [record["event"] for record in _records(logs)]
    users = [one for one in every if one in written or one in ("info", "warning", "error")]
    assert [name for name in found if name.startswith("layer")] == [
        f"layer_{one}" for one in written.split()
    ]
    assert [name for name in found if name.startswith("user")] == [f"user_{one}" for one in users]
    shown = [line.split()[3] for line in capfd.readouterr().err.splitlines()]
    assert [name for name in shown if name.startswith("layer")] == [
        f"layer_{one}" for one in printed.split()
    ]
    marked = [record["event"] for record in _records(logs) if record.get("printed")]
    assert marked == shown


def test_before_the_rank_is_known(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTDEBUG_RANK_PID")
    distdebug.log.info("early")
    before = f"pid-{os.getpid()}.jsonl"
    assert "rank" not in _records(logs, before)[0]
    monkeypatch.setenv("DISTDEBUG_RANK_PID", str(os.getpid()))
    rank_log.claimed()
    distdebug.log.info("late")
    assert [(record["event"], record["rank"]) for record in _records(logs)] == [
        ("early", 3),
        ("late", 3),
    ]
    assert not (logs / before).exists()


def test_pythons_warnings_are_shown_as_before_and_logged(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(warnings, "_showwarnmsg_impl", shown.append)
    rank_log.observe_warnings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "filters", [("always", None, Warning, None, 0)])
        warnings.warn("careful", FutureWarning, stacklevel=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("expected", stacklevel=1)
    assert [str(one.message) for one in shown] == ["careful"]
    assert [str(one.message) for one in caught] == ["expected"]
    [record] = _records(logs)
    assert (record["event"], record["category"]) == ("python_warning", "FutureWarning")
    assert (record["message"], record["file"], record["level"]) == ("careful", __file__, "warning")


WARNS = """
import logging, sys, warnings
if sys.argv[1] == "watched":
    from distdebug.rank.log import rank_log
    rank_log.observe_warnings()

def lose():
    file = open(sys.executable, "rb")

lose()
with warnings.catch_warnings(record=True) as caught:
    lose()
print(caught[0].source)
logging.basicConfig(format="log: %(message)s")
logging.captureWarnings(True)
warnings.warn("to logging")
logging.captureWarnings(False)
warnings.warn("not to logging")
warnings.showwarning = lambda *args: print("own:", *args)
warnings.warn("to the program's own")
"""


def test_pythons_warnings_say_the_same_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "warns.py").write_text(WARNS)
    said = []
    for how in ("alone", "watched"):
        command = [sys.executable, "-X", "tracemalloc=5", "-W", "always", "warns.py", how]
        (tmp_path / how / "logs").mkdir(parents=True)
        env = {name: value for name, value in os.environ.items() if "DISTDEBUG" not in name}
        env["PYTHONPATH"] = str(Path(__file__).parents[4])
        env["DISTDEBUG_RUN_DIR"] = str(tmp_path / how)
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240
        )
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert "Object allocated at" in said[1][2]
    (file,) = (tmp_path / "watched" / "logs").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["category"] for record in records] == ["ResourceWarning", "UserWarning"]
    assert list((tmp_path / "alone" / "logs").iterdir()) == []


def test_the_place_of_a_note_is_its_own(logs: Path) -> None:
    rank_log.note(ReplicasNote("digests.bin"), "digests", ("train.py", 7), {"step": 1})
    [record] = _records(logs)
    assert (record["file"], record["line"], record["message"]) == ("train.py", 7, "digests")
    assert (record["file_"], record["step"]) == ("digests.bin", 1)


def test_a_record_that_cannot_be_made_is_left_out(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    wrong = torch.tensor([1, 2])  # is neither true nor false
    with pytest.raises(RuntimeError, match="Boolean value"):
        distdebug.log.info("bad", exc_info=wrong)
    monkeypatch.delenv("DISTDEBUG_RAISE_OWN_FAULTS")
    for number in range(2):
        distdebug.log.info("bad", exc_info=wrong)
        distdebug.log.info(f"good {number}")
    assert [record["event"] for record in _records(logs)] == ["own_fault", "good 0", "good 1"]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"distdebug: the log of process {os.getpid()} lacks a record of 'bad': ")
    assert _records(logs)[0]["message"] in line


def test_an_interrupt_while_the_last_words_are_written_is_not_told(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that ends says its own reason, not where this tool was when the launcher's own
    SIGINT came. Before the end it is the program's."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rank_log, "_chain", interrupted)
    with rank_log.held():
        rank_log.put("exception", "error", {})
    with pytest.raises(KeyboardInterrupt):
        rank_log.put("exception", "error", {})


def test_without_its_chain_there_is_no_log(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(rank_log, "report_own_fault", lambda what, _error: told.append(what))
    monkeypatch.setitem(sys.modules, "_distdebug.rank.log.encoding", None)
    distdebug.log.info("x")
    distdebug.log.info("y")
    assert told == ["the rank's log"]
    assert _records(logs) == []


def test_a_full_disk_costs_the_log_only(logs: Path) -> None:
    logs.rmdir()
    distdebug.log.info("x")
    logs.mkdir()
    distdebug.log.info("y")
    assert [record["event"] for record in _records(logs)] == ["y"]


ALONE = """
import sys, distdebug
distdebug.log.step(3)
log = distdebug.log.bind(a=1)
log.error("nothing hears this", b=2)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("nor this")
print(log, sorted({"torch", "structlog"} & set(sys.modules)))
"""


def test_in_a_program_that_is_not_watched_it_goes_nowhere(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if "DISTDEBUG" not in name}
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("<Log {'a': 1}> []\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_programs_own_structlog_stays_as_it_is(logs: Path) -> None:
    import structlog

    distdebug.log.info("x")
    assert not structlog.is_configured()


class Ended(Exception):
    """As torchrun's SignalException."""


def _on_signal(_number: int, _frame: object) -> None:
    raise Ended


def test_what_a_signals_handler_raises_is_the_programs(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """torchrun's handler of SIGTERM raises wherever the main thread is, which may be here."""
    monkeypatch.delenv("DISTDEBUG_RAISE_OWN_FAULTS")
    kept = signal.signal(signal.SIGUSR1, _on_signal)

    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)

    try:
        monkeypatch.setattr(rank_log, "_chain", interrupted)
        with pytest.raises(Ended):
            rank_log.put("event", "error", {})
        with rank_log.held():
            rank_log.put("exception", "error", {})
    finally:
        signal.signal(signal.SIGUSR1, kept)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(rank_log.of_this_process, "dropped", False)
    monkeypatch.setattr(rank_log, "_chain", lambda: _on_signal(0, None))
    rank_log.put("event", "error", {})
    assert "lacks a record of 'event'" in capfd.readouterr().err, "the twin: nobody handles it"


class TimeIsUpError(RuntimeError):
    pass


def handler(_number: int, _frame: FrameType | None, *_more: object) -> None:
    raise TimeIsUpError("by the handler")


class Watchdog:
    def bark(self, _number: int, _frame: FrameType | None) -> None:
        raise TimeIsUpError("by a method")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.bark(number, frame)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "act",
    [
        handler,
        functools.partial(functools.partial(handler)),
        Watchdog().bark,
        Watchdog(),
        lambda number, frame: handler(number, frame),
    ],
    ids=["function", "partial", "method", "object", "lambda"],
)
def test_what_a_handler_raises(act: Callable[..., Any]) -> None:
    signal.signal(signal.SIGUSR1, act)
    with pytest.raises(TimeIsUpError) as found:
        signal.raise_signal(signal.SIGUSR1)
    assert is_interruption(found.value)


def test_what_the_code_itself_raises() -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeIsUpError) as found:
        Watchdog().bark(0, None)
    assert not is_interruption(found.value)
    with pytest.raises(ValueError, match="invalid literal") as wrong:
        int("x")
    assert not is_interruption(wrong.value)
    assert is_interruption(KeyboardInterrupt())
