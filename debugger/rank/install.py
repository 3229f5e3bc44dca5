"""Installs the layer in this process: once, when torch.distributed has been imported.

Nothing here may break the program. Whatever fails is reported in one line and left out.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distcore.registration import stand_by

from ..record import torch_versions
from ..record.layout import Activity
from ..record.lost_pages import lost_pages
from ..record.secret_words import masked
from ..record.stack_dump import STACK_SIGNAL, dump_path
from ..record.writer import FlightWriter
from . import torch_private
from .agreement import collectives, monitored_barrier
from .breakpoints import stops as breakpoints
from .checks import pipeline
from .ddp import statistics
from .group import forks, timeouts, wrap
from .log import debug_level, python_warnings, rank_log
from .process import cleanup_calls, exits, init_process_group, main_thread, unwaited_work
from .process.heartbeat import Heartbeat
from .process.verdict import VERDICT, VerdictWatch
from .record import call_site
from .record.errors import FindingRaised
from .record.recorder import Recorder, report_own_fault, say
from .replicas import check
from .torch_private import probe
from .torch_private.gloo_workers import settle
from .torch_private.stores import on_store_waits

if TYPE_CHECKING:
    from .inject.injector import Injector

RUN_DIRECTORY = "DISTDEBUG_RUN_DIR"
STARTED = "DISTDEBUG_RUN_STARTED"
"""Set where a supervisor watches this process."""
FAULTS = "DISTDEBUG_FAULTS"
"""`faults.plan.VARIABLE`, of which a run without a plan loads nothing."""
MOST_STORE_KEYS = 1000
"""Waits for further keys are on record without the key: programs make keys as they go."""

_recorder: Recorder | None = None
_heartbeat: Heartbeat | None = None
_injector: Injector | None = None
_directory: Path | None = None


def install(run_directory: str | None = None) -> Recorder | None:
    """Observe every group that this process creates from now on.

    `run_directory` defaults to $DISTDEBUG_RUN_DIR. Returns None, having said why in one line,
    when the record cannot be kept. Calling it again changes nothing.
    """
    global _recorder
    if _recorder is not None:
        return _recorder
    path = run_directory or os.environ.get(RUN_DIRECTORY)
    if not path:
        return None
    atexit.register(_come_to_rest)  # first, so that it runs after all that others register
    try:
        _recorder = _install(Path(path))
    except Exception as error:
        report_own_fault("recording", error)
    return _recorder


def installed() -> bool:
    """Whether this process is observed."""
    return _recorder is not None


def directory() -> Path | None:
    """Where this process keeps its record; None where it is not observed."""
    return _directory if _recorder is not None else None


def take_faults() -> None:
    """The plan has more faults than at the start: make them happen in groups made from now on."""
    global _injector
    if _recorder is None or _directory is None:
        return
    from .inject import injector

    if _injector is not None:
        injector.extend(_injector, _directory)
        return
    _injector = injector.begin(_recorder, _directory)
    if _injector is not None:
        wrap.choose_class(_injector.group_class)


def _install(directory: Path) -> Recorder:
    global _injector, _directory
    stand_by()  # before all that goes in front of torch's functions here
    writer = FlightWriter(directory / "ranks" / f"pid-{os.getpid()}.flight")
    recorder = Recorder(writer, _identity())
    probe.on_off(_part_off(recorder))
    newer = torch_versions.too_new(torch.__version__)
    if newer:
        recorder.part_off("torch", newer)
    watch = VerdictWatch(directory / VERDICT)
    watch.install()
    rank_log.observe(lambda: writer.rank, directory, report_own_fault, (FindingRaised,))
    python_warnings.observe()
    init_process_group.observe(recorder, directory)
    _directory = directory
    _injector = _planned(recorder, directory)
    if _injector is None:
        wrap.observe(recorder)
    else:
        wrap.observe(recorder, _injector.group_class)
    exits.observe(recorder)
    cleanup_calls.observe(recorder)
    collectives.observe()
    pipeline.observe(recorder)
    _each_by_itself(
        {
            "the check of replicas": lambda: check.observe(recorder, directory),
            "monitored_barrier on every backend": monitored_barrier.observe,
            "the debug level": debug_level.observe,
            "watching compiled programs": lambda: torch_private.keep_uncompiled(
                call_site.DIRECTORIES
            ),
            "what is told of DistributedDataParallel": lambda: statistics.observe(recorder),
            "watching calls on other groups": lambda: torch_private.on_not_in_group(
                _note_not_in_group(recorder)
            ),
            "watching waits for stores": lambda: on_store_waits(_store_watch(recorder)),
            "watching the end of data": lambda: torch_private.on_data_end(_note_data_end(recorder)),
        }
    )
    main_thread.observe()
    stops = breakpoints.observe(recorder, directory, pipeline.look_once)
    limits = timeouts.observe(recorder, directory)

    told_of_lost_pages = False

    def look() -> None:
        nonlocal told_of_lost_pages
        if lost_pages() and not told_of_lost_pages:
            told_of_lost_pages = True
            _tell_of_lost_pages()
        watch.look()
        limits.look()
        stops.look()
        if _injector is not None:
            _injector.look()

    def begin() -> None:
        global _heartbeat
        _heartbeat = Heartbeat(recorder, look)
        _heartbeat.start()
        _register_faulthandler(directory)

    begin()
    forks.observe(recorder, directory, _identity, begin)
    return recorder


def _tell_of_lost_pages() -> None:
    """A supervisor sees it, and says it in the report."""
    text = "the flight record was cut short, or its disk fails: what this rank does is not recorded"
    rank_log.put("own_fault", "warning", {"message": text}, printed=True)
    if STARTED not in os.environ:
        say(f"{text}; the program goes on")


def _each_by_itself(parts: Mapping[str, Callable[[], None]]) -> None:
    """What fails of these is left out, and takes nothing else with it."""
    for what, begin in parts.items():
        try:
            begin()
        except Exception as error:
            report_own_fault(what, error)


def _planned(recorder: Recorder, directory: Path) -> Injector | None:
    """What makes things go wrong on purpose; None, with nothing of it loaded, in all other runs."""
    if not os.environ.get(FAULTS):
        return None
    from .inject.injector import begin

    return begin(recorder, directory)


def _come_to_rest() -> None:
    """No thread may be within torch's code when the interpreter is finalised."""
    if _heartbeat is not None:
        _heartbeat.stop()
    if _recorder is not None:
        unwaited_work.last_report(_recorder)
    settle()


