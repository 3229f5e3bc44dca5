"""Installs the layer in this process: once, when torch.distributed has been imported.

Nothing here may break the program. Whatever fails is reported in one line and left out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..record.layout import Activity
from ..record.writer import FlightWriter
from . import exceptions, forks, groups, initialisation, levels, torch_private
from .heartbeat import Heartbeat
from .recorder import Recorder, report_own_fault
from .verdict import VerdictWatch

RUN_DIRECTORY = "DISTDEBUG_RUN_DIR"
STACK_SIGNAL = signal.SIGRTMAX - 4
"""The supervisor's last resort for stacks: faulthandler writes them to `stacks/<pid>.txt`."""

_recorder: Recorder | None = None


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
    try:
        _recorder = _install(Path(path))
    except Exception as error:
        report_own_fault("recording", error)
    return _recorder


def _install(directory: Path) -> Recorder:
    writer = FlightWriter(directory / "ranks" / f"pid-{os.getpid()}.flight")
    recorder = Recorder(writer, _identity())
    watch = VerdictWatch(directory / "verdict.json")
    watch.install()
    initialisation.observe(recorder, directory)
    groups.observe(recorder)
    exceptions.observe(recorder)
    levels.observe()
    torch_private.on_not_in_group(_note_not_in_group(recorder))
    torch_private.on_store_waits(_store_watch(recorder))
    torch_private.on_data_end(
        lambda batches: recorder.note(
            "data_exhausted",
            f"its DataLoader ended after {batches} batches",
            recorder.site(sys._getframe(2)),
            batches=batches,
        )
    )

    def begin() -> None:
        Heartbeat(recorder, watch.look).start()
        _register_faulthandler(directory)

    begin()
    forks.observe(recorder, directory, begin)
    return recorder


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "argv": [argument[:200] for argument in sys.argv[:20]],
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "parent": os.getppid(),
    }


def _note_not_in_group(recorder: Recorder) -> Callable[[str], None]:
    def note(op_name: str) -> None:
        site = recorder.site(sys._getframe(2))
        recorder.note("not_in_group", f"{op_name} on a group this rank is not in", site, op=op_name)

    return note


def _store_watch(recorder: Recorder) -> Callable[[str, Any, Any], Any]:
    @contextlib.contextmanager
    def watch(op: str, store: Any, keys: Any) -> Iterator[None]:
        if recorder.writer.thread().nested:
            yield  # part of an initialisation, which is on record already
            return
        names = [keys] if isinstance(keys, (str, bytes)) else list(keys)[:8]
        detail = {"op": op, "key": ", ".join(map(str, names)), "store": type(store).__name__}
        with recorder.waiting_in(Activity.STORE, detail, recorder.site(sys._getframe(2))):
            yield

    return watch


def _register_faulthandler(directory: Path) -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = directory / "stacks" / f"{os.getpid()}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)