def _part_off(recorder: Recorder) -> Callable[[probe.Part], None]:
    """The supervisor says it, once for all ranks; without one, the process itself does."""

    def tell(part: probe.Part) -> None:
        sentence = f"{part.lost}: {part.why}"
        recorder.part_off(part.name, sentence, part.blind)
        if STARTED not in os.environ:
            say(sentence)

    return tell


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "argv": [argument[:200] for argument in masked(sys.argv[:20])],
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parent": os.getppid(),
    }


def _note_not_in_group(recorder: Recorder) -> Callable[[str], None]:
    told: set[tuple[int, str]] = set()

    def note(op_name: str) -> None:
        site = recorder.safe_site(sys._getframe(2))
        if (site, op_name) not in told:
            told.add((site, op_name))
            recorder.note(
                "not_in_group", f"{op_name} on a group this rank is not in", site, op=op_name
            )

    return note


def _note_data_end(recorder: Recorder) -> Callable[[int], None]:
    def note(batches: int) -> None:
        if not recorder.writer.heap_half_full:  # thousands of epochs must not fill the record
            site = recorder.safe_site(sys._getframe(2))
            text = f"its DataLoader ended after {batches} batches"
            recorder.note("data_exhausted", text, site, batches=batches)

    return note


def _store_watch(recorder: Recorder) -> Callable[[str, Any, Any], Any]:
    details: dict[tuple[str, str, str], int] = {}

    def detail_of(op: str, store: Any, keys: Any) -> int:
        names = [keys] if isinstance(keys, (str, bytes)) else list(keys)[:8]
        key = (op, ", ".join(map(str, names)), type(store).__name__)
        if key not in details and len(details) >= MOST_STORE_KEYS:
            key = (op, "", key[2])
        if key not in details:
            details[key] = recorder.detail({"op": op, "key": key[1], "store": key[2]})
        return details[key]

    @contextlib.contextmanager
    def watch(op: str, store: Any, keys: Any) -> Iterator[None]:
        slot = None
        with contextlib.suppress(Exception):
            # Within an initialisation it is a part of that, which is on record already.
            if not recorder.writer.is_waiting(threading.get_ident()):
                site = recorder.site(sys._getframe(2))
                detail = detail_of(op, store, keys)
                slot = recorder.writer.enter(int(Activity.STORE), 0, detail, site)
        try:
            yield
        finally:
            if slot is not None:
                recorder.writer.leave(slot)

    return watch


def _register_faulthandler(directory: Path) -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = dump_path(directory / "stacks", os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
